"""``facefleet top``: what the running engines of this user are doing, as a table that goes on.

Reads the status files that engines write (`telemetry.status`); rates are differences between two of them. Changes
nothing, and needs no engine's help, so it also shows one that hangs. What it sees can be recorded, and looked at again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli.exits import Exit, command
from facefleet.cli.terminal import terminal
from facefleet.errors import ConfigError
from facefleet.telemetry.recording import Look, StatusRecorder, read_recording
from facefleet.telemetry.status import Rates, Status, WorkerLoad, WorkerRates, rates, read_statuses, status_folder

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDE = 118
_SILENT_S = 5.0
_PATIENCE_S = 2.0
_GB = 2**30
_STATES = {"ready": "green", "starting": "yellow", "warming": "yellow", "draining": "cyan", "failed": "bold red"}
_PLACEMENTS = {"data": "data-parallel", "stage": "stage-parallel", "local": "one process"}
_NONE = "no engine is running"


@command
def top(
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line a look.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where status files are; default: this user's.")
    ] = None,
    record: Annotated[Path | None, typer.Option("--record", help="Write every look to this file too.")] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Show what was recorded in this file; --once: its end.")
    ] = None,
    speed: Annotated[float, typer.Option("--speed", min=0.01, help="Of a replay.")] = 1.0,
) -> Exit:
    """Show running engines: devices, batches, queues, images/s, faces/s, memory. Ctrl-C ends it."""
    if record is not None and replay is not None:
        raise ConfigError("--record with --replay", hint="record what runs, or look at what was recorded")
    if replay is not None:
        return _replayed(read_recording(replay), speed, once=once, as_json=as_json)
    with ExitStack() as stack:
        recorder = None if record is None else stack.enter_context(StatusRecorder(record))
        watch = _Watch(folder or status_folder(), recorder)
        if not watch.look():
            if as_json:
                print(json.dumps({"engines": []}))
            else:
                print(f"{_NONE}: engines that you open show up here ({watch.folder})")
            return Exit.DONE
        return _watched(watch, interval, once=once, as_json=as_json)


def _watched(watch: _Watch, interval: float, *, once: bool, as_json: bool) -> Exit:
    try:
        if as_json:
            _print_json(watch, interval, once=once)
        elif once or not sys.stdout.isatty():
            watch.wait(interval)
            console = terminal()
            console.print(_view(watch, console.width))
        else:
            _live(watch, interval)
    except KeyboardInterrupt:
        pass
    return Exit.DONE


def _replayed(looks: list[Look], speed: float, *, once: bool, as_json: bool) -> Exit:
    """Show a recording; in a pipe its end, or every look as JSON, without waiting."""
    watch = _Watch(Path())
    try:
        if as_json:
            for look in looks[-1:] if once else looks:
                watch.take(look.statuses, look.at)
                entry = {"at": look.at, "engines": [_as_json(status, rate) for status, rate in watch.engines()]}
                print(json.dumps(entry), flush=True)
        elif sys.stdout.isatty() and not once:
            _live_replay(watch, looks, speed)
        else:
            for look in looks:
                watch.take(look.statuses, look.at)
            console = terminal()
            console.print(_view(watch, console.width))
    except KeyboardInterrupt:
        pass
    return Exit.DONE


def _live_replay(watch: _Watch, looks: list[Look], speed: float) -> None:
    from rich.live import Live

    console = terminal()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for number, look in enumerate(looks):
            watch.take(look.statuses, look.at)
            live.update(_view(watch, console.width), refresh=True)
            if number + 1 < len(looks):
                time.sleep(max(looks[number + 1].at - look.at, 0.0) / speed)


class _Watch:
    """The last two different statuses of every engine."""

    def __init__(self, folder: Path, recorder: StatusRecorder | None = None) -> None:
        self.folder = folder
        self.at = time.time()
        self._recorder = recorder
        self._before: dict[tuple[int, float], Status] = {}
        self._now: dict[tuple[int, float], Status] = {}

    def look(self) -> bool:
        """Read the statuses; whether there are any."""
        statuses = read_statuses(self.folder)
        at = time.time()
        if self._recorder is not None:
            self._recorder.write(Look(at, statuses))
        return self.take(statuses, at)

    def take(self, statuses: list[Status], at: float) -> bool:
        """These are the statuses at this time; whether there are any."""
        self.at = at
        found = {(status.pid, status.started): status for status in statuses}
        for key, status in found.items():
            last = self._now.get(key)
            if last is not None and last.time != status.time:
                self._before[key] = last
        self._before = {key: status for key, status in self._before.items() if key in found}
        self._now = found
        return bool(found)

    def wait(self, interval: float) -> None:
        """Look again after an interval, and then until each engine has written anew, with some patience."""
        time.sleep(interval)
        until = time.monotonic() + _PATIENCE_S
        while self.look() and self._now.keys() - self._before.keys() and time.monotonic() < until:
            time.sleep(0.1)

    def engines(self) -> list[tuple[Status, Rates]]:
        """Every engine and what it did between its last two statuses; since its start where there is but one."""
        return [(status, rates(self._before.get(key), status)) for key, status in self._now.items()]


def _print_json(watch: _Watch, interval: float, *, once: bool) -> None:
    watch.wait(interval)
    while True:
        print(json.dumps({"engines": [_as_json(status, rate) for status, rate in watch.engines()]}), flush=True)
        if once:
            return
        time.sleep(interval)
        watch.look()


def _as_json(status: Status, rate: Rates) -> Mapping[str, Any]:
    entry = status.as_json()
    for worker, found in zip(entry["workers"], rate.workers, strict=True):
        worker |= {"items_per_s": found.items_per_s, "mean_batch": found.mean_batch, "busy": found.busy}
    return {**entry, "images_per_s": rate.images_per_s, "faces_per_s": rate.faces_per_s}


def _live(watch: _Watch, interval: float) -> None:
    from rich.live import Live

    console = terminal()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_view(watch, console.width), refresh=True)
            time.sleep(interval)
            watch.look()


def _view(watch: _Watch, width: int) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    engines = watch.engines()
    if not engines:
        return Text(_NONE, style="dim")
    parts: list[RenderableType] = []
    for status, rate in engines:
        parts += [
            Text(),
            *_headline(status, rate, watch.at),
            Padding(_table(status, rate, wide=width >= _WIDE), (0, 0, 0, 1)),
        ]
    return Group(*parts[1:])


def _headline(status: Status, rate: Rates, now: float) -> Iterator[Text]:
    """Which engine it is, and what it does as a whole."""
    from rich.text import Text

    silent = now - status.time
    placement = _PLACEMENTS.get(status.placement, status.placement)
    first = Text(" ", no_wrap=True, overflow="ellipsis").append(status.pack, style="bold")
    first.append(f"  {placement}  pid {status.pid}  up {_span(status.time - status.started)}", style="dim")
    if silent > _SILENT_S:
        first.append(f"  silent for {_span(silent)}", style="bold red")
    yield first
    second = Text(" ", no_wrap=True, overflow="ellipsis")
    second.append(f"{_rate(rate.images_per_s)} img/s", style="bold cyan")
    second.append("  ")
    second.append(f"{_rate(rate.faces_per_s)} faces/s", style="bold cyan")
    second.append(f"  {status.images:,} images, {status.faces:,} faces so far", style="dim")
    yield second


def _table(status: Status, rate: Rates, *, wide: bool) -> Table:
    from rich.table import Table

    padding = (0, 2) if wide else (0, 1)
    table = Table(box=None, padding=padding, collapse_padding=True, pad_edge=False, header_style="dim underline")
    # Widths of their own keep the tables of several engines in line.
    for title, width in (("device", 7), ("role", 6), ("state", 8)):
        table.add_column(title, min_width=width, no_wrap=True)
    for title, width in (("in flight" if wide else "fly", 3), ("batch", 5), ("queue", 5), ("img/s", 6), ("faces/s", 7)):
        table.add_column(title, min_width=width, justify="right", no_wrap=True)
    table.add_column("busy", min_width=15 if wide else 4, justify="left" if wide else "right", no_wrap=True)
    table.add_column("memory GB" if wide else "GB", min_width=11 if wide else 9, justify="right", no_wrap=True)
    table.add_column("temp", min_width=4, justify="right", no_wrap=True)
    if wide:
        table.add_column("restarts", justify="right", no_wrap=True)
    shown: set[str] = set()
    for worker, found in zip(status.workers, rate.workers, strict=True):
        queue = "" if worker.role in shown else f"{status.queue.get(worker.role, 0):,}"
        shown.add(worker.role)
        table.add_row(*_row(worker, found, queue, wide=wide))
    return table


def _row(worker: WorkerLoad, found: WorkerRates, queue: str, *, wide: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    yield worker.name
    yield worker.role
    yield Text(worker.state, style=_STATES.get(worker.state, "dim"))
    yield f"{worker.in_flight:,}"
    yield "" if found.mean_batch is None else f"{found.mean_batch:.1f}"
    yield queue
    yield "" if worker.role == "embed" else _rate(found.items_per_s)
    yield _rate(found.items_per_s) if worker.role == "embed" else ""
    # A device that does not say how busy it is: what its worker spent on batches.
    yield _busy(min(found.busy, 1.0) if worker.utilization is None else worker.utilization, wide=wide)
    yield _memory(worker, wide=wide)
    hot = worker.temperature is not None and worker.temperature >= 85
    yield Text("" if worker.temperature is None else f"{worker.temperature:.0f}°C", style="red" if hot else "")
    if wide:
        yield Text(str(worker.restarts), style="yellow" if worker.restarts else "dim")


def _busy(share: float, *, wide: bool) -> Text:
    from rich.text import Text

    text = Text()
    if wide:
        full = round(10 * share)
        text.append("━" * full, style="cyan").append("─" * (10 - full), style="bright_black").append(" ")
    return text.append(f"{100 * share:3.0f}%")


def _memory(worker: WorkerLoad, *, wide: bool) -> Text:
    from rich.text import Text

    used, total = worker.memory_bytes, worker.memory_total_bytes
    if used is None:
        return Text()
    if not total:
        return Text(f"{used / _GB:.1f}")
    separator = " / " if wide else "/"
    return Text(f"{used / _GB:.1f}{separator}{total / _GB:.0f}", style="yellow" if used > 0.9 * total else "")


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
