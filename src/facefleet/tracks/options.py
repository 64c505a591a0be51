"""What counts as the same face, and which tracker says so. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from facefleet.errors import ConfigError

Method: TypeAlias = Literal["builtin", "bytetrack", "cbiou", "ocsort"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """What counts as the same face.

    Attributes:
        method: ``builtin``, or a tracker of the package ``trackers``.
        sure: Detector score from which a detection is sure.
        overlap: Least IoU of the enlarged boxes; of no use to ``bytetrack`` and ``ocsort``.
        enlarge: How much boxes grow on every side, as a part of their size, in the first and in the second round;
            likewise.
        max_gap_s: A face not seen for longer ends its track.
        max_gap_frames: ... but not before it was missed in so many frames that were looked at.

    Raises:
        ConfigError: There is no such method.
    """

    method: Method = "builtin"
    sure: float = 0.6
    overlap: float = 0.2
    enlarge: tuple[float, float] = (0.3, 0.8)
    max_gap_s: float = 1.0
    max_gap_frames: int = 2

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"tracker {self.method!r}", hint=f"use one of {', '.join(METHODS)}")
