"""What a reader without a mouse, on paper, at night or on a phone can reach and read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
PAPER = """() => [".md-typeset p", ".md-typeset pre > code", ".md-typeset pre > code span", ".md-typeset a", "body"]
  .map((one) => getComputedStyle(document.querySelector(one))).map((one) => [one.color, one.backgroundColor])"""
INSIDE = "(place) => document.activeElement.closest(place) !== null"
FILLS = """() => ["good", "bad", "derived", "waiting", "muted", "plain"].map((tone) => {
  const one = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  one.setAttribute("class", `figure-${tone}`);
  document.querySelector(".bookproof-figure svg").append(one);
  const { fill, stroke } = getComputedStyle(one);
  return [fill, stroke === "none" ? fill : stroke];
})"""

TOKENS = """(names) => names.map((name) => {
  const one = document.createElement("span");
  one.className = name;
  document.querySelector(".highlight pre > code").append(one);
  return [one, one.parentElement].map((where) => getComputedStyle(where))
    .map((style) => [style.color, style.backgroundColor, style.fontWeight, style.fontStyle, style.textDecorationLine]);
})"""


def test_a_token_without_an_element_looks_as_it_would_with_one(tab: Page, address: str) -> None:
    plain = re.search(r"plain_tokens: \[(.*?)\]", (ROOT / "mkdocs.yml").read_text())
    assert plain
    names = plain[1].split(", ")
    for palette in ("light", "dark"):
        scheme: Any = palette
        tab.emulate_media(color_scheme=scheme)
        tab.goto(f"{address}lessons/isolation/")
        for name, (with_one, without) in zip([*names, "k"], tab.evaluate(TOKENS, [*names, "k"]), strict=True):
            assert (with_one[0] == without[0]) is (name != "k"), (palette, name)
            assert with_one[2:] == without[2:], (palette, name)


def test_paper_is_light_whatever_the_palette(tab: Page, address: str) -> None:
    told = []
    for palette in ("light", "dark"):
        scheme: Any = palette
        tab.emulate_media(media="print", color_scheme=scheme)
        tab.goto(f"{address}lessons/isolation/")
        told.append(tab.evaluate(PAPER))
    assert tab.evaluate("document.body.dataset.mdColorScheme") == "slate"
    assert told[0] == told[1]


def test_a_drawer_opens_and_closes_by_keyboard_and_a_closed_one_has_no_focus(tab: Page, address: str) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{address}lessons/sessions/")
    opener = tab.get_by_role("button", name="Navigation")
    expect(opener).to_have_attribute("aria-expanded", "false")
    for _ in range(12):
        tab.keyboard.press("Tab")
        assert not tab.evaluate(INSIDE, ".md-sidebar--primary")
    for key in ("Enter", "Space"):
        opener.press(key)
        expect(opener).to_have_attribute("aria-expanded", "true")
        tab.keyboard.press("Tab")
        assert tab.evaluate(INSIDE, ".md-sidebar--primary")
        tab.keyboard.press("Escape")
        expect(opener).to_have_attribute("aria-expanded", "false")
        expect(opener).to_be_focused()
    tab.set_viewport_size({"width": 1280, "height": 900})
    expect(opener).to_be_hidden()


SEEN = """() => {
  const one = document.activeElement, { left, top, width, height } = one.getBoundingClientRect();
  const inside = one.closest(".md-sidebar--primary");
  const there = document.elementFromPoint(left + width / 2, Math.min(top + height / 2, innerHeight - 1));
  return [one.innerText.trim() || one.getAttribute("aria-label"), Boolean(inside && one.contains(there)), !inside];
}"""
"""The words of what has the focus, whether it is seen, and whether it is outside of the drawer."""


def reached(page: Page) -> list[str]:
    """Return what the keyboard reaches in the open drawer, all of which has to be seen."""
    found: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        text, seen, outside = page.evaluate(SEEN)
        if outside:  # only the page itself, between the last one and the first
            assert page.evaluate("document.activeElement === document.body"), text
            continue
        assert seen, f"{text!r} has the focus and is covered"
        if text in found:
            break
        found.append(text)
    return found


def test_the_keyboard_gets_to_what_the_open_drawer_shows_and_from_list_to_list(tab: Page, address: str) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{address}lessons/sessions/")
    opener = tab.get_by_role("button", name="Navigation")
    opener.press("Enter")
    tab.wait_for_timeout(400)  # it slides
    inner = reached(tab)
    assert inner[:2] == ["Learn", "Isolation is four controls"]
    assert "Guides" not in inner
    tab.get_by_role("button", name="A session needs an incarnation").press("Enter")
    tab.wait_for_timeout(400)
    assert "The contract" in reached(tab)
    assert "Isolation is four controls" not in reached(tab)
    tab.get_by_role("button", name="Table of contents").press("Space")
    tab.wait_for_timeout(400)
    tab.locator("label.md-nav__title[for=__nav_2]").press("Enter")  # back to the parts of the book
    tab.wait_for_timeout(400)
    outer = reached(tab)
    assert {"Start here", "Guides", "Reference", "Evidence"} <= set(outer)
    assert "Isolation is four controls" not in outer
    tab.keyboard.press("Escape")
    expect(opener).to_be_focused()
    tab.keyboard.press("Tab")
    assert not tab.evaluate(INSIDE, ".md-sidebar--primary")
    assert tab.locator("[inert], [data-covered]").count() == 0
    opener.press("Enter")
    tab.set_viewport_size({"width": 1280, "height": 900})
    assert tab.locator("[inert], [data-covered], [data-pressed]").count() == 0, "a wide page has no drawer"


def test_escape_from_the_search_leaves_the_reader_in_the_page(tab: Page, address: str) -> None:
    tab.goto(f"{address}lessons/sessions/")
    for before in (".md-content h1", ".md-content a[href]:not(.headerlink)"):
        if "a[href]" in before:
            tab.locator(before).first.focus()
        tab.keyboard.press("/")
        tab.keyboard.type("lease")
        expect(tab.locator(".md-search-result__meta")).to_contain_text("matching")
        tab.keyboard.press("Escape")
        expect(tab.locator(before).first).to_be_focused()
        tab.keyboard.press("Tab")
        assert not tab.evaluate(INSIDE, ".md-search")
        assert tab.evaluate(INSIDE, ".md-content")


def contrast(one: str, other: str) -> float:
    """Return how far two colours (`rgb(1, 2, 3)`) are apart, as WCAG counts."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(", ")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    return max(light(one), light(other)) / min(light(one), light(other))


def test_the_shapes_of_a_figure_are_seen_at_night_and_their_words_too(tab: Page, address: str) -> None:
    tab.emulate_media(color_scheme="dark")
    tab.goto(f"{address}evidence/simulation/")
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    text = tab.evaluate("getComputedStyle(document.querySelector('.bookproof-figure svg text')).fill")
    fills = tab.evaluate(FILLS)
    assert len({fill for fill, _ in fills}) == len(fills)
    for fill, edge in fills:
        assert contrast(edge, ground) >= 3, edge
        assert contrast(text, fill) >= 4.5, fill


def test_a_wide_diagram_stays_readable_on_a_phone_and_moves_in_its_own_box(tab: Page, address: str) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{address}lessons/sessions/")
    tab.locator("pre.mermaid").first.scroll_into_view_if_needed()
    tab.locator("div.mermaid").first.wait_for()
    box = tab.get_by_role("region", name="Diagram 1")
    expect(box).to_have_attribute("tabindex", "0")
    assert box.evaluate("one => one.scrollWidth") >= 600
    box.focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function("document.querySelector('div.mermaid').scrollLeft > 0")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.set_viewport_size({"width": 1280, "height": 900})
    expect(tab.locator("div.mermaid").first).not_to_have_attribute("tabindex", "0")


def test_a_name_in_a_narrow_table_stays_whole(tab: Page, address: str) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"{address}lessons/sessions/")
    broken = (
        "[...document.querySelectorAll('td code')]"
        ".filter((one) => one.textContent.length <= 16 && one.getClientRects().length > 1)"
    )
    assert tab.evaluate(f"{broken}.map((one) => one.textContent)") == []
