"""Which of the modules is taken, and what it says to the log."""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace

import pytest

from facefleet.backends.tensorrt.binding import load_binding
from facefleet.errors import BackendUnavailableError


class _Logger:
    Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)


def module(version="10.9.0"):
    return SimpleNamespace(Builder=object, ILogger=_Logger, __version__=version)


@pytest.fixture
def installed(monkeypatch):
    """What there is to import: name -> module, or the error that importing it raises."""
    found = {}

    def import_module(name):
        there = found.get(name, ModuleNotFoundError(f"No module named {name!r}", name=name))
        if isinstance(there, Exception):
            raise there
        return there

    monkeypatch.setattr(importlib, "import_module", import_module)
    load_binding.cache_clear()
    yield found
    load_binding.cache_clear()


def test_the_order(installed):
    installed.update({"tensorrt_rtx_bindings": module("1.7"), "tensorrt_rtx": module("1.6")})
    assert (load_binding().version, load_binding().rtx) == ("1.6", True)
    load_binding.cache_clear()
    installed["tensorrt"] = module()
    assert (load_binding().version, load_binding().rtx) == ("10.9.0", False)


def test_none(installed):
    with pytest.raises(BackendUnavailableError, match=r'not installed .*"facefleet\[tensorrt\]"'):
        load_binding()
    installed["tensorrt"] = SimpleNamespace()  # an empty namespace
    with pytest.raises(BackendUnavailableError, match="not installed"):
        load_binding()


@pytest.mark.parametrize(
    "error", [ImportError("libnvinfer.so.10"), OSError("libnvinfer.so.10"), ModuleNotFoundError("libnvinfer", name="x")]
)
def test_one_that_cannot_be_loaded_is_said(installed, error):
    installed["tensorrt"] = error
    with pytest.raises(BackendUnavailableError, match="cannot be loaded: tensorrt: libnvinfer"):
        load_binding()
    installed["tensorrt_rtx"] = module("1.7")
    assert load_binding().rtx


def test_one_logger_a_process(installed):
    installed["tensorrt"] = module()
    assert load_binding().logger is load_binding().logger


def test_messages(installed, caplog):
    installed["tensorrt"] = module()
    binding = load_binding()
    with caplog.at_level(logging.DEBUG, "facefleet.tensorrt"):
        for severity, message in ((1, "no kernel"), (2, "slow"), (4, "detail"), (0, "bug")):
            binding.logger.log(severity, message)
    levels = [(record.levelno, record.message) for record in caplog.records]
    assert levels == [(10, "no kernel"), (30, "slow"), (10, "detail"), (10, "bug")]
    assert binding.errors() == "no kernel\nbug"
    assert binding.errors() == ""
    for number in range(100):
        binding.logger.log(1, str(number))
    assert len(binding.errors().splitlines()) == 32
