"""FAISS segments: ``flat``, ``ivfpq`` and ``hnsw``, with parameters chosen from the size and a measured recall.

Owns the choice of parameters and the number of FAISS's threads. A segment is built once and never changed: a FAISS
index that is searched while it is written to crashes. Approximate kinds are tuned after they are built: the breadth
of the search grows until the recall at 10 on held-out queries reaches the target, and what was reached is kept.

Source: Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs", 2017 (IVF, PQ); Malkov, Yashunin,
"Efficient and robust approximate nearest neighbor search using hierarchical navigable small world graphs", 2016.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.config import available_threads
from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.gallery.index.base import Segment
from facefleet.gallery.index.flat import flat_search, refuse_options
from facefleet.types import BoolArray, F32Array

_OPTIONS = ("type", "recall", "m", "nlist")
_TYPES = ("flat", "ivfpq", "hnsw")
_SMALL = 20_000
"""Below this many rows an approximate kind is an exact one: it has too few rows to train with, and gains nothing."""
_PROBES = 256
_AT = 10
_SEED = 7
_NOISE = 0.5
"""Length of the noise added to a stored vector to make a query of it: the cosine to it becomes about 0.9."""


class FaissSegment(Segment):
    """See this module."""

    kind: ClassVar[str] = "faiss"

    def __init__(self, index: Any, breadth: int, facts: dict[str, object]) -> None:  # noqa: ANN401  # FAISS is untyped
        self._index = index
        self._breadth = breadth
        self._facts = facts
        self.exact = facts["type"] == "flat"

    @classmethod
    def build(cls, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """See `Segment.build`.

        Options: ``type`` (flat, ivfpq, hnsw), ``recall`` at 10 to reach (0.95), ``m`` (bytes of a PQ code, or links
        of an HNSW node), ``nlist`` (cells of IVF).
        """
        faiss = load_faiss()
        refuse_options(cls.kind, options, _OPTIONS)
        wanted = options.get("type", "flat")
        if wanted not in _TYPES:
            raise ConfigError(f"index option type={wanted!r}", hint=f"choose one of {', '.join(_TYPES)}")
        recall = float(options.get("recall", 0.95))
        if not 0 < recall <= 1:
            raise ConfigError(f"index option recall={recall}", hint="above 0, at most 1")
        n, d = vectors.shape
        kind = wanted if n >= _SMALL else "flat"
        facts: dict[str, object] = {"type": kind, "wanted": wanted, "rows": n}
        if kind == "flat":
            index = faiss.IndexFlatIP(d)
            index.add(vectors)
            return cls(index, 0, facts)
        if kind == "hnsw":
            m = int(options.get("m", 32))
            index = faiss.IndexHNSWFlat(d, m, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = 200
            facts |= {"m": m}
        else:
            nlist = int(options.get("nlist", 4 * 2 ** round(np.log2(np.sqrt(n)))))
            m = int(options.get("m", _code_bytes(d)))
            if d % m:
                raise ConfigError(f"index option m={m}", hint=f"a divisor of the dimension {d}")
            index = faiss.IndexIVFPQ(faiss.IndexFlatIP(d), d, nlist, m, 8, faiss.METRIC_INNER_PRODUCT)
            index.cp.seed = _SEED
            sample = np.random.default_rng(_SEED).permutation(n)[: max(64 * nlist, 50_000)]
            index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
            facts |= {"nlist": nlist, "m": m}
        index.add(vectors)
        segment = cls(index, 0, facts)
        segment._tune(vectors, recall)
        return segment

    def _tune(self, vectors: F32Array, target: float) -> None:
        """Widen the search until the recall at 10 reaches the target; remember what was reached."""
        n, d = vectors.shape
        generator = np.random.default_rng(_SEED)
        noise = generator.standard_normal((_PROBES, d)).astype(np.float32)
        noise *= _NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        probes = vectors[generator.integers(0, n, _PROBES)] + noise
        probes /= np.linalg.norm(probes, axis=1, keepdims=True)
        _, truth = flat_search(vectors, probes, _AT)
        reached = 0.0
        for step in range(3, 13):
            self._breadth = 2**step
            _, found = self.search(probes, _AT, None)
            reached = float(np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]))
            if reached >= target:
                break
        name = "efSearch" if self._facts["type"] == "hnsw" else "nprobe"
        self._facts |= {name: self._breadth, "recall_at_10": round(reached, 4), "recall_wanted": target}

    def search(self, queries: F32Array, k: int, keep: BoolArray | None) -> tuple[F32Array, NDArray[np.int64]]:
        """See `Segment.search`."""
        faiss = load_faiss()
        kind, parameters, fetch = self._facts["type"], None, k
        bits = None if keep is None else np.packbits(keep, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        if kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=max(self._breadth, k))
        elif kind == "ivfpq":
            fetch = min(4 * k, self._index.ntotal)  # codes are coarse: more candidates are scored again
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=self._breadth)
        elif selector is not None:
            parameters = faiss.SearchParameters(sel=selector)
        scores, rows = self._index.search(queries, fetch, params=parameters)
        scores[rows < 0] = -np.inf
        return scores, rows

    def save(self, stream: BinaryIO) -> None:
        """See `Segment.save`."""
        faiss = load_faiss()
        text = json.dumps({"breadth": self._breadth, "facts": self._facts}).encode()
        stream.write(struct.pack("<Q", len(text)) + text)
        faiss.write_index(self._index, faiss.PyCallbackIOWriter(stream.write))

    @classmethod
    def load(cls, stream: BinaryIO, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """See `Segment.load`; the stream's digest has been checked."""
        del vectors, options
        faiss = load_faiss()
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
        data = stream.read() if not isinstance(stream, io.BytesIO) else stream.getbuffer()[stream.tell() :]
        index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        return cls(index, header["breadth"], header["facts"])

    def facts(self) -> dict[str, object]:
        """See `Segment.facts`."""
        return dict(self._facts)


def _code_bytes(dimension: int) -> int:
    """Bytes of a PQ code: about one for eight dimensions, and a divisor."""
    return max(m for m in range(1, dimension + 1) if dimension % m == 0 and m <= max(1, dimension // 8))


def load_faiss() -> Any:  # noqa: ANN401  # FAISS is untyped
    """The module, with as many threads as this process may use and BLAS for every batch.

    Raises:
        BackendUnavailableError: It is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise BackendUnavailableError("FAISS is not installed", hint='pip install "facefleet[gallery]"') from error
    faiss.omp_set_num_threads(available_threads())
    # The default uses BLAS from 20 queries on only, and not where queries x dimension is small: several times slower.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss
