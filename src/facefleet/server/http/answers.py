"""Answers on the wire: faces as JSON or msgpack, embeddings as numbers or base64, problems.

Pure functions; the keys of a face are those of the JSON lines that jobs write.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from starlette.responses import Response

from facefleet.errors import FacefleetError, InternalError
from facefleet.server.errors import MEDIA_TYPE, problem_of, retry_after_header, retry_after_s, status_of
from facefleet.sinks.jsonl import as_json
from facefleet.sinks.parquet import ParquetTable
from facefleet.types import Faces, FaceStatus

Embeddings: TypeAlias = Literal["float", "base64", "none"]
MSGPACK = "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"


def faces_tree(name: str, faces: Faces, *, embeddings: Embeddings = "float", most: int = 0) -> dict[str, Any]:
    """The faces of a picture as JSON's types.

    Args:
        name: What the caller calls the picture.
        faces: Its faces.
        embeddings: ``float``: numbers; ``base64``: little-endian float32; ``none``: null.
        most: So many faces at most, the first ones; 0: all.
    """
    plain = faces
    if embeddings != "float":
        plain = replace(faces, embeddings=np.zeros((len(faces), 0), np.float32))
    tree = as_json(name, plain)
    found: list[dict[str, Any]] = tree["faces"]
    if embeddings != "float":
        for face, record in zip(found, faces, strict=True):
            coded = embeddings == "base64" and record.status is FaceStatus.OK
            coded = coded and bool(np.isfinite(record.embedding).all())
            face["embedding"] = base64.b64encode(record.embedding.astype("<f4").tobytes()).decode() if coded else None
    else:
        for face in found:
            if face["embedding"] is not None and None in face["embedding"]:
                face["embedding"] = None  # not asked for
    if most:
        del found[most:]
    tree["status"] = "ok" if found else "no_face"
    return tree


def arrow(faces: Faces, facts: Mapping[str, Any], *, most: int = 0) -> Response:
    """The faces of a picture as an Arrow stream, with the columns of the tables that jobs write.

    Args:
        faces: Its faces.
        facts: What `Service.info` says, for the metadata.
        most: As for `faces_tree`.
    """
    import pyarrow as pa

    metadata = {key: str(facts[key]) for key in ("version", "fingerprint", "metric", "pack", "license")}
    table = ParquetTable(int(facts["dimension"]), metadata).as_arrow([("image", faces)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.slice(0, most) if most else table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW)


def answer(tree: dict[str, Any], accept: str = "", status: int = 200) -> Response:
    """JSON, or msgpack where the client asks for it."""
    if MSGPACK in accept or "application/x-msgpack" in accept:
        import msgpack

        return Response(msgpack.packb(tree), status, media_type=MSGPACK)
    return Response(json.dumps(tree, ensure_ascii=False, separators=(",", ":")), status, media_type="application/json")


def line(tree: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return (json.dumps(tree, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def problem(error: FacefleetError | InternalError, *, request_id: str = "", kserve: bool = False) -> Response:
    """Problem details, with ``Retry-After`` where coming again can help; for KServe's clients also as they read it."""
    status = status_of(error)
    headers = {}
    after = retry_after_s(error)
    if after is not None:
        headers["retry-after"] = retry_after_header(after)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    tree = problem_of(error, request_id=request_id)
    if kserve:
        tree["error"] = f"{tree['detail']} ({tree['hint']})" if tree["hint"] else tree["detail"]
    content = json.dumps(tree, ensure_ascii=False)
    return Response(content, status, headers=headers, media_type=MEDIA_TYPE)
