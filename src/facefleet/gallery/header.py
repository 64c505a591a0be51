"""The contract of a gallery: made once, held against everything that comes in, and read when it is opened."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.errors import ConfigError, GalleryCorruptError, GalleryExistsError, GalleryWriteError
from facefleet.gallery.database import FILE, FORMAT, Database
from facefleet.gallery.index.registry import KINDS, SEGMENTS, segment_type
from facefleet.gallery.records import METRIC, Header, PipelineIdentity, pipeline_text
from facefleet.gallery.transaction import Transaction


def create_files(
    folder: Path, pipeline: PipelineIdentity, index: str, options: Mapping[str, Any], *, keep_chips: bool, actor: str
) -> None:
    """Make the files of an empty gallery; see `Gallery.create`."""
    if index not in KINDS:
        raise ConfigError(f"index {index!r}", hint=f"choose one of {', '.join(KINDS)}")
    if index in SEGMENTS:
        segment_type(index).build(np.eye(1, pipeline.dimension, dtype=np.float32), options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise GalleryExistsError(f"{folder}: not empty", hint="name a new folder")
    except OSError as error:
        raise GalleryWriteError(f"{folder}: {error}", hint="check permissions") from error
    database = Database(folder)
    try:
        with database.writing() as db:
            database.create()
            change = Transaction(db, actor)
            for key, value in {
                "format": FORMAT,
                "uuid": uuid.uuid4().hex,
                "metric": METRIC,
                "pipeline": pipeline_text(pipeline),
                "index": json.dumps({"kind": index} | dict(options), sort_keys=True),
                "keep_chips": json.dumps(keep_chips),
                "created_s": repr(time.time()),
            }.items():
                change.remember(key, value)
            change.note("create", None)
            change.seal()
    finally:
        database.close()


def galleries(folder: str | Path) -> list[Path]:
    """The folders of all galleries in a file tree."""
    return sorted(path.parent for path in Path(folder).rglob(FILE))


def read_header(database: Database) -> Header:
    """The contract of a gallery.

    Raises:
        GalleryCorruptError: It is missing or of another version.
    """
    with database.reading() as db:
        values = dict(db.execute("SELECT key, value FROM meta").fetchall())
    try:
        if values["format"] != FORMAT or values["metric"] != METRIC:
            raise GalleryCorruptError(
                f"{database.path}: format {values['format']}, metric {values['metric']}; "
                f"this version reads {FORMAT}, {METRIC}",
                hint="use the version of facefleet that made it, export, and import here",
            )
        pipeline = PipelineIdentity(**json.loads(values["pipeline"]))
        if not re.fullmatch(r"[0-9a-f]{32}", values["uuid"]) or pipeline.dimension < 1:
            raise ValueError("uuid or dimension")
        return Header(
            values["uuid"],
            pipeline,
            json.loads(values["index"]),
            json.loads(values["keep_chips"]),
            float(values["created_s"]),
            values["metric"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GalleryCorruptError(
            f"{database.path}: its header is damaged: {error}", hint="restore a backup"
        ) from error
