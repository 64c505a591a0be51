"""Loads of devices: NVML's through a stand-in for its module, the processor's for real."""

from __future__ import annotations

import builtins
import os
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from facefleet.telemetry import devices
from facefleet.telemetry.devices import Cores, DeviceLoad, Nvml, process_memory, read_devices, resident_bytes, why_none


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml:
    """The part of ``pynvml`` that is used, for cards A, B, C...; `silent` are questions that no card answers."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, cards: int = 2, *, broken: str = "", silent: tuple[str, ...] = (), old: bool = False) -> None:
        self.broken, self.silent, self.old = broken, silent, old
        self.calls: Counter[str] = Counter()
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": self.start,
            "nvmlDeviceGetCount": lambda: cards,
            "nvmlDeviceGetHandleByIndex": lambda index: "ABCDEFGH"[index],
            "nvmlDeviceGetUUID": lambda handle: self.text(f"GPU-{handle}"),
            "nvmlDeviceGetName": lambda handle: self.text(f"Card {handle}"),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=20),
            "nvmlDeviceGetMemoryInfo": self.memory,
            "nvmlDeviceGetTemperature": lambda handle, sensor: {self.NVML_TEMPERATURE_GPU: 61}[sensor],
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            if name in self.silent:
                raise NVMLError("Not Supported")
            return self.answers[name](*arguments)

        return call

    def start(self) -> None:
        if self.broken:
            raise NVMLError(self.broken)

    def memory(self, handle: str, version: object = None) -> SimpleNamespace:
        if version is not None and self.old:
            raise NVMLError("Function Not Found")
        reserved = 0 if version is not None or self.old else 1 << 29  # which the first version counts as used
        return SimpleNamespace(used=(3 << 30) + reserved, total=8 << 30)

    def text(self, text: str) -> str | bytes:
        return text.encode() if self.old else text


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


class TestNvidia:
    @pytest.mark.parametrize("old", [False, True])
    def test_loads(self, old: bool) -> None:
        library = FakeNvml(old=old)
        nvml = Nvml(library)
        expected = [DeviceLoad(f"cuda:{n}", f"Card {'AB'[n]}", 0.87, 3 << 30, 8 << 30, 61.0) for n in range(2)]
        assert nvml.read() == expected
        assert nvml.read() == expected
        assert nvml.why_none == ""
        assert library.calls["nvmlInit"] == 1

    @pytest.mark.parametrize(
        ("visible", "names"),
        [
            ("1", ["B"]),
            ("2,0", ["C", "A"]),
            ("GPU-B, 0", ["B", "A"]),
            ("0,7,1", ["A"]),  # as CUDA does: what follows a wrong one is not there
            ("-1", []),
            ("", []),
            ("GPU-", []),
        ],
    )
    def test_numbered_as_cuda_does(self, visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        nvml = Nvml(FakeNvml(3))
        found = nvml.read()
        assert [load.name for load in found] == [f"Card {name}" for name in names]
        assert [load.device for load in found] == [f"cuda:{number}" for number in range(len(names))]
        assert ("hides" in nvml.why_none) == (not names)

    def test_what_a_card_does_not_say_is_none(self) -> None:
        silent = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetName")
        (load,) = Nvml(FakeNvml(1, silent=silent)).read()
        assert load == DeviceLoad("cuda:0", "", None, 3 << 30, 8 << 30, None)
        (load,) = Nvml(FakeNvml(1, silent=("nvmlDeviceGetMemoryInfo",))).read()
        assert (load.memory_bytes, load.memory_total_bytes, load.utilization) == (None, None, 0.87)

    def test_no_driver(self) -> None:
        library = FakeNvml(broken="Driver Not Loaded")
        nvml = Nvml(library)
        assert nvml.read() == nvml.read() == []
        assert nvml.why_none == "NVML: Driver Not Loaded"
        assert library.calls["nvmlInit"] == 1

    def test_no_card(self) -> None:
        nvml = Nvml(FakeNvml(0))
        assert nvml.read() == []
        assert nvml.why_none == "NVML: no device"

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(name: str, *arguments: Any, **options: Any) -> Any:
            if name == "pynvml":
                raise ImportError(name)
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", without)
        monkeypatch.setattr(devices, "_NVML", Nvml())
        assert read_devices() == []
        assert "facefleet[gpu]" in why_none()

    def test_here(self) -> None:
        """Whatever this machine has: cards, or a reason."""
        assert bool(read_devices()) != bool(why_none())


class TestCores:
    @pytest.mark.parametrize("with_psutil", [True, False])
    def test_this_machine(self, with_psutil: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not with_psutil:
            monkeypatch.setattr(devices, "_psutil", lambda: None)
        cores = Cores()
        first = cores.read()
        assert [load.device for load in first] == [f"cpu:{core}" for core in sorted(os.sched_getaffinity(0))]
        assert all(load.utilization is None for load in first)
        second: list[DeviceLoad] = []
        while not second or any(load.utilization is None for load in second):  # the system counts in hundredths
            sum(range(100_000))
            second = cores.read()
        for load in second:
            assert load.utilization is not None
            assert 0 <= load.utilization <= 1
            assert load.memory_bytes is not None
            assert load.memory_total_bytes is not None
            assert 0 < load.memory_bytes < load.memory_total_bytes

    def test_share_of_the_time_between(self, monkeypatch: pytest.MonkeyPatch) -> None:
        readings = iter([{0: (10.0, 100.0), 1: (0.0, 100.0)}, {0: (17.0, 110.0), 1: (10.0, 110.0), 2: (1.0, 1.0)}])
        monkeypatch.setattr(devices, "_core_times", lambda: next(readings))
        cores = Cores()
        cores.read([0, 1])
        assert [(load.device, load.utilization) for load in cores.read([0, 1, 2, 9])] == [
            ("cpu:0", pytest.approx(0.7)),
            ("cpu:1", 1.0),
            ("cpu:2", None),
        ]

    def test_guest_time_counts_once(self) -> None:
        times = {"user": 6.0, "system": 1.0, "idle": 2.0, "iowait": 1.0, "guest": 5.0}
        assert devices._busy(times) == (7.0, 10.0)

    def test_processes(self) -> None:
        used, total = process_memory()
        assert 0 < used < total
        assert resident_bytes(os.getpid()) > 0
        assert resident_bytes(2**22 + 1) == 0
