"""Which frames of a video are looked at. Pure policy: it sees times, never pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from facefleet.errors import ConfigError

_TICK = 1e-6
CUT = 0.45
"""Change (1 - correlation) above which two frames given after each other show different scenes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which frames are looked at; by default every one.

    Attributes:
        every: One frame of so many.
        fps: The first frame at or after each multiple of 1 / fps, counted from the first frame.
        keyframes: Only frames that need no other to be decoded; the others are not even decoded.
        scene: Every frame that differs from the last one looked at by more than this, from 0 to 1; `fps` then is how
            many a second are looked at in any case, 1 if it is not given.
        start_s: Where to begin, in seconds from the beginning of the video.
        end_s: Where to end; that frame is not included.
    """

    every: int = 1
    fps: float | None = None
    keyframes: bool = False
    scene: float | None = None
    start_s: float | None = None
    end_s: float | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"every={self.every}", hint="1 or more: one frame of so many")
        if self.fps is not None and not (self.fps > 0 and math.isfinite(self.fps)):
            raise ConfigError(f"fps={self.fps}", hint="a number above 0")
        if self.scene is not None and not 0 < self.scene < 1:
            raise ConfigError(f"scene={self.scene}", hint="between 0 and 1, e.g. 0.1")
        ways = [self.every > 1, self.fps is not None or self.scene is not None, self.keyframes]
        if sum(ways) > 1:
            raise ConfigError("every, fps (or scene) and keyframes together", hint="choose one of them")
        if self.start_s is not None and self.start_s < 0:
            raise ConfigError(f"start={self.start_s}", hint="seconds from the beginning, 0 or more")
        if self.end_s is not None and self.end_s <= (self.start_s or 0):
            raise ConfigError(f"end={self.end_s}", hint="later than the start")

    @property
    def whole(self) -> bool:
        """Whether the video is read from its beginning to its end."""
        return self.start_s is None and self.end_s is None


class Sampler:
    """Applies a `Sampling`, frame after frame, in the order of display.

    Args:
        sampling: The rule.
        state: What `state` gave, to go on from there.
    """

    def __init__(self, sampling: Sampling, state: dict[str, Any] | None = None) -> None:
        self._sampling = sampling
        rate = sampling.fps or (1.0 if sampling.scene is not None else None)
        self._period_s = None if rate is None else 1 / rate
        self._origin_s: float | None = None
        self._due = 0
        if state:
            self._origin_s, self._due = state["origin_s"], state["due"]

    @property
    def state(self) -> dict[str, Any]:
        """What is needed to go on later; JSON's types."""
        return {"origin_s": self._origin_s, "due": self._due}

    def due(self, index: int, time_s: float) -> bool:
        """Whether a frame is looked at whatever it shows; called once for each, in order."""
        sampling = self._sampling
        if self._period_s is None:
            return sampling.keyframes or index % sampling.every == 0
        if self._origin_s is None:
            self._origin_s = time_s
        passed = (time_s - self._origin_s + _TICK) / self._period_s
        if passed < self._due:
            return False
        self._due = math.floor(passed) + 1
        return True

    def changed(self, difference: float) -> bool:
        """Whether a frame is looked at because it differs so much from the last one looked at."""
        return self._sampling.scene is not None and difference > self._sampling.scene
