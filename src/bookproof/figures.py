"""Figures: small pictures of a run, as SVG in a page, each with the same facts as text.

It promises the same bytes for the same data, colours that come from the page's palette (CSS variables), a word beside
every colour, and a table with everything that the picture shows. It draws five kinds and lays nothing out cleverly: a
label that is too long for its place is cut, and stands whole in the table.

A block with `result="html"` prints what these functions return.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

WIDTH = 720
"""Width of every drawing in its own units; a page scales it down, and lets it scroll where it would get too small."""
_CHARACTER = 6.6
"""About the width of one character at the font size of labels, in drawing units."""
_FONT = 12


class Tone(StrEnum):
    """What a colour means. The style sheet gives each a colour: `--figure-good` and so on."""

    GOOD = "good"
    BAD = "bad"
    DERIVED = "derived"
    WAITING = "waiting"
    MUTED = "muted"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a matrix or a strip."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts, in a lane."""

    lane: str
    start: float
    end: float
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happens at one instant, in a lane."""

    lane: str
    at: float
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, made up of parts in the order of the figure's legend."""

    name: str
    parts: tuple[float, ...]
    note: str = ""
    """Stands at the bar's end."""


def matrix(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], *, corner: str = "") -> str:
    """Return a table of coloured fields: what was tried, against what, and what came of it.

    Parameters:
        title: What the figure shows.
        columns: Names of the columns.
        rows: Name of each row, and one cell for each column.
        corner: What the rows are.

    Raises:
        ValueError: A row has another number of cells than there are columns.
    """
    for name, cells in rows.items():
        if len(cells) != len(columns):
            raise ValueError(f"row {name!r} has {len(cells)} cells for {len(columns)} columns")
    left = _room([*rows, corner])
    width = (WIDTH - left) / max(1, len(columns))
    head, height = 36, 34
    shapes = [_text(left + (i + 0.5) * width, 22, name, width, anchor="middle") for i, name in enumerate(columns)]
    for number, (name, cells) in enumerate(rows.items()):
        y = head + number * height
        shapes.append(_text(0, y + 21, name, left - 8))
        for i, cell in enumerate(cells):
            x = left + i * width
            shapes.append(_box(x + 2, y + 2, width - 4, height - 4, cell.tone))
            shapes.append(_text(x + width / 2, y + 21, cell.text, width - 8, anchor="middle", tone=cell.tone))
    table = [[name, *(cell.text for cell in cells)] for name, cells in rows.items()]
    return _figure(title, head + len(rows) * height, shapes, [corner, *columns], table)


def strip(title: str, rows: Sequence[tuple[str, str, Cell]], *, names: tuple[str, str, str]) -> str:
    """Return a column of fields, one for each row of something: what it is, and what became of it.

    Parameters:
        title: What the figure shows.
        rows: For each row its number or name, its content, and the cell that says what became of it.
        names: What these three are.
    """
    height = 26
    left = _room([row[0] for row in rows], most=120)
    right = _room([row[2].text for row in rows], most=200) + 8
    shapes = []
    for number, (name, content, cell) in enumerate(rows):
        y = number * height
        shapes.append(_text(0, y + 17, name, left - 8))
        shapes.append(_box(left, y + 2, WIDTH - left, height - 4, cell.tone))
        shapes.append(_text(left + 8, y + 17, content, WIDTH - left - right - 16, tone=cell.tone))
        shapes.append(_text(WIDTH - 8, y + 17, cell.text, right, anchor="end", tone=cell.tone))
    table = [[name, content, cell.text] for name, content, cell in rows]
    return _figure(title, len(rows) * height, shapes, list(names), table)


def lanes(
    title: str,
    names: Sequence[str],
    spans: Sequence[Span] = (),
    marks: Sequence[Mark] = (),
    *,
    end: float,
    unit: str = "s",
    start: float = 0.0,
) -> str:
    """Return lanes over time: who held what when, and what happened.

    Parameters:
        title: What the figure shows.
        names: The lanes, from top to bottom.
        spans: What lasts; it is cut at the ends of the axis.
        marks: What happens at one instant.
        end: Last instant of the axis, in units after its origin.
        unit: Name of the unit, such as `s` or `min`.
        start: First instant of the axis.

    Raises:
        ValueError: The axis is empty, or something stands in a lane that is not there.
    """
    if not start < end:
        raise ValueError(f"the axis from {start} to {end} is empty")
    unknown = {*(span.lane for span in spans), *(mark.lane for mark in marks)} - set(names)
    if unknown:
        raise ValueError(f"no such lane: {', '.join(sorted(unknown))}")
    left, height = _room(names), 58
    scale = (WIDTH - left - 24) / (end - start)

    def place(at: float) -> float:
        return left + (min(max(at, start), end) - start) * scale

    bottom = len(names) * height
    shapes = []
    for number, name in enumerate(names):
        y = number * height
        shapes.append(_text(0, y + 24, name, left - 8))
        shapes.append(_line(left, y + 20, WIDTH - 24, y + 20))
        for span in (span for span in spans if span.lane == name):
            x, width = place(span.start), max(2.0, place(span.end) - place(span.start))
            shapes.append(_box(x, y + 8, width, 24, span.tone))
            shapes.append(_text(x + width / 2, y + 24, span.text, width - 4, anchor="middle", tone=span.tone))
        inside = sorted((mark for mark in marks if mark.lane == name), key=lambda mark: mark.at)
        for mark, until in zip(inside, [place(mark.at) for mark in inside[1:]] + [float(WIDTH)], strict=False):
            x = place(mark.at)
            shapes.append(_tick(x, y + 4, y + 36, mark.tone))
            shapes.append(_text(x + 3, y + 46, mark.text, until - x - 6))
    for at in _ticks(start, end):
        shapes.append(_line(place(at), bottom, place(at), bottom + 5))
        shapes.append(_text(place(at), bottom + 18, f"{at:g} {unit}", 60, anchor="middle"))
    table = [[s.lane, f"{s.start:g} to {s.end:g} {unit}", s.text] for s in spans]
    table += [[m.lane, f"{m.at:g} {unit}", m.text] for m in marks]
    order = {name: number for number, name in enumerate(names)}
    table.sort(key=lambda row: (order[row[0]], float(row[1].split(" ")[0])))
    return _figure(title, bottom + 24, shapes, ["lane", "when", "what"], table)


def bars(title: str, legend: Sequence[str], rows: Sequence[Bar], *, digits: int = 3) -> str:
    """Return stacked bars: what each total is made up of.

    Parameters:
        title: What the figure shows.
        legend: What the parts are; at most six.
        rows: The bars, from top to bottom, with one number of at least 0 for each part.
        digits: Digits after the point in the table.

    Raises:
        ValueError: A bar has another number of parts, or one is negative or not finite.
    """
    if len(legend) > len(_PARTS):
        raise ValueError(f"at most {len(_PARTS)} parts can be told apart: {len(legend)}")
    for row in rows:
        if len(row.parts) != len(legend):
            raise ValueError(f"bar {row.name!r} has {len(row.parts)} parts for {len(legend)} names")
        if not all(math.isfinite(part) and part >= 0 for part in row.parts):
            raise ValueError(f"bar {row.name!r} has a part below 0 or not finite: {row.parts}")
    left = _room([row.name for row in rows])
    right = _room([row.note for row in rows]) + 8
    most = max((sum(row.parts) for row in rows), default=0.0) or 1.0
    scale = (WIDTH - left - right) / most
    shapes, x = [], float(left)
    for number, name in enumerate(legend):
        shapes.append(f'<rect class="figure-part-{number}" x="{x:.1f}" y="6" width="12" height="12" rx="2"/>')
        shapes.append(_text(x + 18, 16, name, 120))
        x += 18 + len(name) * _CHARACTER + 22
    head, height = 30, 30
    for index, row in enumerate(rows):
        y = head + index * height
        shapes.append(_text(0, y + 19, row.name, left - 8))
        x = float(left)
        for number, part in enumerate(row.parts):
            width = part * scale
            if width > 0:
                shapes.append(
                    f'<rect class="figure-part-{number}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="22"/>'
                )
            x += width
        shapes.append(_text(x + 6, y + 19, row.note, right))
    table = [[row.name, *(f"{part:.{digits}f}" for part in row.parts), row.note] for row in rows]
    return _figure(title, head + len(rows) * height, shapes, ["", *legend, ""], table)


_PARTS = range(6)


def _figure(
    title: str, height: float, shapes: Sequence[str], head: Sequence[str], table: Sequence[Sequence[str]]
) -> str:
    """Put a drawing into a figure with its caption and its facts as a table."""
    name = "figure-" + hashlib.sha256("\0".join([title, *shapes]).encode()).hexdigest()[:10]
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(text)}</td>" for text in row[1:]) + "</tr>"
        for row in table
    )
    return (
        f'<figure class="bookproof-figure"><div class="bookproof-figure-scroll" role="group" tabindex="0" '
        f'aria-labelledby="{name}">'
        f'<svg role="img" aria-labelledby="{name}" viewBox="0 0 {WIDTH} {height:g}" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="{_FONT}">{"".join(shapes)}</svg></div>'
        f'<figcaption id="{name}">{escape(title)}</figcaption>'
        f"<details><summary>The same as a table</summary><table><caption>{escape(title)}</caption>"
        f"<thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></details></figure>\n"
    )


def _room(texts: Sequence[str], *, most: float = 200) -> float:
    """Return how much width a column of labels needs."""
    longest = max((len(text) for text in texts), default=0)
    return min(most, longest * _CHARACTER + 12) if longest else 0


def _text(x: float, y: float, text: str, room: float, *, anchor: str = "start", tone: Tone = Tone.PLAIN) -> str:
    fits = int(room / _CHARACTER)
    shown = text if len(text) <= fits else text[: max(0, fits - 1)].rstrip() + "\u2026" if fits > 1 else ""
    if not shown:
        return ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="figure-text-{tone}" x="{x:.1f}" y="{y:.1f}"{place}>{escape(shown)}</text>'


def _box(x: float, y: float, width: float, height: float, tone: Tone) -> str:
    return (
        f'<rect class="figure-{tone}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
        f'height="{height:.1f}" rx="3"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="figure-axis" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _tick(x: float, y1: float, y2: float, tone: Tone) -> str:
    return f'<line class="figure-tick-{tone}" x1="{x:.1f}" y1="{y1:.1f}" x2="{x:.1f}" y2="{y2:.1f}"/>'


def _ticks(start: float, end: float) -> list[float]:
    """Return four to nine round instants from start to end."""
    step = 10.0 ** math.floor(math.log10((end - start) / 4))
    while (end - start) / step > 9:
        step *= 2.5 if math.log10(step) % 1 > 0.2 and math.log10(step) % 1 < 0.5 else 2
    first = math.ceil(start / step)
    return [number * step for number in range(first, math.floor(end / step) + 1)]
