"""A batch takes a fixed time and one for each item: both, from what was measured.

Pure sums, so that measurements of several processes add up and those of a period are a difference.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class LinearTime:
    """Least squares of seconds over batch size.

    Attributes:
        batches: Batches measured.
        items: Items in them.
        seconds: Seconds they took.
        squares: Sum of squared sizes.
        products: Sum of size times seconds.
    """

    batches: float = 0.0
    items: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, size: float, seconds: float) -> None:
        """A batch of `size` took `seconds`."""
        self.batches += 1
        self.items += size
        self.seconds += seconds
        self.squares += size * size
        self.products += size * seconds

    def sums(self) -> tuple[float, ...]:
        """Plain numbers, to be sent and given to the constructor again."""
        return tuple(astuple(self))

    def __add__(self, other: LinearTime) -> LinearTime:
        return LinearTime(*(mine + theirs for mine, theirs in zip(self.sums(), other.sums(), strict=True)))

    def __sub__(self, other: LinearTime) -> LinearTime:
        return LinearTime(*(mine - theirs for mine, theirs in zip(self.sums(), other.sums(), strict=True)))

    def item_s(self, size: float) -> float:
        """Seconds an item in batches of `size`; 0.0 where nothing was measured.

        Where sizes hardly varied there is no line to draw: then it is the mean.
        """
        if not self.items:
            return 0.0
        spread = self.batches * self.squares - self.items**2
        if spread <= 1e-3 * self.items**2:
            return self.seconds / self.items
        slope = (self.batches * self.products - self.items * self.seconds) / spread
        fixed = (self.seconds - slope * self.items) / self.batches
        return max(fixed / size + slope, 0.05 * self.seconds / self.items)
