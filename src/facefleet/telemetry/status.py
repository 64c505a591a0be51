"""Status files: what a running engine is doing, for `facefleet top` and whoever else looks.

An engine writes ``<pid>.json`` into a folder of its user's once a second and removes it when it closes; a file of a
process that is gone is removed by the next reader. Owns the folder and the format. Writing never fails an engine: what
cannot be written is said once in the log. `StatusWriter.start` runs one thread; all else runs where it is called.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from facefleet.errors import ConfigError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"\.?(\d{1,10})(?:-\d+)?\.json(?:\.new)?")
_MOST_BYTES = 4 << 20
_SLACK_S = 2.0  # clocks of a process' start are that coarse


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker at one moment; counters go on from its start, over restarts.

    Attributes:
        name: Its device, e.g. ``cpu:0``.
        role: ``photo``, ``detect`` or ``embed``.
        state: One of `metrics.WORKER_STATES`.
        in_flight: Items it has.
        batches: Batches it has run.
        items: Items it has done: images, or faces where the role is ``embed``.
        busy_s: Seconds it worked, all its instances together.
        restarts: Times its process was started again.
        memory_bytes: In use on its device (for a core: by its process); None: unknown.
        memory_total_bytes: What there is.
        utilization: Of its device, 0 to 1.
        temperature: Of its device, in degrees Celsius.
    """

    name: str
    role: str
    state: str
    in_flight: int = 0
    batches: int = 0
    items: int = 0
    busy_s: float = 0.0
    restarts: int = 0
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One engine at one moment.

    Attributes:
        pid: Of its process.
        started: When it was opened, in seconds since 1970.
        time: When this was true, in seconds since 1970.
        pack: Name of its model pack.
        placement: ``local``, ``data`` or ``stage``.
        images: Images answered since it was opened.
        faces: Faces found since it was opened.
        queue: Stage -> items waiting.
        workers: What works for it.
    """

    pid: int
    started: float
    time: float
    pack: str
    placement: str
    images: int = 0
    faces: int = 0
    queue: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[WorkerLoad, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def status_folder() -> Path:
    """Where status files are: ``$XDG_RUNTIME_DIR/facefleet``, else a folder of this user's for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "facefleet"
    return Path(tempfile.gettempdir()) / f"facefleet-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


class StatusWriter:
    """Writes the status of one engine; several engines of a process have a file each.

    Args:
        folder: Where; `status_folder` if not given. Made with mode 0700 where it is not there.

    Raises:
        ConfigError: The folder cannot be made, or is somebody else's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or status_folder()
        _own_folder(folder)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False
        with _NAMING:
            number = next(n for n in range(1, len(_TAKEN) + 2) if self._path(folder, n) not in _TAKEN)
            self.path = self._path(folder, number)
            _TAKEN.add(self.path)

    def write(self, status: Status) -> bool:
        """Replace the file as a whole; False, and once a warning, where that cannot be done."""
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            temporary.write_text(json.dumps(status.as_json()))
            temporary.replace(self.path)
        except OSError as error:
            if not self._warned:
                _log.warning("%s cannot be written, so `facefleet top` does not show this engine: %s", self.path, error)
            self._warned = True
            return False
        return True

    def start(self, read: Callable[[], Status], interval_s: float = 1.0) -> None:
        """Write what `read` returns now and once an interval until `close`, in a thread of its own."""

        def run() -> None:
            while True:
                try:
                    self.write(read())
                except Exception:
                    _log.exception("no status")  # a bug in `read` must not end what the engine is for
                if self._stopping.wait(interval_s):
                    return

        self._thread = threading.Thread(target=run, name="facefleet-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the file; may be called twice."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.with_name(f".{self.path.name}.new").unlink(missing_ok=True)
        with _NAMING:
            _TAKEN.discard(self.path)

    @staticmethod
    def _path(folder: Path, number: int) -> Path:
        return folder / (f"{os.getpid()}.json" if number == 1 else f"{os.getpid()}-{number}.json")


_NAMING = threading.Lock()
_TAKEN: set[Path] = set()


def read_statuses(folder: Path | None = None) -> list[Status]:
    """The engines that run, oldest first.

    Files of processes that are gone are removed; what is not a status file, or is damaged, is left out.
    """
    folder = folder or status_folder()
    try:
        names = sorted(path.name for path in folder.iterdir())
        if not _is_own(folder):
            return []
    except OSError:
        return []
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        path, pid = folder / name, int(match[1])
        status = None if name.endswith(".new") else _read(path)
        if not _alive(pid, None if status is None else status.time):
            with contextlib.suppress(OSError):
                path.unlink()
        elif status is not None and status.pid == pid:
            found.append(status)
    return sorted(found, key=lambda status: (status.started, status.pid))


def _read(path: Path) -> Status | None:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            data = json.loads(file.read(_MOST_BYTES))
        return status_from_json(data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def status_from_json(data: Mapping[str, Any]) -> Status:
    """A status of what `Status.as_json` gave.

    Raises:
        KeyError: Something is missing.
        ValueError: Something is not what it should be.
        TypeError: Likewise.
        AttributeError: Likewise.
    """
    return Status(
        pid=int(data["pid"]),
        started=float(data["started"]),
        time=float(data["time"]),
        pack=str(data["pack"]),
        placement=str(data["placement"]),
        images=int(data["images"]),
        faces=int(data["faces"]),
        queue={str(stage): int(count) for stage, count in data["queue"].items()},
        workers=tuple(_worker(entry) for entry in data["workers"]),
    )


def _worker(entry: Mapping[str, Any]) -> WorkerLoad:
    def known(key: str) -> float | None:
        return None if entry.get(key) is None else float(entry[key])

    used, total = known("memory_bytes"), known("memory_total_bytes")
    return WorkerLoad(
        name=str(entry["name"]),
        role=str(entry["role"]),
        state=str(entry["state"]),
        in_flight=int(entry["in_flight"]),
        batches=int(entry["batches"]),
        items=int(entry["items"]),
        busy_s=float(entry["busy_s"]),
        restarts=int(entry["restarts"]),
        memory_bytes=None if used is None else int(used),
        memory_total_bytes=None if total is None else int(total),
        utilization=known("utilization"),
        temperature=known("temperature"),
    )


def _own_folder(folder: Path) -> None:
    """Make the folder, for this user alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = _is_own(folder)
    except OSError as error:
        raise ConfigError(
            f"status folder {folder}: {error}", hint="set XDG_RUNTIME_DIR to a folder of your own"
        ) from error
    if not own:
        raise ConfigError(
            f"status folder {folder} can be written by others", hint="set XDG_RUNTIME_DIR to a folder of your own"
        )


def _is_own(folder: Path) -> bool:
    """Whether nobody else can put files there: temporary folders are everybody's, and names can be taken first."""
    if not hasattr(os, "getuid"):
        return folder.is_dir()
    facts = folder.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def _alive(pid: int, wrote_at: float | None) -> bool:
    """Whether a process runs, and is the one that wrote a file at `wrote_at`: numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # another user's process: not the one that wrote into our folder
    if wrote_at is None:
        return True
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lines = Path("/proc/stat").read_text().splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
        started = booted + int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return True  # no /proc: the number has to do
    return started <= wrote_at + _SLACK_S


@dataclass(frozen=True, slots=True)
class WorkerRates:
    """A worker between two looks.

    Attributes:
        items_per_s: Items a second.
        mean_batch: Items a batch; None: it ran none.
        busy: Share of the time that it worked, 0 to 1 an instance.
    """

    items_per_s: float
    mean_batch: float | None
    busy: float


@dataclass(frozen=True, slots=True)
class Rates:
    """An engine between two looks.

    Attributes:
        images_per_s: Images a second.
        faces_per_s: Faces a second.
        workers: A worker each, in the order of the later status.
    """

    images_per_s: float
    faces_per_s: float
    workers: tuple[WorkerRates, ...]


def rates(before: Status | None, now: Status) -> Rates:
    """What an engine did from one status to a later one; since it was opened where `before` is None or another's."""
    if before is None or (before.pid, before.started) != (now.pid, now.started) or before.time >= now.time:
        before = Status(now.pid, now.started, now.started, now.pack, now.placement)
    seconds = max(now.time - before.time, 1e-9)
    earlier = {(worker.name, worker.role): worker for worker in before.workers}

    def of(worker: WorkerLoad) -> WorkerRates:
        old = earlier.get((worker.name, worker.role)) or WorkerLoad(worker.name, worker.role, worker.state)
        items, batches = max(worker.items - old.items, 0), max(worker.batches - old.batches, 0)
        mean = items / batches if batches else None
        return WorkerRates(items / seconds, mean, max(worker.busy_s - old.busy_s, 0.0) / seconds)

    images, faces = max(now.images - before.images, 0), max(now.faces - before.faces, 0)
    return Rates(images / seconds, faces / seconds, tuple(of(worker) for worker in now.workers))
