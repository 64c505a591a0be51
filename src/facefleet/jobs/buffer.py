"""Results that are finished and not recorded yet: few enough to hold in memory, many enough to be worth a commit."""

from __future__ import annotations

import time
from dataclasses import replace

from facefleet.jobs.manifest import Entry
from facefleet.jobs.output import JobOutput
from facefleet.types import Faces

_COMMIT_S = 5.0
_COMMIT_FACES = 8192
_KEPT_PER_RESULT = 16  # a note that an input is done already is this much cheaper than a result


class Buffer:
    """Gathers results and commits them: a part file first, then the manifest.

    Args:
        output: Where they go.
        commit_images: Most results held.
    """

    def __init__(self, output: JobOutput, commit_images: int) -> None:
        self._output = output
        self._limit = commit_images
        self._clear()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, entry: Entry, faces: Faces | None = None) -> None:
        """A finished input; `faces` unless it failed."""
        self._keys.add(entry.key)
        if faces is None:
            self._failed.append(entry)
        else:
            # Chips have been written, or nobody asked for them; they would take most of the memory.
            self._results.append((entry, replace(faces, chips=None)))
            self._faces += len(faces)

    def keep(self, key: str, position: int) -> None:
        """An input that a run before has finished."""
        self._keys.add(key)
        self._kept.append((key, position))

    def commit_if_due(self) -> None:
        """Commit if there is enough, or what there is has waited long enough."""
        size = max(len(self._results) + len(self._failed), len(self._kept) // _KEPT_PER_RESULT)
        late = time.monotonic() - self._since > _COMMIT_S
        if size >= self._limit or self._faces >= _COMMIT_FACES or (late and self._keys):
            self.commit()

    def commit(self) -> None:
        """Make everything durable, in the order of the inputs.

        Raises:
            OutputError: It cannot be written; nothing of it counts.
        """
        if not self._keys:
            return
        results = sorted(self._results, key=lambda pair: pair[0].position)
        entries = list(self._failed)
        part = None
        if results:
            part, spans = self._output.write_part([(entry.key, faces) for entry, faces in results])
            entries += [replace(entry, span=span) for (entry, _), span in zip(results, spans, strict=True)]
        self._output.manifest.commit(entries, self._kept, part)
        self._clear()

    def _clear(self) -> None:
        self._results: list[tuple[Entry, Faces]] = []
        self._failed: list[Entry] = []
        self._kept: list[tuple[str, int]] = []
        self._keys: set[str] = set()
        self._faces = 0
        self._since = time.monotonic()
