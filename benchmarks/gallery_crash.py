"""A gallery that is killed in the middle of its work, again and again; and one writer beside eight readers.

    python benchmarks/gallery_crash.py [--rounds 500] [--seconds 60] [--readers 8] [--index flat]

Each round a process enrols, moves, erases and searches until it is killed with SIGKILL at a random moment; then the
gallery is opened, every row is checked, and every acknowledged change must be there, with every face found as the
person it is. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.errors import EraseIncompleteError
from facefleet.gallery import Gallery, NewSample, PipelineIdentity
from facefleet.gallery import view as gallery_view
from facefleet.gallery.check import check_gallery
from facefleet.gallery.index import layered

DIMENSION = 64
IDENTITY = PipelineIdentity("c" * 64, DIMENSION, 0.9, {"pack": "none"})
_MOST_PEOPLE = 150


def vector(seed: int) -> np.ndarray:
    """(d,) float32: the face of a seed, the same every time."""
    value = np.random.default_rng(seed).normal(size=DIMENSION)
    return (value / np.linalg.norm(value)).astype(np.float32)


def small_limits() -> None:
    """Snapshots and rebuilds all the time, so that kills hit them, too."""
    gallery_view._SNAPSHOT_ROWS = 10
    layered._LEAST_REBUILD = 25


def work(folder: Path, log: Path, seed: int) -> None:
    """Change the gallery until killed; what is done is logged before and after.

    The people in the gallery carry the seeds of their faces as sources, so that the process knows what there is.
    """
    small_limits()
    generator = random.Random(seed)
    with log.open("a", buffering=1) as out, Gallery.open(folder) as gallery:
        state = {person.id: _seeds(gallery, person.id) for person in gallery.people()}
        number = seed * 1_000_000
        while True:
            action = generator.choice(["new", "new", "more", "search", "search", "erase", "move"])
            people = sorted(state)
            if action in ("erase", "move", "more") and len(people) < 3:
                action = "new"
            if len(people) > _MOST_PEOPLE:
                action = "erase"
            number += 10
            entry: dict[str, Any] = {"do": action}
            if action == "new":
                entry |= {"name": f"n{number}", "seeds": [number, number + 1]}
            elif action == "more":
                entry |= {"person": generator.choice(people), "seeds": [number]}
            elif action == "erase":
                entry |= {"person": generator.choice(people)}
            elif action == "move":
                into, other = generator.sample(people, 2)
                entry |= {"person": into, "other": other}
            out.write(json.dumps({"begin": entry}) + "\n")
            _act(gallery, entry, state, generator)
            out.write(json.dumps({"ack": entry}) + "\n")


def _seeds(gallery: Gallery, person: int) -> list[int]:
    return sorted(int(sample.source or 0) for sample in gallery.samples(person))


def _faces(seeds: list[int]) -> list[NewSample]:
    return [NewSample(vector(seed), source=str(seed)) for seed in seeds]


def _act(gallery: Gallery, entry: dict[str, Any], state: dict[int, list[int]], generator: random.Random) -> None:
    action = entry["do"]
    if action == "new":
        person, _ = gallery.enrol(entry["name"], _faces(entry["seeds"]), fingerprint=IDENTITY.fingerprint)
        entry["person"] = person
        state[person] = list(entry["seeds"])
    elif action == "more":
        gallery.enrol(entry["person"], _faces(entry["seeds"]), fingerprint=IDENTITY.fingerprint)
        state[entry["person"]] += entry["seeds"]
    elif action == "erase":
        gallery.erase(entry["person"])
        del state[entry["person"]]
    elif action == "move":
        gallery.merge(entry["person"], entry["other"])
        state[entry["person"]] += state.pop(entry["other"])
    else:
        for person in generator.sample(sorted(state), min(3, len(state))):
            seed = generator.choice(state[person])
            match = gallery.identify(vector(seed), fingerprint=IDENTITY.fingerprint)[0]
            assert [each.person for each in match] == [person], (seed, person, match)


def apply(state: dict[int, list[int]], entry: dict[str, Any], person: int | None = None) -> dict[int, list[int]]:
    """What a logged change does to what is expected."""
    fresh = {key: list(value) for key, value in state.items()}
    action = entry["do"]
    if action == "new":
        key = entry.get("person", person)
        if key is not None:
            fresh[key] = list(entry["seeds"])
    elif action == "more":
        fresh[entry["person"]] += entry["seeds"]
    elif action == "erase":
        del fresh[entry["person"]]
    elif action == "move":
        fresh[entry["person"]] += fresh.pop(entry["other"])
    return fresh


def verify(folder: Path, expected: list[dict[int, list[int]]]) -> dict[int, list[int]]:
    """Open the gallery and hold it against what may be in it; returns which it is."""
    with Gallery.open(folder) as gallery:
        report = check_gallery(gallery)
        assert not report.problems, report.problems
        found = {person.id: _seeds(gallery, person.id) for person in gallery.people()}
        wanted = [{key: sorted(value) for key, value in state.items()} for state in expected]
        assert found in wanted, "an acknowledged change is lost, or one that never was is there"
        owners = {seed: person for person, seeds in found.items() for seed in seeds}
        if owners:
            seeds = sorted(owners)
            answers = gallery.identify(np.stack([vector(s) for s in seeds]), fingerprint=IDENTITY.fingerprint)
            for seed, answer in zip(seeds, answers, strict=True):
                assert [match.person for match in answer] == [owners[seed]], "a wrong identity"
    return found


def rounds(
    folder: Path, count: int, *, seed: int = 0, longest_s: float = 0.4, index: str = "flat"
) -> dict[str, object]:
    """Kill a working process `count` times.

    Returns:
        Changes acknowledged, and kills that hit a change that had begun.
    """
    generator = random.Random(seed)
    Gallery.create(folder, IDENTITY, index=index).close()
    state: dict[int, list[int]] = {}
    acknowledged = hits = 0
    for turn in range(count):
        log = folder.with_name(f"{folder.name}.{turn}.log")
        log.touch()
        command = [sys.executable, __file__, "--work", str(folder), "--log", str(log), "--seed", str(seed + turn + 1)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            while not log.stat().st_size and process.poll() is None:
                time.sleep(0.001)
            time.sleep(generator.uniform(0, longest_s))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            _, errors = process.communicate()
        finally:
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL, errors.decode()
        pending = None
        for line in log.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # cut off while it was written
            event = json.loads(line)
            if "ack" in event:
                state, pending = apply(state, event["ack"]), None
                acknowledged += event["ack"]["do"] != "search"
            else:
                pending = event["begin"]
        expected = [state]
        if pending is not None and pending["do"] != "search":
            hits += 1
            with Gallery.open(folder) as gallery:
                newest = max((person.id for person in gallery.people()), default=None)
            expected.append(apply(state, pending, newest))
        state = verify(folder, expected)
        log.unlink()
    return {"index": index, "rounds": count, "acknowledged": acknowledged, "kills_within_a_change": hits}


def _read(folder: Path, seconds: float, seed: int, results: Any) -> None:  # noqa: ANN401  # a queue
    """A reader: whoever is always there must always be found; whoever comes and goes is right or not there."""
    small_limits()
    generator = random.Random(seed)
    searches = 0
    problem = ""
    try:
        with Gallery.open(folder) as gallery:
            end = time.monotonic() + seconds
            while not problem and (not searches or time.monotonic() < end):
                fixed, moving = generator.randrange(20), generator.randrange(100)
                queries = np.stack([vector(fixed), vector(1000 + moving)])
                first, second = gallery.identify(queries, fingerprint=IDENTITY.fingerprint, k=3)
                if [match.name for match in first] != [f"fixed {fixed}"] or first[0].score < 0.999999:
                    problem = f"fixed {fixed}: {first}"
                if second and ([match.name for match in second] != [f"moving {moving}"] or second[0].score < 0.999999):
                    problem = f"moving {moving}: {second}"
                searches += 1
    except Exception as error:  # whatever it is, it is the result
        problem = repr(error)
    results.put((searches, problem))


def readers_and_writer(folder: Path, seconds: float, readers: int) -> dict[str, object]:
    """One process changes all the time, others search."""
    small_limits()
    with Gallery.create(folder, IDENTITY) as gallery:
        for number in range(20):
            gallery.enrol(f"fixed {number}", _faces([number]), fingerprint=IDENTITY.fingerprint)
        context = multiprocessing.get_context("spawn")
        results: Any = context.Queue()
        processes = [context.Process(target=_read, args=(folder, seconds, i, results)) for i in range(readers)]
        for process in processes:
            process.start()
        generator = random.Random(1)
        present: dict[int, int] = {}
        writes = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number = generator.randrange(100)
            faces = _faces([1000 + number])
            if number not in present:
                present[number], _ = gallery.enrol(f"moving {number}", faces, fingerprint=IDENTITY.fingerprint)
            elif generator.random() < 0.8:
                gallery.enrol(present[number], faces, fingerprint=IDENTITY.fingerprint)
            else:
                with contextlib.suppress(EraseIncompleteError):  # readers keep the log: erased for every answer
                    gallery.erase(present.pop(number))
            writes += 1
        answers = [results.get(timeout=2 * seconds + 200) for _ in processes]
        for process in processes:
            process.join()
    problems = [problem for _, problem in answers if problem]
    crashed = [process.exitcode for process in processes if process.exitcode]
    assert not problems, problems
    assert not crashed, crashed
    return {"seconds": seconds, "readers": readers, "writes": writes, "searches": sum(count for count, _ in answers)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--index", default="flat", help="of the gallery that is killed")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.log, options.seed)
        return
    folder = Path(tempfile.mkdtemp())
    try:
        started = time.monotonic()
        crash = rounds(folder / "crash", options.rounds, seed=int(time.time()), index=options.index)
        crash["seconds"] = round(time.monotonic() - started)
        report: dict[str, object] = {"kill_9": crash}
        if options.seconds:
            report["one_writer"] = readers_and_writer(folder / "beside", options.seconds, options.readers)
        print(json.dumps(report))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
