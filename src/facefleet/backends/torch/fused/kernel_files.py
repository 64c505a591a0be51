"""Compiled Triton kernels as one archive, and back into Triton's cache, where a start finds them instead of compiling.

Triton names what it compiled by a hash of source, constants, options and its own version, so that a kernel of another
version is never taken for this one.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9_.\-]+")
_GROUP = "__grp__"


def archive(hashes: Iterable[str]) -> bytes:
    """What Triton's cache holds of the kernels with these hashes."""
    from triton.runtime.cache import get_cache_manager

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for each in hashes:
            folder = Path(get_cache_manager(each).cache_dir)
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.suffix in (".cubin", ".json"):  # all that a launch needs
                    made.writestr(zipfile.ZipInfo(f"{folder.name}/{path.name}"), path.read_bytes())
    return stream.getvalue()


def restore(content: bytes) -> int:
    """Put kernels into Triton's cache; how many files were new there.

    Raises:
        ValueError: A name in the archive is not one of a cached kernel.
        zipfile.BadZipFile: It is no archive.
    """
    from triton.runtime.cache import get_cache_manager

    cache = Path(get_cache_manager("00").cache_dir).parent
    written = 0
    with zipfile.ZipFile(io.BytesIO(content)) as kept:
        for name in kept.namelist():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a kernel")
            target = cache / name
            if target.exists():
                continue
            data = kept.read(name)
            if target.name.startswith(_GROUP):  # the list of a kernel's files, by their full paths
                listed = json.loads(data)
                paths = {each: str(target.parent / each) for each in listed["child_paths"]}
                data = json.dumps(listed | {"child_paths": paths}).encode()
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part")
            part.write_bytes(data)
            part.replace(target)
            written += 1
    return written
