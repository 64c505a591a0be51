"""From a pack and a target to a profile: costs, search, evidence.

Owns the order of the work and what is written. Measures through `trial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from facefleet.bench.results import envelope, load_average
from facefleet.bench.tune.arrivals import Arrivals, settle
from facefleet.bench.tune.forecast import Costs, forecast
from facefleet.bench.tune.search import Forecast, Found, Measured, Tried, pareto, search
from facefleet.bench.tune.space import Choice, Space, cpu_space, cuda_space
from facefleet.bench.tune.trial import Trial, isolated
from facefleet.config import Settings, available_threads, write_profile
from facefleet.config.keys import check_setting
from facefleet.errors import ConfigError
from facefleet.types import EncodedImage

_LEAST, _MOST = 8, 48
_SHARE = 0.3
_ROOM = 4096
"""Photos inside while arrivals are measured: nothing is refused, so that what waits is seen."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked for.

    Attributes:
        p99_s: The latency to hold.
        rate: Photos a second that have to be answered; 0: as many as possible.
        memory_bytes: Most memory; 0: any.
        faces: Faces a photo, for drawn photos.
    """

    p99_s: float
    rate: float = 0.0
    memory_bytes: int = 0
    faces: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of it.

    Attributes:
        goal: What was asked for.
        space: What was considered.
        found: The search.
        threads: Processors.
        result: The evidence, to be written.
        arrivals: What became of the fastest when photos came at random moments; none where `goal.rate` is given, since
            all measurements are of that kind then.
    """

    goal: Goal
    space: Space
    found: Found[Choice]
    threads: int
    result: dict[str, Any]
    arrivals: Sequence[Arrivals[Choice]] = ()

    def write(self, path: Path, pack: str, evidence: Path) -> None:
        """Write the profile.

        Args:
            path: TOML.
            pack: That it is for.
            evidence: Where `result` is.

        Raises:
            ConfigError: Nothing holds the target, or the file cannot be written.
        """
        best = self.found.best
        if best is None:
            message, hint = self.missed()
            raise ConfigError(message, hint=hint)
        tuned = {
            "pack": pack,
            "p99_ms": 1000 * self.goal.p99_s,
            "rate_per_s": self.goal.rate,
            "memory_bytes": self.goal.memory_bytes,
            "faces_per_image": list(self.goal.faces),
            "measured_images_per_s": round(best.images_per_s, 2),
            "measured_p99_ms": round(1000 * best.p99_s, 2),
            "measurements": self.found.measurements,
            "made": self.result["made"],
            "evidence": evidence.name,
        }
        for each in self.arrivals:
            if each.choice == best.choice and not each.seen.error:
                tuned |= {"arrivals_per_s": round(each.rate, 2), "arrivals_p99_ms": round(1000 * each.seen.p99_s, 2)}
        write_profile(path, tuned, best.choice.settings(self.threads, places_within(self.goal, best)))

    def missed(self) -> tuple[str, str]:
        """What to say where nothing holds the target, and what to do."""
        answered = [each for each in self.found.tried if not each.failed]
        if not answered:
            why = next((each.failed for each in self.found.tried), "nothing was measured")
            return f"no configuration works here: {why}", "see `facefleet doctor`"
        nearest = min(answered, key=lambda each: each.p99_s)
        return (
            f"no configuration answers within p99 {1000 * self.goal.p99_s:g} ms"
            + (f" and {self.goal.memory_bytes / 2**30:.1f} GiB" if self.goal.memory_bytes else "")
            + f"; the nearest is {nearest.choice.key}: p99 {1000 * nearest.p99_s:.1f} ms, "
            f"{nearest.memory_bytes / 2**30:.1f} GiB",
            "allow more time, fewer faces, a lower rate or a smaller detector size, or add devices",
        )


def places_within(goal: Goal, best: Tried[Choice]) -> int:
    """Photos that may be inside: twice as many as are answered within the target (Little's law).

    What is in flight keeps the devices busy in a closed loop; a server that took no more would refuse every burst. One
    of a hundred may take longer than the target, so the queue is longer than that, too.
    """
    return math.ceil(2 * goal.p99_s * best.images_per_s)


def choose_space(settings: Settings, threads: int) -> Space:
    """What is considered on this machine, with these settings' backend and devices.

    Raises:
        BackendError: A device or backend is missing.
    """
    from facefleet.backends import choose, device_names

    wanted = settings.runtime
    choice = choose(wanted)
    names = ("auto", "fp32") if wanted.precision == "auto" else (wanted.precision,)
    precisions = names if choice.precision != "fp32" else names[-1:]
    if wanted.devices.startswith("cuda"):
        return cuda_space(device_names(wanted.devices), precisions)
    return cpu_space(threads, _processors(threads), precisions)


def _processors(threads: int) -> Sequence[int]:
    import os

    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(threads))
    return allowed[:threads]


def measured_costs(settings: Settings, space: Space, photos: Sequence[bytes], faces: float) -> dict[str, Costs]:
    """What a photo costs, by precision: latency curves of both networks, and what the rest takes.

    Raises:
        FacefleetError: The pack or the backend cannot be used.
    """
    from facefleet.models.load import load_models
    from facefleet.pipeline.local import stage_curves

    found = {}
    host_s = None
    batch = replace(settings.batch, detect=max(space.detects), embed=max(space.embeds))
    for precision in space.precisions:
        tuned = replace(settings, runtime=replace(settings.runtime, precision=check_precision(precision)))
        if host_s is None:
            host_s = _host_seconds(tuned, photos)
        with ExitStack() as stack:
            curves = stage_curves(load_models(settings.pack, tuned, stack), batch)
        found[precision] = Costs(curves["detect"], curves["embed"], host_s, faces)
    return found


def check_precision(name: str) -> Any:  # noqa: ANN401  # one of a few texts
    """A precision that settings have."""
    return check_setting("runtime.precision", name, "tune")


def _host_seconds(settings: Settings, photos: Sequence[bytes]) -> float:
    """Of reading, decoding and aligning a photo."""
    from facefleet.pipeline import Engine

    quiet = replace(settings, runtime=replace(settings.runtime, status=False, devices="auto", placement="auto"))
    if settings.runtime.devices.startswith("cuda"):
        first = settings.runtime.devices.partition(",")[0]
        quiet = replace(quiet, runtime=replace(quiet.runtime, devices=first))
    images = [EncodedImage(data) for data in photos]
    with Engine(quiet) as engine:
        for _ in engine.map(images):
            pass
        before = engine.stage_seconds()
        for image in images:  # one at a time: nothing waits for a processor
            engine.analyze(image)
        after = engine.stage_seconds()
    stages = ("load", "decode", "align")
    spent = sum(after[stage][1] - before[stage][1] for stage in stages if stage in after and stage in before)
    return max(spent / len(images), 1e-5)


def tune(
    settings: Settings,
    goal: Goal,
    photos: tuple[bytes, ...],
    *,
    space: Space | None = None,
    measurements: int = 0,
    seconds: float = 3.0,
    measure: Callable[[Trial], Measured] = isolated,
    progress: Progress = lambda _: None,
) -> Tuned:
    """Find the fastest configuration that holds the target.

    Args:
        settings: What stays as it is: pack, backend, devices, detector sizes.
        goal: What is asked for.
        photos: Encoded; what is measured with.
        space: What is considered; default: what makes sense on the devices.
        measurements: Most of them; 0: three tenths of the configurations, 8 to 48.
        seconds: Of each.
        measure: Measures; a process each by default.
        progress: Is told what happens next.

    Raises:
        FacefleetError: The pack or the backend cannot be used.
    """
    threads = settings.runtime.threads or available_threads()
    space = space or choose_space(settings, threads)
    choices = space.choices()
    budget = measurements or min(max(_LEAST, int(_SHARE * len(choices))), _MOST)
    load = load_average()
    progress("latency curves")
    costs = measured_costs(settings, space, photos, sum(goal.faces) / len(goal.faces))
    cuda = settings.runtime.devices.startswith("cuda")

    def expected(choice: Choice) -> Forecast:
        return forecast(choice, costs, threads=threads, accelerated=cuda, offered=goal.rate)

    def measured(choice: Choice) -> Measured:
        tuned = with_choice(settings, choice, threads)
        return measure(
            Trial(settings=tuned, photos=photos, in_flight=choice.in_flight, seconds=seconds, rate=goal.rate)
        )

    found = search(
        choices,
        expected,
        measured,
        target_s=goal.p99_s,
        budget=budget,
        memory_bytes=goal.memory_bytes,
        progress=progress,
    )
    arrivals: list[Arrivals[Choice]] = []
    if not goal.rate:

        def asked(choice: Choice, rate: float) -> Measured:
            room = with_choice(settings, choice, threads)
            room = replace(room, batch=replace(room.batch, max_images=_ROOM))
            return measure(
                Trial(settings=room, photos=photos, in_flight=choice.in_flight, seconds=3 * seconds, rate=rate)
            )

        found, arrivals = settle(found, asked, target_s=goal.p99_s, memory_bytes=goal.memory_bytes, progress=progress)
    result = _evidence(goal, found, space, settings, costs, len(choices), load)
    result["arrivals"] = [_arrivals_json(each) for each in arrivals]
    return Tuned(goal, space, found, threads, result, arrivals)


def _arrivals_json(each: Arrivals[Choice]) -> dict[str, Any]:
    shown = {"key": each.choice.key, "arrivals_per_s": round(each.rate, 3), "holds": each.holds}
    if each.seen.error:
        return shown | {"error": each.seen.error}
    return shown | {"p50_s": round(each.seen.p50_s, 6), "p99_s": round(each.seen.p99_s, 6)}


def with_choice(settings: Settings, choice: Choice, threads: int) -> Settings:
    """Settings with a configuration in them."""
    for key, value in choice.settings(threads).items():
        section, _, name = key.partition(".")
        checked = check_setting(key, value, "tune")
        settings = replace(settings, **{section: replace(getattr(settings, section), **{name: checked})})
    return settings


def _evidence(
    goal: Goal,
    found: Found[Choice],
    space: Space,
    settings: Settings,
    costs: Mapping[str, Costs],
    grid: int,
    load: float | None,
) -> dict[str, Any]:
    body = {
        "grid": grid,
        "measured": len(found.tried),
        "measurements": found.measurements,
        "space": asdict(space),
        "costs": {
            name: {
                "host_ms": round(1000 * cost.host_s, 4),
                "detect_ms": {str(size): round(1000 * cost.detect.seconds(size), 4) for size in cost.detect.buckets},
                "embed_ms": {str(size): round(1000 * cost.embed.seconds(size), 4) for size in cost.embed.buckets},
            }
            for name, cost in costs.items()
        },
        "points": [point_json(each, goal) for each in found.tried if not each.failed],
        "failed": {each.choice.key: each.failed for each in found.tried if each.failed},
        "pareto": [each.choice.key for each in pareto(found.tried)],
        "chosen": None if found.best is None else found.best.choice.key,
    }
    asked = {
        "pack": settings.pack,
        "p99_ms": 1000 * goal.p99_s,
        "rate": goal.rate,
        "memory_bytes": goal.memory_bytes,
        "faces_per_image": list(goal.faces),
    }
    return envelope("tune", asked, body, load)


def point_json(tried: Tried[Choice], goal: Goal) -> dict[str, Any]:
    """One configuration and what was measured of it."""
    return {
        "key": tried.choice.key,
        "images_per_s": round(tried.images_per_s, 3),
        "p50_s": round(tried.p50_s, 6),
        "p99_s": round(tried.p99_s, 6),
        "memory_bytes": tried.memory_bytes,
        "seconds": round(sum(shot.seconds for shot in tried.shots), 3),
        "shots": [{"images_per_s": round(s.images_per_s, 3), "p99_s": round(s.p99_s, 6)} for s in tried.shots],
        "holds": tried.holds(goal.p99_s, goal.memory_bytes),
    }
