"""Shared memory between the processes of a fleet: one arena, made and allotted by the parent.

The arena has no name in any file system (memfd, or an unlinked temporary file): when the last process that maps it
ends, however it ends, the memory is gone. The parent alone allots and frees, so a worker's death leaves nothing
behind; it frees what a worker held only after that worker is gone.
"""

from __future__ import annotations

import bisect
import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

_ALIGN = 64


@dataclass(slots=True, eq=False)
class Slot:
    """A stretch of the arena.

    Attributes:
        offset: First byte.
        size: Bytes.
        holders: How many hold it; at 0 it is free again.
    """

    offset: int
    size: int
    holders: int = 1


def memory_file(size: int) -> int:
    """A file descriptor of `size` bytes of memory without a name, inheritable by nobody unless passed."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("facefleet", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="facefleet-")
        os.unlink(path)  # noqa: PTH108  # the name of an open descriptor
    os.ftruncate(fd, size)
    return fd


class Arena:
    """The parent's side. Not safe in several threads by itself: the fleet holds its lock.

    Args:
        size: Bytes; pages that were never used take no memory.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = memory_file(self.size)
        self._map = mmap.mmap(self.fd, self.size)
        self.view = memoryview(self._map)
        self._address = np.frombuffer(self.view[:1], np.uint8).ctypes.data
        self._free: list[tuple[int, int]] = [(0, self.size)]  # (offset, size), rising, never adjacent

    @property
    def used(self) -> int:
        """Bytes in slots."""
        return self.size - sum(size for _, size in self._free)

    def allot(self, size: int) -> Slot | None:
        """A slot of at least `size` bytes, the lowest that fits; None where there is no room."""
        size = max(_ALIGN, -(-size // _ALIGN) * _ALIGN)
        for index, (offset, free) in enumerate(self._free):
            if free >= size:
                if free == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, free - size)
                return Slot(offset, size)
        return None

    def release(self, slot: Slot) -> None:
        """One holder less."""
        slot.holders -= 1
        if slot.holders:
            return
        offset, size = slot.offset, slot.size
        index = bisect.bisect(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            index -= 1
            before, more = self._free.pop(index)
            offset, size = before, size + more
        self._free.insert(index, (offset, size))

    def offset_of(self, view: memoryview) -> int:
        """Where a view of the arena begins."""
        return np.frombuffer(view, np.uint8).ctypes.data - self._address

    def close(self) -> None:
        """Give the memory back; views that somebody still holds keep it alive until they go."""
        os.close(self.fd)
        self.view.release()
        try:
            self._map.close()
        except BufferError:  # a view is still out: the map goes with it
            return


class Mapping:
    """A worker's side: the whole arena, to read inputs from and to write results to.

    Args:
        fd: The descriptor that the parent passed.
        size: Its size in bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)
        os.close(fd)
