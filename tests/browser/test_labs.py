"""Every lab of every page, in a browser: what it shows is what the build computed, and readers can leave it again."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from bookproof.examples import Example, Runner
from bookproof.knobs import knobs, turn
from bookproof.labs import pyodide_version
from bookproof.options import FenceOptions, Settings

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"

PAGES = sorted(
    path.relative_to(SITE / "lab/pages").with_suffix("").as_posix() for path in SITE.glob("lab/pages/**/*.json")
)
EDITOR = ".cm-content"
expect.set_options(timeout=60_000)  # the first result of a page waits for Python to load


class Lab:
    """One lab on a page."""

    def __init__(self, place: Locator) -> None:
        self.place = place
        self.name = place.get_attribute("data-name")
        self.kind = place.get_attribute("data-bookproof-lab")

    def press(self, label: str) -> Lab:
        """Press a button: the one that waits for a reader, or the lab's own."""
        waiting = self.place.get_by_role("button", name=re.compile(rf"^{label}(: {self.name})?$"))
        waiting.first.click()
        return self

    @property
    def verdict(self) -> str:
        """What the lab says when it is done."""
        done = self.place.locator(".bookproof-lab-state[data-tone=good], .bookproof-lab-state[data-tone=bad]")
        done.wait_for()
        return done.inner_text()

    @property
    def output(self) -> Locator:
        return self.place.locator(".bookproof-lab-output")

    def type(self, text: str) -> None:
        """Replace what stands in the editor."""
        editor = self.place.locator(EDITOR)
        editor.click()
        editor.press("ControlOrMeta+a")
        self.place.page.keyboard.insert_text(text)


def labs(page: Page, kind: str = "") -> list[Lab]:
    wanted = f'[data-bookproof-lab="{kind}"]' if kind else "[data-bookproof-lab]"
    page.locator("[data-bookproof-armed]").first.wait_for()
    return [Lab(place) for place in page.locator(wanted).all()]


def lab(page: Page, name: str) -> Lab:
    page.locator("[data-bookproof-armed]").first.wait_for()
    return Lab(page.locator(f'[data-bookproof-lab][data-name="{name}"]'))


def facts(page: str) -> Any:
    return json.loads((SITE / "lab/pages" / f"{page}.json").read_text())


@pytest.fixture(scope="module")
def reader(
    browser: Browser, address: str, guard: Callable[[Page], list[str]], wake: Callable[[Page], None]
) -> Iterator[Page]:
    """One reader who walks from lesson to lesson by clicking; the interpreter goes with them."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        context.set_default_timeout(60_000)
        page = context.new_page()
        wrong = guard(page)
        page.goto(f"{address}lessons/")
        wake(page)
        page.evaluate("window.sameDocument = true")
        yield page
        assert not wrong


def walk(reader: Page, address: str, page: str) -> None:
    """Go to a page by its link in the navigation, without loading the site again."""
    link, part = f"{address}{page}/", f"{address}{page.partition('/')[0]}/"
    find = "[...document.querySelectorAll('.md-nav__link, .md-tabs__link')].find(one => one.href === link)"
    if not reader.evaluate(f"link => Boolean({find})", link):  # a part that is not open is reached by its tab
        reader.evaluate(f"link => {find}.click()", part)
        reader.wait_for_url(part)
        reader.wait_for_function(f"link => Boolean({find})", arg=link)
    reader.evaluate(f"link => {find}.click()", link)
    reader.wait_for_url(link)
    reader.locator(f'[data-page="{page}"][data-bookproof-armed]').first.wait_for()
    assert reader.evaluate("window.sameDocument") is True


def computed(page: str, name: str, knob: str, value: str) -> str:
    """Return what the package computes in a process of this machine for a knob's other position."""
    examples = [one for one in facts(page)["examples"] if "code" in one]
    at = next(number for number, one in enumerate(examples) if one["id"] == name)
    session = examples[at]["options"]["session"]
    runner = Runner(Settings(ROOT, cache=""))
    runner.open_page(page)
    try:
        for one in examples[: at + 1]:
            if one["options"]["session"] != session:
                continue
            code = one["code"] if one["id"] != name else turn(one["code"], knob, value)
            options = FenceOptions(**{**one["options"], "normalise": tuple(one["options"]["normalise"])})
            outcome = runner.run(Example(one["id"], 0, "python", code, options))
            assert not outcome.failure
        return outcome.output
    finally:
        runner.close()


def text_of(page: Page, html: str) -> str:
    return str(page.evaluate("html => new DOMParser().parseFromString(html, 'text/html').body.textContent", html))


def test_pages_with_labs_are_found() -> None:
    lessons = ("isolation", "watchers", "context", "sessions", "tools", "memory", "break")
    assert set(PAGES) >= {f"lessons/{name}" for name in lessons}


@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_a_page_computes_what_the_build_computed(reader: Page, address: str, page: str) -> None:
    walk(reader, address, page)
    runs = [*labs(reader, "run"), *labs(reader, "crash"), *labs(reader, "agree")]
    for one in runs:
        if one.kind == "run":
            assert one.press("Run").verdict == "Equal to what the build of this page computed", one.name
        elif one.kind == "crash":
            assert one.press("Crash it").verdict == "Both halves are equal to what the build of this page computed"
            expect(one.output).to_contain_text("The process is gone. What it left: crash/.sovereign/ledger.db")
        else:
            told = one.press("Run this page's examples here").verdict
            examples = facts(page)["examples"]
            skipped = [example for example in examples if example.get("skip")]
            assert told == f"{len(examples) - len(skipped)} equal, 0 different, {len(skipped)} not run here"
            for example in skipped:
                assert re.match(r"it needs [\w, ]+$|a (bash|console) block$|not run: ", example["skip"])
            assert f"(Pyodide {pyodide_version(ROOT)})" in one.place.inner_text()
    if page.startswith("lessons/") and page != "lessons/break":
        assert {one.kind for one in runs} >= {"run", "agree"}


@pytest.mark.parametrize("page", PAGES)
def test_every_mutation_is_red_and_without_it_green(reader: Page, address: str, page: str) -> None:
    walk(reader, address, page)
    found = labs(reader, "mutation")
    assert {one.name for one in found} == set(facts(page)["mutations"])
    last = {name: shown for shown in PAGES for name in facts(shown)["mutations"]}
    for one in [one for one in found if last[one.name] == page] or found[:1]:  # where two pages show it, one tries it
        assert one.press("Break it").verdict == "Red: the test caught the change", one.name
        assert one.press("Restore").verdict == "Green: 1 test passed", one.name


@pytest.mark.parametrize("page", PAGES)
def test_every_knob_changes_the_picture_as_the_package_says(reader: Page, address: str, page: str) -> None:
    walk(reader, address, page)
    for one in labs(reader, "knobs"):
        assert one.name
        one.press("Turn the knobs")
        code = next(example["code"] for example in facts(page)["examples"] if example["id"] == one.name)
        one.place.get_by_label("What do you expect?").fill("something")
        one.press("Reveal")
        assert one.verdict == "Equal to what the build of this page computed"
        expect(one.output).to_contain_text("You expected: something")
        for knob in knobs(code):
            control = one.place.get_by_label(knob.label, exact=True)
            before = one.output.text_content()
            if knob.choices:
                value = next(choice for choice in knob.choices if choice != knob.value)
                control.select_option(value)
            else:
                control.focus()
                control.press("Home")
                value = str(control.input_value())
            assert one.verdict == "Computed by the package with your values"
            shown = (one.output.text_content() or "").removeprefix("You expected: something")
            assert shown == text_of(reader, computed(page, one.name, knob.name, value)), knob.name
            assert one.output.text_content() != before, knob.name
            if knob.choices:
                control.select_option(knob.value)
            else:
                control.fill(knob.value)
            expect(one.place.locator(".bookproof-lab-state")).to_have_text(
                "Equal to what the build of this page computed"
            )


LOOK = """() => [".bookproof-lab-button", ".cm-editor", ".cm-content", ".cm-gutters"].map((one) => {
  const style = getComputedStyle(document.querySelector(`[data-bookproof-lab=run] ${one}`));
  return [one, style.display, style.position, style.borderTopWidth, style.fontFamily, style.whiteSpace, style.padding];
})"""


def test_labs_look_the_same_after_a_click_to_another_page(reader: Page, address: str) -> None:
    """The theme takes from the head of a page what the next one lacks, style sheets of labs included."""
    looks, diffs = [], []
    for page in ("lessons/memory", "lessons/tools", "lessons/memory"):
        walk(reader, address, page)
        one = labs(reader, "run")[0].press("Edit")
        one.place.locator(EDITOR).wait_for()
        looks.append(reader.evaluate(LOOK))
        mutation = labs(reader, "mutation")[0].press("Repair")
        mutation.place.locator(EDITOR).wait_for()
        diffs.append(reader.locator(f"#mutation-{mutation.name} .bookproof-diff").first.is_visible())
    assert looks[0] == looks[1] == looks[2]
    assert diffs == [False, False, False]


def test_an_untouched_page_costs_one_small_script(tab: Page, address: str, site: Path) -> None:
    asked: list[str] = []
    tab.context.on("request", lambda request: asked.append(request.url.removeprefix(address)))
    tab.goto(f"{address}lessons/memory/", wait_until="networkidle")
    assert [name for name in asked if name.startswith("lab/")] == ["lab/load.js"]
    assert len(gzip.compress((site / "lab/load.js").read_bytes(), 9)) < 2048
    labs(tab, "run")[0].press("Edit")
    tab.locator(EDITOR).wait_for()
    labs(tab, "run")[0].press("Run")
    assert "Equal" in labs(tab, "run")[0].verdict
    labs(tab, "mutation")[0].press("Break it")
    assert "caught" in labs(tab, "mutation")[0].verdict
    fetched = {name for name in asked if name.startswith("lab/")}
    assert "lab/tools.zip" in fetched
    size = sum(len(gzip.compress((site / name).read_bytes(), 9)) for name in fetched)
    assert size < 8_000_000


def test_a_loop_is_stopped_an_error_names_its_line_and_the_lab_goes_on(tab: Page, address: str) -> None:
    tab.goto(f"{address}lessons/tools/")
    one, other = labs(tab, "run")[:2]
    one.press("Edit")
    one.type("print('begun')\nwhile True:\n    pass")
    one.press("Run")
    expect(one.output).to_have_text("begun")  # while it still runs
    other.press("Run")  # waits for its turn
    one.press("Stop")
    assert one.verdict == "Stopped"
    assert other.verdict == "Equal to what the build of this page computed"
    one.type("x = 1\nprint('so far')\nx / 0")
    one.press("Run")
    assert one.verdict == "An error in line 3"
    expect(one.output).to_contain_text("so far")
    expect(one.output).to_contain_text("ZeroDivisionError")
    expect(one.place.locator(".bookproof-lab-line")).to_have_text("x / 0")
    one.press("Reset")
    one.press("Run")
    assert one.verdict == "Equal to what the build of this page computed"


def test_a_difference_from_the_build_is_told(tab: Page, address: str) -> None:
    """As if the build had computed something else: the lab must not say equal."""
    known = facts("lessons/tools")
    example = next(one for one in known["examples"] if one["id"] == "search")
    example["output"] += "and more\n"
    tab.context.route("**/lab/pages/lessons/tools.json", lambda route: route.fulfill(json=known))
    tab.goto(f"{address}lessons/tools/")
    assert lab(tab, "search").press("Run").verdict == "Not equal to what the build of this page computed"
    all_of_them = labs(tab, "agree")[0]
    told = all_of_them.press("Run this page's examples here").verdict
    assert re.fullmatch(r"\d+ equal, 1 different, 0 not run here", told)
    expect(all_of_them.place.locator("tr:has([data-verdict=different])")).to_contain_text("and more")


def test_everything_works_by_keyboard(tab: Page, address: str) -> None:
    tab.goto(f"{address}lessons/tools/")
    one = labs(tab, "run")[0]
    one.place.get_by_role("button", name="Edit").focus()
    tab.keyboard.press("Enter")
    one.place.locator(f"{EDITOR}:focus").wait_for()
    tab.keyboard.press("ControlOrMeta+a")
    tab.keyboard.insert_text("print('typed')")
    tab.keyboard.press("Control+Enter")
    expect(one.output).to_have_text("typed\n")
    tab.keyboard.press("End")
    tab.keyboard.press("Tab")  # indents
    assert one.place.locator(f"{EDITOR}:focus").count() == 1
    tab.keyboard.press("Escape")
    tab.keyboard.press("Tab")
    expect(one.place.locator(f"{EDITOR}:focus")).to_have_count(0)
    assert one.place.get_by_role("textbox", name=f"Code of {one.name}").count() == 1
    assert one.place.get_by_role("region", name=f"Output of {one.name} in your browser").count() == 1
    for place in tab.locator("[data-bookproof-lab]").all():
        for control in place.locator("button, input, select").all():
            named = control.get_attribute("aria-label") or control.inner_text() or control.get_attribute("id")
            assert named


def test_an_edit_is_kept_and_a_new_text_is_offered(tab: Page, address: str) -> None:
    tab.goto(f"{address}lessons/tools/")
    one = labs(tab, "run")[0]
    one.press("Edit")
    one.type("print('mine')")
    tab.reload()
    one = labs(tab, "run")[0]
    one.press("Edit")
    expect(one.place.locator(EDITOR)).to_have_text("print('mine')")
    # As after a deploy: the edit was made of another text.
    tab.evaluate(
        "for (const [key, value] of Object.entries(localStorage)) if (key.startsWith('bookproof:'))"
        " localStorage.setItem(key, JSON.stringify({...JSON.parse(value), digest: 'older'}))"
    )
    tab.reload()
    one = labs(tab, "run")[0]
    one.press("Edit")
    expect(one.place).to_contain_text("This page has changed since you edited this block.")
    expect(one.place.locator(EDITOR)).to_contain_text("ToolCatalog")
    one.press("Show my edit")
    expect(one.place.locator(EDITOR)).to_have_text("print('mine')")
    one.press("Reset")
    one.press("Edit")
    expect(one.place.locator(EDITOR)).to_contain_text("ToolCatalog")
    assert tab.evaluate("Object.keys(localStorage).filter(key => key.startsWith('bookproof:'))") == []


def test_a_broken_file_is_mended_by_hand(reader: Page, address: str) -> None:
    for page in ("lessons/memory", "lessons/tools"):  # as new, wherever the reader was before
        walk(reader, address, page)
    one = lab(reader, "found-is-allowed")
    mutation = facts("lessons/tools")["mutations"]["found-is-allowed"]
    change = reader.locator("#mutation-found-is-allowed .bookproof-diff").first
    one.press("Repair")
    one.place.locator(EDITOR).wait_for()
    expect(change).to_be_hidden()
    one.press("Run the test")
    assert one.verdict.startswith("Red: failed.")
    one.type((ROOT / mutation["file"]).read_text() + "\nbroken syntax here\n")
    one.press("Run the test")
    assert one.verdict.startswith("Red: error. SyntaxError: ")
    one.type((ROOT / mutation["file"]).read_text())
    one.press("Run the test")
    assert one.verdict == "Green: 1 test passed. You mended it."
    one.press("Reveal the change")
    expect(change).to_be_visible()
    one.press("Restore")
    assert one.verdict == "Green: 1 test passed"


def test_a_failed_load_says_so_and_is_tried_again(tab: Page, address: str) -> None:
    tab.context.route("**/lab/project.zip", lambda route: route.abort())
    tab.goto(f"{address}lessons/tools/")
    one = labs(tab, "run")[0].press("Run")
    assert one.verdict.startswith("This did not work:")
    tab.context.unroute("**/lab/project.zip")
    one.press("Retry")
    assert one.verdict == "Equal to what the build of this page computed"


def test_without_javascript_the_page_says_what_is_missing(browser: Browser, address: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{address}lessons/memory/")
        assert page.get_by_text("Labs need JavaScript.").first.is_visible()


CONTRAST = """element => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const layers = [];
  for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)); };
  const back = layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  const [a, b] = [light(over(parse(getComputedStyle(element).color), back)), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


def test_labs_fit_a_narrow_screen_and_are_legible_in_both_palettes(context: BrowserContext, address: str) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}lessons/memory/")
    run, knob = labs(page, "run")[0], labs(page, "knobs")[0]
    run.press("Edit")
    run.press("Run")
    assert "Equal" in run.verdict
    knob.press("Turn the knobs")
    knob.press("Reveal")
    assert "Equal" in knob.verdict
    labs(page, "mutation")[0].press("Break it")
    assert "Red" in labs(page, "mutation")[0].verdict
    labs(page, "agree")[0].press("Run this page's examples here")
    assert "equal" in labs(page, "agree")[0].verdict
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    selectors = (
        ".bookproof-lab-button:enabled",
        ".bookproof-lab-state",
        ".bookproof-lab-hint",
        "legend",
        "[data-verdict]",
    )
    schemes: Any = {"light": "default", "dark": "slate"}
    for scheme, name in schemes.items():
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_function(f"document.body.dataset.mdColorScheme === '{name}'")
        time.sleep(0.6)  # the theme's transitions
        told = 0
        for element in page.locator(", ".join(f".bookproof-lab {one}" for one in selectors)).all():
            if (element.inner_text() or "").strip() and element.is_visible():
                assert element.evaluate(CONTRAST) >= 4.5, element.inner_text()
                told += 1
        assert told > 10
