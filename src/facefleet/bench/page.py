"""A page of charts and tables that needs nothing else: no script, no font, no request; light and dark.

Owns the style sheet. Takes text and charts, and escapes what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from facefleet.bench.svg import Chart, chart_svg

Rows = tuple[Sequence[str], list[list[str]]]
"""Headings, and cells row by row."""

_LIGHT = ("#2563c9", "#c2570c", "#15803d", "#a21caf", "#0e7490", "#b91c1c", "#7c5a12", "#52525b")
_DARK = ("#7aaeff", "#ff9f5a", "#5fd38d", "#f08ae8", "#5cd0e0", "#ff8a80", "#dcb867", "#b4b4be")


def _colors(colors: Sequence[str]) -> str:
    return " ".join(f"--s{index}: {color};" for index, color in enumerate(colors))


_STYLE = f"""
:root {{ color-scheme: light dark; --page: #ffffff; --card: #f6f7f9; --text: #16181d; --muted: #5a6070;
  --rule: #d9dde5; {_colors(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #14161b; --card: #1d2027; --text: #e9ebf0;
  --muted: #a3a9b8; --rule: #363b47; {_colors(_DARK)} }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; padding: 28px 24px 60px; max-width: 1360px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif }}
h1 {{ font-size: 24px; margin: 0 0 4px }} h2 {{ font-size: 18px; margin: 34px 0 10px }}
h3 {{ font-size: 15px; margin: 0 0 6px }}
p {{ margin: 4px 0 }} .muted, .empty {{ color: var(--muted) }}
code {{ font: 13px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 16px }}
figure {{ margin: 0; padding: 14px 14px 10px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px }}
figcaption {{ font-weight: 600; margin-bottom: 6px }} figure p {{ font-size: 13px; color: var(--muted) }}
svg {{ display: block; width: 100%; height: auto }}
svg text {{ fill: var(--text); font: 12px system-ui, "Segoe UI", Arial, sans-serif }}
svg .axis {{ fill: var(--muted) }} svg .label {{ font-size: 11px; fill: var(--muted) }}
svg .grid {{ stroke: var(--rule); stroke-width: 1 }}
svg .line {{ fill: none; stroke-width: 2; stroke-linejoin: round }}
svg .roof {{ fill: none; stroke: var(--muted); stroke-width: 2; stroke-dasharray: 6 4 }}
.wide {{ overflow-x: auto; border: 1px solid var(--rule); border-radius: 10px }}
table {{ border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums }}
th, td {{ padding: 5px 11px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule) }}
th {{ background: var(--card); color: var(--muted); font-weight: 600 }}
th:first-child, td:first-child {{ text-align: left }} tr:last-child td {{ border-bottom: 0 }}
{" ".join(f"svg .line.s{n} {{ stroke: var(--s{n}) }} svg .fill.s{n} {{ fill: var(--s{n}) }}" for n in range(8))}
"""


def page(title: str, facts: Iterable[str], sections: Iterable[str]) -> str:
    """A whole HTML document.

    Args:
        title: Heading.
        facts: Sentences below it; plain text.
        sections: From `chart_section` and `table_section`.
    """
    lines = "\n".join(f'<p class="muted">{escape(fact)}</p>' for fact in facts)
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{lines}\n{body}\n</body>\n</html>\n"
    )


def chart_section(heading: str, charts: Sequence[Chart]) -> str:
    """Charts side by side; empty text where there are none."""
    if not charts:
        return ""
    figures = "\n".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{chart_svg(chart)}"
        f"{f'<p>{escape(chart.note)}</p>' if chart.note else ''}</figure>"
        for chart in charts
    )
    return f'<h2>{escape(heading)}</h2>\n<div class="charts">\n{figures}\n</div>'


def table_section(heading: str, titles: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table; empty text where it has no rows."""
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    below = f'<p class="muted">{escape(note)}</p>' if note else ""
    return (
        f'<h2>{escape(heading)}</h2>\n<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>{below}"
    )
