"""The picture of a precision search: speed against accuracy of every choice that was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from facefleet.models.build.search import SearchResult


def plot_search(result: SearchResult, path: Path) -> Path | None:
    """Draw the points of a search.

    Args:
        result: What was measured.
        path: PNG to write.

    Returns:
        `path`, or None where matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    base = result.points[0].milliseconds
    for holds, color, label in ((True, "tab:green", "guard holds"), (False, "tab:red", "guard does not hold")):
        points = [point for point in result.points if point.holds is holds]
        axes.scatter(
            [base / point.milliseconds for point in points],
            [point.loss for point in points],
            c=color,
            label=label,
        )
    chosen = result.chosen
    axes.scatter(
        [base / chosen.milliseconds],
        [chosen.loss],
        s=160,
        facecolors="none",
        edgecolors="black",
        label=f"chosen: {len(chosen.high)} of {len(result.layers)} layers in fp32",
    )
    axes.set_xlabel("times as fast as fp32")
    axes.set_ylabel("loss of mean cosine" if result.role == "embedder" else "mean error of boxes and landmarks")
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(f"{result.role}: {result.low} against fp32")
    figure.savefig(path, dpi=120)
    return path
