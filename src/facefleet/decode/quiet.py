"""Keeps libraries from writing to stderr about damaged files: what is wrong is said once, as a typed error.

Changes three things of the process, each once and none per call: a warnings filter for Pillow's remarks, a handler on
Pillow's logger, and the message handlers inside Pillow's own copy of libtiff. Any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import warnings
from functools import lru_cache
from pathlib import Path


def quiet_pillow() -> None:
    """Keep Pillow's remarks on odd metadata and large frames off stderr.

    They concern nothing that is read here: sizes are held against the decoder's own limit.
    """
    from PIL.Image import DecompressionBombWarning

    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    warnings.filterwarnings("ignore", category=DecompressionBombWarning)
    logger = logging.getLogger("PIL")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


@lru_cache(maxsize=1)
def quiet_libtiff() -> None:
    """Take the message handlers of Pillow's libtiff away: they write to stderr, and Pillow has no switch for it.

    Where libtiff is a part of Pillow's own module (Windows), there is no way in, and it goes on writing.
    """
    for path in _libtiff_paths():
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                getattr(library, name).argtypes = [ctypes.c_void_p]
                getattr(library, name).restype = ctypes.c_void_p
                getattr(library, name)(None)


def _libtiff_paths() -> set[str]:
    """Copies of libtiff that this process has loaded (Linux), or that came with Pillow (macOS)."""
    import PIL

    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[-1] for line in lines if "libtiff" in line}
    return {str(path) for path in (Path(PIL.__file__).parent / ".dylibs").glob("libtiff*")}
