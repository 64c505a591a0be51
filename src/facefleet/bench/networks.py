"""Which network is measured: one of a pack, or any ONNX file, made ready for a backend.

Owns the names that the command takes. Rewrites go through the store, as for an engine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from facefleet.backends import InputContract
from facefleet.errors import ConfigError
from facefleet.models.prepare import PreparedModel, prepare_detector, prepare_embedder
from facefleet.packs import DetectorSpec, EmbedderSpec, Store

_HALF = (127.5, 127.5, 127.5)
_CASTING = ("torch", "tensorrt")
_DETECTOR_PX, _CHIP_PX = 640, 112
Role = Literal["detector", "embedder"]


@dataclass(frozen=True, slots=True)
class Network:
    """What can be measured.

    Attributes:
        name: What it is called in tables.
        role: What it does.
        size: Usual height and width of its input, in pixels.
        contract: How pictures become its input.
        pack: Name of its pack; empty for a file.
        file: The file; empty for a pack.
    """

    name: str
    role: Role
    size: tuple[int, int]
    contract: InputContract
    pack: str = ""
    file: Path = Path()

    def prepared(self, store: Store, backend: str, precision: str) -> PreparedModel:
        """The graph, ready for a backend.

        Raises:
            PackError: It is missing or not understood.
        """
        if self.pack:
            prepare = prepare_detector if self.role == "detector" else prepare_embedder
            return prepare(store, store.manifest(self.pack), backend=backend, precision=precision)
        return _prepared_file(self, store, backend, precision)


def find_networks(names: list[str], store: Store) -> list[Network]:
    """What these names mean.

    Args:
        names: ``PACK`` (both networks), ``PACK:detector``, ``PACK:embedder``, or paths of ONNX files.
        store: Where packs are.

    Raises:
        ConfigError: Nothing was named, or something twice.
        PackNotFoundError: There is no such pack.
        GraphError: A file is no network of pictures.
    """
    if not names:
        raise ConfigError("no network was named", hint="name a pack, PACK:detector, PACK:embedder or MODEL.onnx")
    found: list[Network] = []
    for name in names:
        found += _of_file(Path(name)) if name.endswith(".onnx") else _of_pack(name, store)
    titles = [network.name for network in found]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise ConfigError(f"{twice} was named twice", hint="name each network once; files need different names")
    return found


def _of_pack(name: str, store: Store) -> list[Network]:
    pack, colon, role = name.rpartition(":")
    if not colon or role not in ("detector", "embedder"):
        pack, role = name, ""
    manifest = store.manifest(pack).manifest
    specs: list[tuple[Role, DetectorSpec | EmbedderSpec]] = [
        ("detector", manifest.detector),
        ("embedder", manifest.embedder),
    ]
    found = []
    for kind, spec in specs:
        if role in ("", kind):
            size = (spec.height, spec.width) if isinstance(spec, EmbedderSpec) else (_DETECTOR_PX, _DETECTOR_PX)
            title = f"{manifest.name}:{kind}"
            found.append(Network(title, kind, size, InputContract(spec.color, spec.mean, spec.std), pack=pack))
    return found


def _of_file(path: Path) -> list[Network]:
    from facefleet.models.build.inspect import inspect_model

    report = inspect_model(path)
    embedder = report.layout.startswith("embedder")
    shape = next(iter(report.inputs.values()), [])
    sides = [side for side in shape[2:4] if isinstance(side, int)]
    usual = _CHIP_PX if embedder else _DETECTOR_PX
    size = (sides[0], sides[1]) if len(sides) == 2 else (usual, usual)
    role: Role = "embedder" if embedder else "detector"
    return [Network(path.stem, role, size, InputContract("rgb", _HALF, _HALF), file=path.resolve())]


def _prepared_file(network: Network, store: Store, backend: str, precision: str) -> PreparedModel:
    from facefleet.models.build.cast import cast_graph
    from facefleet.models.build.dynamic import dynamic_onnx
    from facefleet.packs.fetch import digest, locked, publish

    casts = precision if backend in _CASTING and precision in ("fp16", "bf16") else ""
    prelu = backend == "onnxruntime"
    sha256 = digest(network.file)
    key = hashlib.sha256(f"bench 1 {sha256} {network.role} {prelu} {casts}".encode()).hexdigest()[:24]
    target = store.home / "prepared" / key / network.file.name
    with locked(target.parent / "lock"):
        if not target.is_file():
            contract = network.contract
            graph, _ = dynamic_onnx(network.file, role=network.role, mean=contract.mean, std=contract.std, prelu=prelu)
            if casts:
                graph = cast_graph(graph, "fp16" if casts == "fp16" else "bf16")
            part = target.with_suffix(".part")
            part.write_bytes(graph.SerializeToString())
            publish(part, target)
    return PreparedModel(target, sha256)
