"""Engines on disk: built once, under a lock, published only through the parity gate, found again by their key.

Owns the folder: ``<name>-<backend>-<precision>-<key>/`` with ``engine.json``, ``parity.json`` and what the backend
saved. A folder appears in one step or not at all; a killed build leaves a ``.part`` folder that the next one removes.
Safe with several processes: one builds, the others wait and get its engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from facefleet.backends import InputContract, Runner, RunnerOptions, create_runner
from facefleet.backends.base import ANY_SIZE
from facefleet.backends.facts import device_facts, runtime_version
from facefleet.errors import EngineError
from facefleet.models.build.parity import ParityReport
from facefleet.models.build.profile import Profile
from facefleet.models.prepare import CHUNK
from facefleet.packs.fetch import digest, locked, sync_folder

_log = logging.getLogger(__name__)
_FORMAT = 3


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is built from and for.

    Attributes:
        name: For people, e.g. ``sface``; part of the folder's name.
        role: What the network does.
        model: Its ONNX file, input ``images`` with a free batch.
        contract: How pictures become its input.
        backend: Key of `facefleet.backends.BACKENDS`.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``; the last is in the graph already.
        profiles: The inputs it is built for.
        device: ``cpu`` or ``cuda[:N]``.
        mode: Whether every thread works on a picture of its own, or all on one.
        fp32_layers: Layers that stay in fp32 in a lower precision, by name.
        source: The float graph that `model` was made from by `variant`; `model` itself by default.
        variant: How: everything that steers it, as plain values.
        pools: Memory pool -> bytes, for TensorRT.
        hardware_compatible: Whether a TensorRT plan runs on other GPUs too.
    """

    name: str
    role: Literal["detector", "embedder"]
    model: Path
    contract: InputContract
    backend: str
    precision: Literal["fp32", "bf16", "fp16", "int8"]
    profiles: tuple[Profile, ...]
    device: str = "cpu"
    mode: Literal["throughput", "latency"] = "throughput"
    fp32_layers: tuple[str, ...] = ()
    source: Path | None = None
    variant: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)
    hardware_compatible: bool = False

    def facts(self) -> dict[str, Any]:
        """Everything the engine depends on, as plain values; a change of any of them needs another engine."""
        return {
            "format": _FORMAT,
            "onnx_sha256": digest(self.source or self.model),
            "variant": self.variant,
            "contract": asdict(self.contract) | {"mean": list(self.contract.mean), "std": list(self.contract.std)},
            "backend": self.backend,
            "runtime": runtime_version(self.backend),
            "device": device_facts(self.device),
            "precision": self.precision,
            "profiles": [profile.to_json() for profile in self.profiles],
            "mode": self.mode,
            "fp32_layers": list(self.fp32_layers),
            "pools": self.pools,
            "hardware_compatible": self.hardware_compatible,
        }

    def options(self, *, threads: int, engine: Path | None = None) -> RunnerOptions:
        """How a runner of this engine is opened.

        Args:
            threads: Processor threads.
            engine: Folder of the engine; None compiles.
        """
        free = any(span.min != span.max for each in self.profiles for span in (each.height, each.width))
        sizes = dict.fromkeys((each.height.opt, each.width.opt) for each in self.profiles)
        return RunnerOptions(
            device=self.device,
            precision="fp32" if self.precision == "int8" else self.precision,
            instances=threads if self.mode == "throughput" and self.device == "cpu" else 1,
            threads=threads,
            warm=(*sizes, *((ANY_SIZE,) if free else ())),
            chunk=CHUNK if self.role == "embedder" else 1,
            fp32_layers=frozenset(self.fp32_layers),
            compiling="tune" if self.role == "embedder" else "fuse",  # as it is opened
            engine=engine,
            max_batch=max(each.batch.max for each in self.profiles),
            profiles=tuple(each.pictures() for each in self.profiles),
            pools=self.pools,
            hardware_compatible=self.hardware_compatible,
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that passed the gate.

    Attributes:
        folder: Where it is.
        key: Digest of everything it depends on.
        facts: Those.
        role: What the network does.
        files: File name -> sha256.
    """

    folder: Path
    key: str
    facts: dict[str, Any]
    role: str
    files: dict[str, str]

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum((self.folder / name).stat().st_size for name in self.files)

    def problems(self) -> list[str]:
        """What is wrong with its files; empty if nothing is."""
        found = []
        for name, sha256 in self.files.items():
            path = self.folder / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif digest(path) != sha256:
                found.append(f"{name} is not what was built")
        return found

    def stale(self) -> list[str]:
        """What has changed on this machine since it was built: runtime or device; empty if it can be used."""
        backend = self.facts["backend"]
        found = []
        if self.facts["format"] != _FORMAT:
            found.append("it was built by an older version")
        if (now := runtime_version(backend)) != self.facts["runtime"]:
            found.append(f"runtime was {self.facts['runtime']}, is {now}")
        was = self.facts["device"]
        if "cpu" in was and (here := device_facts("cpu")) != was:
            found.append(f"device was {was['cpu']}, is {here['cpu']}")
        return found


Gate = Callable[[Runner], ParityReport]


class EngineStore:
    """A folder of engines.

    Args:
        folder: Made when the first engine is built.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, spec: EngineSpec) -> Engine | None:
        """The engine of a spec, if it has been built for just this model, runtime and device."""
        return self._read(self._target(spec, key_of(spec.facts())))

    def match(
        self, spec: EngineSpec, *, sides: tuple[tuple[int, int], ...], progress: Callable[[str], None] = _log.warning
    ) -> Engine | None:
        """An engine that can stand in for `spec` whatever profiles, mode, recipe and calibration it was built with.

        Args:
            spec: Model, contract, backend, precision and device that are needed; its profiles are not looked at.
            sides: Heights and widths that it has to take.
            progress: Told why an engine of the same model does not fit.
        """
        wanted = spec.facts()
        for engine in self.engines():
            facts = engine.facts
            same = ("format", "onnx_sha256", "contract", "backend", "precision")
            if any(facts.get(key) != wanted[key] for key in same):
                continue
            profiles = [Profile.from_json(each) for each in facts["profiles"]]
            reasons = engine.stale()
            reasons += [
                f"its profile does not take {h} x {w}"
                for h, w in sides
                if not any(h in each.height and w in each.width for each in profiles)
            ]
            if not reasons:
                return engine
            progress(f"{engine.folder.name} does not fit and is not used: {'; '.join(reasons)}")
        return None

    def build(self, spec: EngineSpec, gate: Gate, *, threads: int) -> Engine:
        """The engine of a spec, built if it is not there.

        Args:
            spec: What to build.
            gate: Runs the parity gate on the engine as it was saved.
            threads: Processor threads it will run on.

        Raises:
            ParityError: It answers differently; nothing is published.
            BackendError: The runtime refuses it.
        """
        facts = spec.facts()
        target = self._target(spec, key_of(facts))
        with locked(self.folder / ".locks" / target.name):
            found = self._read(target)
            if found is not None:
                return found
            if target.exists():
                _log.warning("%s is not complete and is built again", target)
                shutil.rmtree(target)
            part = target.with_name(f".{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)  # of a build that was killed: the lock says nobody is at it
            part.mkdir(parents=True)
            try:
                self._build(spec, facts, part, gate, threads)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            part.replace(target)
            sync_folder(target.parent)
        found = self._read(target)
        assert found is not None
        return found

    def open(self, spec: EngineSpec, engine: Engine, *, threads: int) -> Runner:
        """A runner of an engine, not open yet."""
        return create_runner(
            spec.backend, spec.model, spec.contract, spec.options(threads=threads, engine=engine.folder)
        )

    def engines(self) -> list[Engine]:
        """All engines, by name; unfinished or foreign folders are left out."""
        if not self.folder.is_dir():
            return []
        found = (self._read(path) for path in sorted(self.folder.iterdir()) if not path.name.startswith("."))
        return [engine for engine in found if engine is not None]

    def prune(self) -> list[str]:
        """Remove engines that no longer fit this machine, damaged ones and remains of killed builds; their names."""
        removed = []
        for engine in self.engines():
            if engine.stale() or engine.problems():
                shutil.rmtree(engine.folder)
                removed.append(engine.folder.name)
        for part in self.folder.glob(".*.part") if self.folder.is_dir() else ():
            with locked(self.folder / ".locks" / part.name[1 : -len(".part")]):
                shutil.rmtree(part, ignore_errors=True)
            removed.append(part.name)
        return removed

    def _build(self, spec: EngineSpec, facts: dict[str, Any], part: Path, gate: Gate, threads: int) -> None:
        with create_runner(spec.backend, spec.model, spec.contract, spec.options(threads=threads)) as runner:
            runner.save(part)
        # What is tested is what was saved, read back.
        saved = create_runner(spec.backend, spec.model, spec.contract, spec.options(threads=threads, engine=part))
        with saved:
            report = gate(saved)
        report.require(f"{spec.name} on {spec.backend} in {spec.precision}")
        (part / "parity.json").write_text(json.dumps(report.to_json(), indent=1))
        files = {path.name: digest(path) for path in sorted(part.iterdir())}
        content = {"key": key_of(facts), "role": spec.role, "facts": facts, "files": files}
        (part / "engine.json").write_text(json.dumps(content, indent=1))
        for path in part.iterdir():
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())
        sync_folder(part)

    def _target(self, spec: EngineSpec, key: str) -> Path:
        return self.folder / f"{spec.name}-{spec.backend}-{spec.precision}-{key[:12]}"

    def _read(self, folder: Path) -> Engine | None:
        file = folder / "engine.json"
        if not file.is_file():
            return None
        try:
            content = json.loads(file.read_text())
            engine = Engine(folder, content["key"], content["facts"], content["role"], content["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{file}: not an engine of facefleet ({error})", hint="delete the folder") from error
        return engine if all((folder / name).is_file() for name in engine.files) else None


def key_of(facts: dict[str, Any]) -> str:
    """Digest of everything an engine depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
