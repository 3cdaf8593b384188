"""Figures: small pictures of a run, as SVG in a page, each with the same facts as text.

It promises the same bytes for the same data, colours that come from the page's palette (CSS variables), a word beside
every colour, labels that stand whole, and a table with everything that the picture shows. It draws each figure twice,
for a wide and for a narrow screen, and the style sheet shows one of them. It lays nothing out cleverly: a label that
does not fit beside its shape takes a line of its own.

A block with `result="html"` prints what these functions return.
"""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from itertools import pairwise

WIDE, NARROW = 720, 340
"""Widths of the two drawings in their own units, which are pixels at the size they are made for."""
_CHARACTER = 7.0
"""Width of an average character at the font size of labels, in drawing units, with some room for wider fonts."""
_FONT = 12
_LINE = 16
"""Height of a line of text."""


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

    On a narrow screen each row becomes a list of its fields.

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

    def wide(paper: _Paper) -> None:
        left = _room([*rows, corner], most=paper.width * 0.3)
        width = (paper.width - left) / max(1, len(columns))
        lines = max((len(_wrap(name, width - 8)) for name in columns), default=1)
        for i, name in enumerate(columns):
            paper.text(left + (i + 0.5) * width, paper.y, name, width - 8, anchor="middle")
        paper.y += lines * _LINE + 8
        for name, cells in rows.items():
            texts = [_wrap(cell.text, width - 12) for cell in cells]
            height = max(map(len, [_wrap(name, left - 8), *texts])) * _LINE + 14
            paper.text(0, paper.y + 7, name, left - 8)
            for i, cell in enumerate(cells):
                paper.box(left + i * width + 2, paper.y, width - 4, height - 4, cell.tone)
                paper.text(left + (i + 0.5) * width, paper.y + 5, cell.text, width - 12, anchor="middle")
            paper.y += height

    def narrow(paper: _Paper) -> None:
        for name, cells in rows.items():
            paper.y += paper.text(0, paper.y, name, paper.width, strong=True) + 4
            for column, cell in zip(columns, cells, strict=True):
                paper.field(column, cell.text, cell.tone)
            paper.y += 8

    table = [[name, *(cell.text for cell in cells)] for name, cells in rows.items()]
    return _figure(title, {WIDE: wide, NARROW: narrow}, [corner, *columns], table)


def strip(title: str, rows: Sequence[tuple[str, str, Cell]], *, names: tuple[str, str, str]) -> str:
    """Return a column of fields, one for each row of something: what it is, and what became of it.

    Parameters:
        title: What the figure shows.
        rows: For each row its number or name, its content, and the cell that says what became of it.
        names: What these three are.
    """

    def draw(paper: _Paper) -> None:
        left = _room([row[0] for row in rows], most=paper.width * 0.33)
        for name, content, cell in rows:
            paper.field(content, cell.text, cell.tone, name=name, left=left)

    table = [[name, content, cell.text] for name, content, cell in rows]
    return _figure(title, {WIDE: draw, NARROW: draw}, list(names), table)


def lanes(
    title: str,
    names: Sequence[str],
    spans: Sequence[Span] = (),
    marks: Sequence[Mark] = (),
    *,
    end: float,
    unit: str = "s",
    start: float = 0.0,
    key: Mapping[Tone, str] | None = None,
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
        key: What each colour means, for a picture with more shapes than labels could stand beside: the texts then stand
            in the table alone. A colour that marks have is shown as a mark.

    Raises:
        ValueError: The axis is empty, something stands in a lane that is not there, or has a colour without a meaning.
    """
    if not start < end:
        raise ValueError(f"the axis from {start} to {end} is empty")
    unknown = {*(span.lane for span in spans), *(mark.lane for mark in marks)} - set(names)
    if unknown:
        raise ValueError(f"no such lane: {', '.join(sorted(unknown))}")
    meant = {*(span.tone for span in spans), *(mark.tone for mark in marks)}
    if key is not None and meant - set(key):
        raise ValueError(f"no meaning for: {', '.join(sorted(meant - set(key)))}")

    def draw(paper: _Paper) -> None:
        left = _room(names, most=paper.width * 0.3)
        right = paper.width - 24

        def place(at: float) -> float:
            return left + (min(max(at, start), end) - start) / (end - start) * (right - left)

        for name in names:
            inside = [span for span in spans if span.lane == name], [mark for mark in marks if mark.lane == name]
            _lane(paper, name, *inside, place, left, labels=key is None)
        bottom = paper.y
        for at in _ticks(start, end, most=9 if paper.width == WIDE else 5):
            paper.line(place(at), bottom, place(at), bottom + 5)
            paper.text(place(at), bottom + 8, f"{at:g} {unit}", 60, anchor="middle")
        paper.y = bottom + 8 + _LINE
        if key is not None:
            paper.y += 8
            ticks = {mark.tone for mark in marks}
            _key(paper, [(tone, tone in ticks, text) for tone, text in key.items() if tone in meant])

    table = [[s.lane, f"{s.start:g} to {s.end:g} {unit}", s.text] for s in spans]
    table += [[m.lane, f"{m.at:g} {unit}", m.text] for m in marks]
    order = {name: number for number, name in enumerate(names)}
    table.sort(key=lambda row: (order[row[0]], float(row[1].split(" ")[0])))
    return _figure(title, {WIDE: draw, NARROW: draw}, ["lane", "when", "what"], table)


def _lane(
    paper: _Paper,
    name: str,
    spans: Sequence[Span],
    marks: Sequence[Mark],
    place: Callable[[float], float],
    left: float,
    *,
    labels: bool,
) -> None:
    """Draw one lane; what does not fit into its span stands below, beside what happened."""
    top = paper.y
    paper.text(0, top + 8, name, left - 8)
    paper.line(left, top + 16, paper.width - 24, top + 16)
    below: list[tuple[float, str]] = [(place(mark.at), mark.text) for mark in marks]
    for span in spans:
        x, width = place(span.start), max(2.0, place(span.end) - place(span.start))
        paper.box(x, top + 4, width, 24, span.tone)
        if labels and len(_wrap(span.text, width - 4)) <= 1:
            paper.text(x + width / 2, top + 8, span.text, width - 4, anchor="middle")
        else:
            below.append((x, span.text))
    for mark in marks:
        paper.tick(place(mark.at), top, top + 32, mark.tone)
    paper.y = top + 36
    if not labels:
        paper.y += 4
        return
    taken = 0.0
    for x, text in sorted(below):
        wanted = min(len(text) * _CHARACTER, paper.width)
        at = min(x, paper.width - wanted)
        if at < taken:  # beside the label before it there is no room
            paper.y += _LINE
        used = paper.text(at, paper.y, text, wanted + _CHARACTER)
        paper.y += max(0, used - _LINE)
        taken = at + wanted + _CHARACTER
    paper.y += _LINE + 10 if below else 4


def _key(paper: _Paper, entries: Sequence[tuple[Tone, bool, str]]) -> None:
    """Write what each colour means, in as many lines as that needs."""
    x = 0.0
    for tone, is_mark, text in entries:
        wanted = 20 + len(text) * _CHARACTER + 12
        if x and x + wanted > paper.width:
            x, paper.y = 0.0, paper.y + _LINE + 2
        if is_mark:
            paper.tick(x + 6, paper.y, paper.y + 16, tone)
        else:
            paper.box(x, paper.y + 2, 14, 12, tone)
        paper.text(x + 20, paper.y, text, paper.width - x - 20)
        x += wanted
    paper.y += _LINE + 4


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
    if len(legend) > _PARTS:
        raise ValueError(f"at most {_PARTS} parts can be told apart: {len(legend)}")
    for row in rows:
        _check(row, len(legend))
    most = max((sum(row.parts) for row in rows), default=0.0) or 1.0

    def draw(paper: _Paper) -> None:
        paper.legend(legend)
        left = _room([row.name for row in rows], most=paper.width * 0.3)
        beside = _room([row.note for row in rows], most=paper.width)
        under = left + beside > paper.width * 0.5
        scale = (paper.width - left - (0 if under else beside + 6)) / most
        for row in rows:
            height = max(26, len(_wrap(row.name, left - 8)) * _LINE)
            paper.text(0, paper.y + 4, row.name, left - 8)
            x = left
            for number, part in enumerate(row.parts):
                if part > 0:
                    paper.part(number, x, paper.y, part * scale, 22)
                x += part * scale
            if not under:
                paper.text(x + 6, paper.y + 4, row.note, paper.width - x - 6)
            paper.y += height
            if under and row.note:
                paper.y += paper.text(left, paper.y, row.note, paper.width - left) + 6

    table = [[row.name, *(f"{part:.{digits}f}" for part in row.parts), row.note] for row in rows]
    return _figure(title, {WIDE: draw, NARROW: draw}, ["", *legend, ""], table)


def curves(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, across: str, up: str) -> str:
    """Return lines over two logarithmic axes: how something grows.

    Parameters:
        title: What the figure shows.
        lines: The points of each line by its name, from left to right; at most six lines, all numbers above 0.
        across: What the first number of a point is.
        up: What the second one is, with its unit.

    Raises:
        ValueError: There are too many lines or no points, or a number has no logarithm.
    """
    points = _checked(lines)

    def draw(paper: _Paper) -> None:
        for number, name in enumerate(lines):
            paper.curve(number, 0, paper.y + 8, 26, paper.y + 8)
            paper.y += paper.text(34, paper.y, name, paper.width - 34) + 2
        paper.y += 6 + paper.text(0, paper.y + 2, up, paper.width, strong=True)
        plot = _Plot(paper, points)
        for number, line in enumerate(lines.values()):
            places = [plot.place(*point) for point in line]
            for (x1, y1), (x2, y2) in pairwise(places):
                paper.curve(number, x1, y1, x2, y2)
            for x, y in places:
                paper.part(number, x - 3, y - 3, 6, 6)
        paper.y += paper.text(paper.width / 2, paper.y, across, paper.width, anchor="middle", strong=True)

    sizes = sorted({x for x, _ in points})
    known = {name: dict(line) for name, line in lines.items()}
    table = [[name, *(_short(line[x]) if x in line else "" for x in sizes)] for name, line in known.items()]
    return _figure(title, {WIDE: draw, NARROW: draw}, [f"{up}, by {across}", *map(_short, sizes)], table)


def _checked(lines: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the points of all lines, which can be drawn."""
    if len(lines) > _PARTS:
        raise ValueError(f"at most {_PARTS} lines can be told apart: {len(lines)}")
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("there are no points to draw")
    for number in (number for point in points for number in point):
        if not 0 < number < math.inf:
            raise ValueError(f"a number has no place on a logarithmic axis: {number}")
    return points


class _Plot:
    """Two logarithmic axes with a line for each power of ten, drawn where the paper is, which then is below them."""

    def __init__(self, paper: _Paper, points: Sequence[tuple[float, float]]) -> None:
        xs, ys = ([math.log10(point[axis]) for point in points] for axis in (0, 1))
        self._first, self._span = min(xs), (max(xs) - min(xs)) or 1.0
        self._low = math.floor(min(ys))
        self._high = max(self._low + 1, math.ceil(max(ys)))
        names = {power: _short(10.0**power) for power in range(self._low, self._high + 1)}
        left = max(map(len, names.values())) * _CHARACTER + 8
        self._left, self._right = left + 8, paper.width - 24
        self._top, self._height = paper.y + 8, 30.0 * len(names)
        for power, name in names.items():
            y = self._up(power)
            paper.line(left, y, paper.width, y)
            paper.text(left - 6, y - 9, name, left, anchor="end")
        paper.y = self._top + self._height + 6
        for power in range(math.ceil(self._first - 1e-9), math.floor(self._first + self._span + 1e-9) + 1):
            name = _short(10.0**power)
            half = len(name) * _CHARACTER / 2
            x = min(self._along(power), paper.width - half)
            paper.text(x, paper.y, name, 2 * half + 20, anchor="middle")
        paper.y += _LINE

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point stands in the drawing."""
        return self._along(math.log10(x)), self._up(math.log10(y))

    def _along(self, power: float) -> float:
        return self._left + (power - self._first) / self._span * (self._right - self._left)

    def _up(self, power: float) -> float:
        return self._top + (self._high - power) / (self._high - self._low) * self._height


def _short(number: float) -> str:
    """Return a number with three digits or so, in full."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}".rstrip("0").rstrip(".")


_PARTS = 6


def _check(bar: Bar, parts: int) -> None:
    if len(bar.parts) != parts:
        raise ValueError(f"bar {bar.name!r} has {len(bar.parts)} parts for {parts} names")
    if not all(math.isfinite(part) and part >= 0 for part in bar.parts):
        raise ValueError(f"bar {bar.name!r} has a part below 0 or not finite: {bar.parts}")


class _Paper:
    """A drawing that grows downwards."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.y = 4.0
        """Where the next thing stands."""
        self.shapes: list[str] = []

    def text(self, x: float, y: float, text: str, room: float, *, anchor: str = "start", strong: bool = False) -> float:
        """Write a text from its top downwards, in as many lines as it needs, and return their height."""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        weight = ' font-weight="600"' if strong else ""
        lines = _wrap(text, room)
        for number, line in enumerate(lines):
            at = y + 12 + number * _LINE
            self.shapes.append(f'<text x="{x:.1f}" y="{at:.1f}"{place}{weight}>{escape(line)}</text>')
        return len(lines) * _LINE

    def box(self, x: float, y: float, width: float, height: float, tone: Tone) -> None:
        self.shapes.append(
            f'<rect class="figure-{tone}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
            f'height="{height:.1f}" rx="3"/>'
        )

    def part(self, number: int, x: float, y: float, width: float, height: float) -> None:
        self.shapes.append(
            f'<rect class="figure-part-{number}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.shapes.append(f'<line class="figure-axis" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def curve(self, number: int, x1: float, y1: float, x2: float, y2: float) -> None:
        self.shapes.append(
            f'<line class="figure-curve-{number}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def tick(self, x: float, y1: float, y2: float, tone: Tone) -> None:
        self.shapes.append(f'<line class="figure-tick-{tone}" x1="{x:.1f}" y1="{y1:.1f}" x2="{x:.1f}" y2="{y2:.1f}"/>')

    def legend(self, names: Sequence[str]) -> None:
        """Write the parts' colours and names, in as many lines as they need."""
        x = 0.0
        for number, name in enumerate(names):
            wanted = 18 + len(name) * _CHARACTER + 12
            if x and x + wanted > self.width:
                x, self.y = 0.0, self.y + _LINE + 2
            self.part(number, x, self.y + 2, 12, 12)
            self.text(x + 18, self.y, name, self.width - x - 18)
            x += wanted
        self.y += _LINE + 10

    def field(self, content: str, fate: str, tone: Tone, *, name: str = "", left: float = 0.0) -> None:
        """Draw one field with its content and, beside it or below it, what became of it."""
        inner = self.width - left - 16
        beside = (len(content) + len(fate) + 2) * _CHARACTER <= inner
        lines = 1 if beside else len(_wrap(content, inner)) + len(_wrap(fate, inner))
        height = max(lines, len(_wrap(name, left - 8))) * _LINE + 8
        self.text(0, self.y + 4, name, left - 8)
        self.box(left, self.y, self.width - left, height, tone)
        used = self.text(left + 8, self.y + 4, content, inner)
        if beside:
            self.text(self.width - 8, self.y + 4, fate, inner, anchor="end", strong=True)
        else:
            self.text(left + 8, self.y + 4 + used, fate, inner, strong=True)
        self.y += height + 4


def _figure(
    title: str, drawings: Mapping[int, Callable[[_Paper], None]], head: Sequence[str], table: Sequence[Sequence[str]]
) -> str:
    """Put the drawings into a figure with its caption and its facts as a table."""
    shown = []
    for width, draw in drawings.items():
        paper = _Paper(width)
        draw(paper)
        shown.append((width, paper))
    shapes = [shape for _, paper in shown for shape in paper.shapes]
    name = "figure-" + hashlib.sha256("\0".join([title, *shapes]).encode()).hexdigest()[:10]
    svgs = "".join(
        f'<svg class="bookproof-figure-{"wide" if width == WIDE else "narrow"}" role="img" aria-labelledby="{name}" '
        f'viewBox="0 0 {width} {paper.y + 4:g}" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="{_FONT}">{"".join(paper.shapes)}</svg>'
        for width, paper in shown
    )
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(text)}</td>" for text in row[1:]) + "</tr>"
        for row in table
    )
    return (
        f'<figure class="bookproof-figure"><figcaption id="{name}">{escape(title)}</figcaption>{svgs}'
        f"<details><summary>The same as a table</summary><table><caption>{escape(title)}</caption>"
        f"<thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></details></figure>\n"
    )


def _room(texts: Sequence[str], *, most: float) -> float:
    """Return how much width a column of labels needs, and no more than it may have."""
    longest = max((len(text) for text in texts), default=0)
    return min(most, longest * _CHARACTER + 12) if longest else 0.0


def _wrap(text: str, room: float) -> list[str]:
    """Return the lines of a text that fit into so much width; none for a blank text."""
    return textwrap.wrap(text, max(4, int(room / _CHARACTER)))


def _ticks(start: float, end: float, *, most: int) -> list[float]:
    """Return round instants from start to end, about half of `most` or more."""
    step = 10.0 ** math.floor(math.log10((end - start) / 4))
    while (end - start) / step > most:
        step *= 2.5 if math.log10(step) % 1 > 0.2 and math.log10(step) % 1 < 0.5 else 2
    first = math.ceil(start / step)
    return [number * step for number in range(first, math.floor(end / step) + 1)]
