"""A plot of who appears when: persons down, time across. matplotlib draws it, without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from facefleet.errors import BackendUnavailableError
from facefleet.sinks.video.rows import TrackRow

_MOST = 60
_KNOWN, _UNKNOWN, _NOBODY = "#2563a8", "#e08a1e", "#9a9a9a"


def plot_timeline(path: Path, tracks: Sequence[TrackRow], *, title: str, start_s: float, end_s: float) -> int:
    """Write the plot, as PNG, SVG or PDF by the file's extension.

    Args:
        path: The new file.
        tracks: The tracks; the persons seen longest are shown, up to 60, in the order they appear.
        title: What stands above.
        start_s: Where the axis begins.
        end_s: Where it ends.

    Returns:
        How many persons are shown.

    Raises:
        BackendUnavailableError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise BackendUnavailableError("matplotlib is not installed", hint='pip install "facefleet[video]"') from error
    persons: dict[str, list[TrackRow]] = {}
    for track in sorted(tracks, key=lambda track: (track.start_s, track.track)):
        persons.setdefault(track.person, []).append(track)
    longest = sorted(persons, key=lambda name: -sum(track.faces for track in persons[name]))[:_MOST]
    shown = [name for name in persons if name in set(longest)]
    figure = Figure(figsize=(10, max(1.8, 1.1 + 0.28 * len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    least = (end_s - start_s) / 400
    for row, name in enumerate(shown):
        seen = persons[name]
        color = _KNOWN if seen[0].known else _NOBODY if name == "unknown" else _UNKNOWN
        spans = [(track.start_s, max(track.end_s - track.start_s, least)) for track in seen]
        axes.broken_barh(spans, (row - 0.32, 0.64), facecolors=color, edgecolors="white", linewidth=0.6)
    axes.set_yticks(range(len(shown)), [name.replace("$", r"\$") for name in shown], fontsize=9)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xlim(start_s, max(end_s, start_s + 0.1))
    axes.set_xlabel("time (s)")
    hidden = len(persons) - len(shown)
    axes.set_title(title.replace("$", r"\$") + (f" ({hidden} more persons not shown)" if hidden else ""), fontsize=11)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    kinds = {_KNOWN: "in the gallery", _UNKNOWN: "unknown person", _NOBODY: "not embedded"}
    used = {_KNOWN: any(t.known for t in tracks), _NOBODY: "unknown" in persons}
    used[_UNKNOWN] = any(not t.known and t.person != "unknown" for t in tracks)
    handles = [Patch(color=color, label=text) for color, text in kinds.items() if used[color]]
    if len(handles) > 1:
        figure.legend(handles=handles, loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
    return len(shown)
