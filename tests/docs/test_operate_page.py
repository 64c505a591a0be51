"""docs/operate.md: every metric, setting and option that it names exists."""

from __future__ import annotations

import dataclasses
import re

from facefleet.config import Settings
from facefleet.telemetry.metrics import DECLARATIONS
from tests.docs.test_readme import ROOT

PAGE = (ROOT / "docs" / "operate.md").read_text()


def test_every_metric_is_declared_and_every_declared_one_is_named() -> None:
    declared = {each.name for each in DECLARATIONS}
    assert set(re.findall(r"facefleet_[a-z_]+", PAGE)) == declared


def test_labels_are_those_of_the_declarations() -> None:
    labels = {each.name: set(each.labels) for each in DECLARATIONS}
    found = re.findall(r"(facefleet_[a-z_]+)\{(\w+)=", PAGE)
    assert found
    for name, label in found:
        assert label in labels[name], name


def test_settings_exist() -> None:
    groups = {field.name: getattr(Settings(), field.name) for field in dataclasses.fields(Settings)}
    named = set(re.findall(r"`(?:--set )?(batch|runtime|cache|detect|decode)\.(\w+)", PAGE))
    assert len(named) > 5
    for group, name in named:
        assert hasattr(groups[group], name), f"{group}.{name}"


def test_options_exist() -> None:
    from typer.main import get_command

    from facefleet.cli.main import app

    root = get_command(app)
    known = {option for path in ("serve", "tune", "keys add") for option in _options(root, path)}
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", PAGE)):
        assert option in known, option


def _options(command: object, path: str) -> set[str]:
    for name in path.split():
        command = command.commands[name]  # type: ignore[attr-defined]
    return {text for each in command.params for text in each.opts}  # type: ignore[attr-defined]
