"""What commands print to, where it is more than lines: no text is taken for markup, since names hold brackets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def terminal(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints text as it is; what is to be colored is given a style."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, highlight=False, markup=False)
