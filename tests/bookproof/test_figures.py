"""Figures: the same bytes for the same data, well-formed, with every fact as text, and safe for any text."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookproof.figures import NARROW, WIDE, Bar, Cell, Mark, Span, Tone, bars, curves, lanes, matrix, strip

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
tones = st.sampled_from(Tone)
cells = st.builds(Cell, words, tones)


def facts(figure: str) -> str:
    """Return the text of the figure's table."""
    return unescape(re.sub(r"<[^>]+>", "\0", figure.split("<table>")[1]))


def well_formed(figure: str) -> ET.Element:
    root = ET.fromstring(figure)
    drawings = [shape for shape in root if shape.tag.endswith("svg")]
    assert [drawing.get("viewBox", "").split()[2] for drawing in drawings] == [str(WIDE), str(NARROW)]
    for drawing in drawings:
        width, height = (float(size) for size in drawing.get("viewBox", "").split()[2:])
        for shape in drawing:
            for name in ("x", "x1", "x2"):
                assert -0.1 <= float(shape.get(name, "0")) <= width + 0.1
            for name in ("y", "y1", "y2"):
                assert 0 <= float(shape.get(name, "0")) <= height
            assert float(shape.get("width", "0")) >= 0
    return root


def drawn(figure: str, kind: str) -> str:
    """Return one of the two drawings of a figure."""
    return re.findall(rf'<svg class="bookproof-figure-{kind}".*?</svg>', figure)[0]


@given(words, st.lists(words, min_size=1, max_size=4, unique=True), st.data())
def test_a_matrix_holds_every_cell(title: str, columns: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.dictionaries(words, st.lists(cells, min_size=len(columns), max_size=len(columns)), max_size=5))
    figure = matrix(title, columns, rows)
    well_formed(figure)
    for name, row in rows.items():
        assert name in facts(figure)
        assert all(cell.text in facts(figure) for cell in row)
    assert figure == matrix(title, columns, rows)


@given(words, st.lists(st.tuples(words, words, cells), max_size=6))
def test_a_strip_holds_every_row(title: str, rows: list[tuple[str, str, Cell]]) -> None:
    figure = strip(title, rows, names=("row", "content", "fate"))
    well_formed(figure)
    assert all(text in facts(figure) for name, content, cell in rows for text in (name, content, cell.text))


@given(st.lists(st.tuples(st.floats(-50, 500), st.floats(0, 300), words, tones), max_size=6), st.floats(1, 400))
def test_lanes_hold_every_span_and_mark(items: list[tuple[float, float, str, Tone]], end: float) -> None:
    spans = [Span("a", at, at + length, text, tone) for at, length, text, tone in items]
    marks = [Mark("b", at, text, tone) for at, _, text, tone in items]
    figure = lanes("who held what", ["a", "b"], spans, marks, end=end)
    root = well_formed(figure)
    assert all(text in facts(figure) for _, _, text, _ in items)
    ticks = [shape for shape in root.iter() if shape.tag.endswith("text") and (shape.text or "").endswith(" s")]
    assert 6 <= len(ticks) <= 20


@given(st.lists(st.tuples(words, st.tuples(*[st.floats(0, 5)] * 3), words), max_size=5))
def test_bars_hold_every_number(rows: list[tuple[str, tuple[float, float, float], str]]) -> None:
    figure = bars("scores", ["x", "y", "z"], [Bar(*row) for row in rows])
    well_formed(figure)
    for name, parts, note in rows:
        assert name in facts(figure)
        assert note in facts(figure)
        assert all(f"{part:.3f}" in facts(figure) for part in parts)


def test_the_length_of_a_bar_is_its_total() -> None:
    figure = bars("scores", ["x", "y"], [Bar("a", (1.0, 1.0)), Bar("b", (0.5, 0.0))])
    for kind in ("wide", "narrow"):
        shape = r'class="figure-part-\d" x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="22.0"'
        widths = [float(width) for width in re.findall(shape, drawn(figure, kind))]
        assert widths[0] == widths[1] == pytest.approx(2 * widths[2], abs=0.2)


above_0 = st.floats(1e-4, 1e9)


@given(st.dictionaries(words, st.lists(st.tuples(above_0, above_0), min_size=1, max_size=4), min_size=1, max_size=6))
def test_curves_hold_every_line_inside(lines: dict[str, list[tuple[float, float]]]) -> None:
    figure = curves("growth", lines, across="rows", up="ms")
    well_formed(figure)
    assert all(name in facts(figure) for name in lines)


def test_equal_factors_are_equal_steps_of_a_curve() -> None:
    figure = curves(
        "growth", {"a": [(10, 1), (100, 10), (1_000, 100)], "b": [(10, 1), (1_000, 1)]}, across="n", up="ms"
    )
    assert all(text in facts(figure) for text in ("10", "100", "1,000", "ms, by n"))
    for kind in ("wide", "narrow"):
        shape = r'class="figure-part-(\d)" x="([\d.]+)" y="([\d.]+)" width="6.0"'
        found = [(line, float(x), float(y)) for line, x, y in re.findall(shape, drawn(figure, kind))]
        (_, x1, y1), (_, x2, y2), (_, x3, y3), (_, x4, y4), (_, x5, y5) = found
        assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
        assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2) != 0
        assert (x4, y4, x5, y5) == (x1, y1, x3, y1)


def test_a_span_stands_where_it_lasts() -> None:
    figure = lanes("t", ["a"], [Span("a", 0, 10, ""), Span("a", 10, 30, "")], end=40)
    boxes = re.findall(r'<rect class="figure-plain" x="([\d.]+)" y="8.0" width="([\d.]+)"', drawn(figure, "wide"))
    (x1, w1), (x2, w2) = [(float(x), float(w)) for x, w in boxes]
    assert x1 + w1 == pytest.approx(x2, abs=0.2)
    assert w2 == pytest.approx(2 * w1, abs=0.2)


def test_each_tone_has_a_class_of_its_own() -> None:
    figure = matrix("t", [str(tone) for tone in Tone], {"row": [Cell("x", tone) for tone in Tone]})
    assert len(set(re.findall(r'rect class="(figure-\w+)"', figure))) == len(Tone)


@pytest.mark.parametrize("kind", ["wide", "narrow"])
@pytest.mark.parametrize(
    ("figure", "labels"),
    [
        (
            matrix("t", ["credentials"], {"read a file through a link": [Cell("not refused at all")]}),
            "credentials read a file through a link not refused at all",
        ),
        (
            strip("t", [("05 Jan 08:04 to 08 Jan 07:58", "some content", Cell("its fate"))], names=("", "", "")),
            "05 Jan 08:04 to 08 Jan 07:58 some content its fate",
        ),
        (
            lanes("t", ["a"], [Span("a", 1, 2, "incarnation 2")], [Mark("a", 9, "finish refused")], end=10),
            "a incarnation 2 finish refused 0 s 10 s",
        ),
        (
            bars("t", ["recency"], [Bar("m1", (1.0,), "third by score, fourth after the penalty")]),
            "recency m1 third by score, fourth after the penalty",
        ),
        (
            curves("t", {"the plain definition": [(1_000, 0.02), (100_000, 29_000)]}, across="memories", up="ms"),
            "the plain definition ms 0.01 10,000 1,000 100,000 memories",
        ),
    ],
)
def test_every_label_stands_whole_and_inside(figure: str, labels: str, kind: str) -> None:
    drawing = ET.fromstring(drawn(figure, kind))
    width = float(drawing.get("viewBox", "").split()[2])
    shown: list[str] = []
    for shape in (shape for shape in drawing if shape.tag.endswith("text")):
        text, x = shape.text or "", float(shape.get("x", "0"))
        taken = len(text) * 6.0
        start = {"middle": x - taken / 2, "end": x - taken}.get(shape.get("text-anchor", ""), x)
        assert start >= -0.1, text
        assert start + taken <= width + 0.1, text
        shown.extend(text.split())
    assert set(labels.split()) <= set(shown)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matrix("t", ["a"], {"row": []}), "row 'row' has 0 cells for 1 columns"),
        (lambda: lanes("t", ["a"], end=0), "empty"),
        (lambda: lanes("t", ["a"], [Span("a", 0, 1, "x", Tone.BAD)], end=2, key={Tone.GOOD: "held"}), "meaning"),
        (lambda: lanes("t", ["a"], [Span("b", 0, 1, "x")], end=1), "no such lane: b"),
        (lambda: bars("t", ["x"], [Bar("a", (1.0, 2.0))]), "2 parts for 1 names"),
        (lambda: bars("t", ["x"], [Bar("a", (-1.0,))]), "below 0"),
        (lambda: bars("t", ["x"], [Bar("a", (float("nan"),))]), "not finite"),
        (lambda: bars("t", list("abcdefg"), []), "at most 6"),
        (lambda: curves("t", {letter: [(1, 1)] for letter in "abcdefg"}, across="", up=""), "at most 6"),
        (lambda: curves("t", {"a": []}, across="", up=""), "no points"),
        (lambda: curves("t", {"a": [(1, 0)]}, across="", up=""), "logarithmic axis: 0"),
    ],
)
def test_data_that_cannot_be_drawn_is_a_value_error(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()  # type: ignore[operator]


def test_markup_in_a_text_stays_text() -> None:
    figure = matrix("<b>", ["<i>"], {"<u>": [Cell("<script>alert(1)</script>")]})
    assert "<script" not in figure
    assert "<b>" not in figure


def test_with_a_key_the_texts_stand_in_the_table_and_each_colour_has_a_word() -> None:
    spans, marks = [Span("a", 0, 30, "session one", Tone.PLAIN)], [Mark("a", 9, "refused it", Tone.BAD)]
    key = {Tone.PLAIN: "held", Tone.BAD: "refused", Tone.GOOD: "never happened"}
    drawn, table = lanes("t", ["a"], spans, marks, end=40, key=key).split("<details>")
    assert "session one" in table
    assert "refused it" in table
    assert "session one" not in drawn
    assert "refused it" not in drawn
    assert drawn.count(">held<") == drawn.count(">refused<") == 2
    assert "never happened" not in drawn
    assert drawn.count('class="figure-tick-bad"') == 2 * 2
