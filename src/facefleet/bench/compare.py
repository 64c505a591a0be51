"""Two results of the same kind, setting by setting, with a verdict that knows noise.

Pure. A change counts where it is larger than three standard errors of both medians together, and than a floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from facefleet.bench.stats import Change, Repeated, compared
from facefleet.config.machine import Machine
from facefleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Row:
    """One setting in both results.

    Attributes:
        key: Its name.
        unit: What is compared.
        before: Median of the first.
        after: Of the second.
        change: What that means.
    """

    key: str
    unit: str
    before: float
    after: float
    change: Change


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results.

    Attributes:
        rows: Settings that are in both.
        missing: Settings that are in one only.
        cautions: Why the results may not be comparable.
        ratio: Geometric mean of the changes of all settings.
        verdict: ``faster``, ``slower``, ``mixed``, ``no difference`` or ``unknown``.
    """

    rows: list[Row]
    missing: list[str]
    cautions: list[str]
    ratio: float
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compare(before: Mapping[str, Any], after: Mapping[str, Any], *, floor: float = 0.02) -> Comparison:
    """Compare throughput.

    Args:
        before: A result.
        after: Another one.
        floor: Changes below this share are never called one.

    Raises:
        ConfigError: They are of different kinds, or have no setting in common.
    """
    if before["kind"] != after["kind"]:
        raise ConfigError(
            f"a result of bench {before['kind']} and one of bench {after['kind']}", hint="compare two of a kind"
        )
    first, second = _figures(before), _figures(after)
    rows = [
        Row(
            key,
            first[key][0],
            first[key][1].median,
            second[key][1].median,
            compared(first[key][1], second[key][1], floor=floor),
        )
        for key in first
        if key in second
    ]
    if not rows:
        raise ConfigError("the two results have no setting in common", hint="measure the same grid twice")
    ratio = math.exp(sum(math.log(row.change.ratio) for row in rows) / len(rows))
    return Comparison(
        rows, sorted(first.keys() ^ second.keys()), _cautions(before, after), round(ratio, 4), _verdict(rows)
    )


def _figures(result: Mapping[str, Any]) -> dict[str, tuple[str, Repeated]]:
    """Key -> unit and rounds."""
    if result["kind"] == "model":
        return {cell["key"]: ("images/s", _rounds(cell["images_per_s"])) for cell in result["cells"]}
    if result["kind"] == "pipeline":
        return {"images/s": ("images/s", _rounds(result["images_per_s"]))}
    if result["kind"] == "serve":
        return {load["key"]: ("answers/s", _rounds(load["answers_per_s"])) for load in result["loads"]}
    return {point["key"]: ("images/s", Repeated((point["images_per_s"],))) for point in result["points"]}


def _rounds(figure: Mapping[str, Any]) -> Repeated:
    return Repeated(tuple(figure["rounds"]))


def _verdict(rows: list[Row]) -> str:
    verdicts = {row.change.verdict for row in rows}
    faster, slower = "faster" in verdicts, "slower" in verdicts
    if faster and slower:
        return "mixed"
    if faster or slower:
        return "faster" if faster else "slower"
    return "no difference" if "no difference" in verdicts else "unknown"


def _cautions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    here, there = Machine.from_json(after["machine"]), Machine.from_json(before["machine"])
    found = [f"another machine: {text.replace(' there', ' first').replace(' here', ' then')}"
             for text in there.differences(here)]  # fmt: skip
    for name in sorted(before["versions"].keys() | after["versions"].keys()):
        first, second = before["versions"].get(name, "none"), after["versions"].get(name, "none")
        if first != second:
            found.append(f"{name} {first} first, {second} then")
    for title, result in (("first", before), ("second", after)):
        load = result.get("load_before")
        if load is not None and load > 0.5 * here.threads:
            found.append(f"the machine was not idle before the {title} measurement: load {load}")
    return found
