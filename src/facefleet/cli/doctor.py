"""``facefleet doctor``: what is installed here, what it can do, and what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from facefleet import __version__
from facefleet.cli.exits import Exit, command
from facefleet.cli.terminal import terminal

_LOW_DISK_BYTES = 2 << 30
_CONFLICTS = (
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"),
)
_RUNTIMES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg", "onnx", "onnxruntime", "openvino", "pyarrow")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: What it is about.
        text: What was found.
        problem: What to do, where something is wrong; empty otherwise.
    """

    topic: str
    text: str
    problem: str = ""


@command
def doctor() -> Exit:
    """Check runtimes, devices, threads, conflicting wheels, packs and disk. Ends with 1 if something is wrong."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    problems = 0
    for finding in findings():
        problems += bool(finding.problem)
        table.add_row(finding.topic, finding.text, style="red" if finding.problem else "")
        if finding.problem:
            table.add_row("", f"-> {finding.problem}", style="red")
    console = terminal()
    console.print(table)
    console.print("no problem found" if not problems else f"{problems} problem(s) found", style="bold")
    return Exit.SOME_FAILED if problems else Exit.DONE


def findings() -> Iterator[Finding]:
    """Every check, in order."""
    yield Finding("facefleet", f"{__version__}, Python {sys.version.split()[0]}, {platform.platform()}")
    for name in _RUNTIMES:
        version = installed_version(name)
        missing = "" if version or name in ("opencv-python-headless",) else f"pip install {name}"
        if version or missing:
            yield Finding(name, version or "not installed", missing)
    yield from wheel_conflicts()
    yield from _devices()
    yield from _threads()
    yield from _formats()
    yield from _packs()


def installed_version(name: str) -> str | None:
    """Version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def wheel_conflicts() -> Iterator[Finding]:
    """Wheels that overwrite each other's files: the one installed last wins, in part."""
    for group in _CONFLICTS:
        here = [name for name in group if installed_version(name)]
        if len(here) > 1:
            yield Finding(
                "conflict",
                f"{' and '.join(here)} are installed together",
                f"pip uninstall {' '.join(here)}, then install the one you want",
            )


def _devices() -> Iterator[Finding]:
    from facefleet.config import Settings
    from facefleet.errors import FacefleetError

    try:
        from facefleet.backends import choose
        from facefleet.backends.openvino import capabilities

        yield Finding("cpu", f"{_processor()}; openvino: {', '.join(sorted(capabilities()))}")
        choice = choose(Settings().runtime)
        yield Finding("default", f"{choice.backend} on {choice.device}: {choice.reason}")
    except FacefleetError as error:
        yield Finding("runtime", error.message, error.hint or "install a backend")
    try:
        import onnxruntime

        yield Finding("onnxruntime", f"providers {', '.join(onnxruntime.get_available_providers())}")
    except ImportError:
        pass  # reported above


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _threads() -> Iterator[Finding]:
    from facefleet.config import available_threads
    from facefleet.config.threads import cgroup_quota

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_quota()
    yield Finding(
        "threads",
        f"{available_threads()} used; {os.cpu_count()} in the machine, {affinity} allowed by affinity, "
        + ("no cgroup quota" if quota is None else f"{quota:g} by cgroup quota"),
    )


def _formats() -> Iterator[Finding]:
    from facefleet.decode import supported_formats

    formats = supported_formats()
    yield Finding("reads", ", ".join(name for name, here in formats.items() if here))
    if not formats["heic"]:
        yield Finding("does not read", 'heic: pip install "facefleet[heif]"')


def _packs() -> Iterator[Finding]:
    from facefleet.config import load_settings
    from facefleet.errors import FacefleetError
    from facefleet.packs import Store

    try:
        settings = load_settings().settings
        store = Store(Path(settings.home) if settings.home else None)
        here = [name for name in store.names() if store.status(name).installed]
        yield Finding("packs", f"installed: {', '.join(here) or 'none'}; default: {settings.pack}")
        located = store.manifest(settings.pack)
        for spec in (located.manifest.detector, located.manifest.embedder):
            store.locate(located, spec.source)
    except FacefleetError as error:
        yield Finding("pack", error.message, error.hint or "see facefleet models list")
        return
    folder = store.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    low = "free some space: models and results need room" if free < _LOW_DISK_BYTES else ""
    yield Finding("disk", f"{free / 2**30:.1f} GiB free for {store.home}", low)
