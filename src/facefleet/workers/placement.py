"""Which devices do what: all of them everything, or some detect and the others embed. Pure arithmetic.

With `d` of `n` devices detecting and the others embedding, images a second are the less of d / detect_s and
(n - d) / (faces x embed_s); the best `d` is where both are nearly equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from facefleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StageCosts:
    """What the stages cost one device.

    Attributes:
        detect_s: Seconds for everything but embedding, an image.
        embed_s: Seconds to embed a face, in batches as they come.
        faces: Faces an image.
    """

    detect_s: float
    embed_s: float
    faces: float

    def images_per_s(self, placement: Placement) -> float:
        """What a placement can do."""
        embed = self.faces * self.embed_s
        if not placement.embed:
            return placement.detect / (self.detect_s + embed)
        return min(placement.detect / self.detect_s, placement.embed / embed if embed else float("inf"))


@dataclass(frozen=True, slots=True)
class Placement:
    """How many devices do what.

    Attributes:
        detect: Devices that detect; with `embed` 0 they embed too.
        embed: Devices that only embed; 0: data-parallel.
        fixed: Whether it was given by hand, and stays.
    """

    detect: int
    embed: int = 0
    fixed: bool = False

    def stage_of(self, number: int) -> str:
        """What the device of a number does: the first ones detect."""
        return "detect" if number < self.detect else "embed"


def data_parallel(devices: int) -> Placement:
    """Every device does everything."""
    return Placement(devices)


def stage_parallel(devices: int, costs: StageCosts) -> Placement:
    """The best split of devices into those that detect and those that embed.

    Raises:
        ConfigError: There is one device only.
    """
    if devices < 2:
        raise ConfigError("placement=stage needs two devices", hint="use placement=data, or name more devices")
    splits = [Placement(detect, devices - detect) for detect in range(1, devices)]
    return max(splits, key=costs.images_per_s)


def first_split(devices: int) -> Placement:
    """A split to begin with, before anything is measured: half of the devices each.

    Raises:
        ConfigError: There is one device only.
    """
    return stage_parallel(devices, StageCosts(1.0, 1.0, 1.0))


class Rebalance:
    """Says when another split is worth a change, as the number of faces an image moves.

    Args:
        placement: The present one.
        gain: Least advantage of another one, as a share.
        patience: Looks in a row that must agree before it changes.
    """

    def __init__(self, placement: Placement, *, gain: float = 0.03, patience: int = 3) -> None:
        self.placement = placement
        self._gain = gain
        self._patience = patience
        self._agreed = 0
        self._wanted = placement

    def look(self, costs: StageCosts) -> Placement | None:
        """The placement to change to now; None to stay.

        Args:
            costs: As measured lately.
        """
        best = stage_parallel(self.placement.detect + self.placement.embed, costs)
        better = costs.images_per_s(best) > (1 + self._gain) * costs.images_per_s(self.placement)
        if not better or best == self.placement:
            self._agreed = 0
            return None
        self._agreed = self._agreed + 1 if best == self._wanted else 1
        self._wanted = best
        if self._agreed < self._patience:
            return None
        self._agreed = 0
        self.placement = best
        return best
