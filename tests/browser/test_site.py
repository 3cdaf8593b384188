"""Every page in a browser: nothing asked from elsewhere, nothing broken, open to everybody, found, light enough."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".bookproof" / "screenshots"
"""Four of each page that a person wrote; kept by CI."""
LESSONS = ("isolation", "watchers", "context", "sessions", "tools", "memory")
WRITTEN = [one for one in (ROOT / "tests" / "urls.txt").read_text().split() if "reference/api/" not in one]
GENERATED = ["reference/api/context/", "reference/api/automation/"]
SOURCES = ["source/index.html", "source/src/sovereign_agent/fence.py.html"]
REST = [one for one in (ROOT / "tests" / "urls.txt").read_text().split() if one not in {*WRITTEN, *GENERATED}]
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
COLOURS = ("color-contrast", "link-in-text-block")
"""What a palette can break; everything else is the same page."""
SEARCHES = {
    "isolation": "lessons/isolation/",
    "watcher": "lessons/watchers/",
    "summary": "lessons/context/",
    "incarnation": "lessons/sessions/",
    "discovery authorization": "lessons/tools/",
    "memory retrieval": "lessons/memory/",
    "lease lengths": "how-to/leases/",
    "summarizer": "how-to/summarizer/",
    "crash": "how-to/recover/",
    "glossary": "explanation/glossary/",
}
OPEN_SHADOWS = (
    "const attach = Element.prototype.attachShadow;"
    "Element.prototype.attachShadow = function (how) { return attach.call(this, {...how, mode: 'open'}); };"
)
TALL = 3000
"""Pixels of a page that a picture shows: the rest costs time, and is looked at by the rules anyway."""
SIZES = """[...document.querySelectorAll("div.mermaid")]
  .map((one) => one.shadowRoot.querySelector("svg").getBoundingClientRect()).map((one) => [one.width, one.height])"""
PAINTED = """new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(done));
  setTimeout(done, 5000);
})"""
"""A picture taken at once may lack what has not been painted in the new size. A browser may paint no frame at all,
and nothing ends a promise that waits for one."""
FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return [one.outerHTML.slice(0, 120), style.outlineStyle, style.outlineWidth, one.getBoundingClientRect().width];
}"""
SHIFTS = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) shifts += one.value;
}).observe({ type: "layout-shift", buffered: true });"""


LATE = re.compile(r"favicon\.svg|bundle\.\w+\.min\.js|workers/search\.\w+\.min\.js|search_index\.json|sitemap\.xml")
"""The icon, and what the theme's script asks for when it starts, itself included."""


@dataclass(slots=True)
class Seen:
    """What a page did that it must not do."""

    wrong: list[str] = field(default_factory=list)

    def watch(self, page: Page, guard: Callable[[Page], list[str]]) -> None:
        """Note script errors, requests to elsewhere, errors of the console, and requests that fail."""
        self.wrong = guard(page)
        page.on("console", lambda said: said.type == "error" and self.wrong.append(f"console: {said.text}"))
        page.on("requestfailed", lambda request: self.failed(request))  # noqa: PLW0108 (a slot takes no attributes)
        page.on("response", lambda answer: answer.status >= 400 and self.wrong.append(f"{answer.status}: {answer.url}"))

    def failed(self, request: Request) -> None:
        """Note a request that failed, but for what a page asks for late and gives up when a test leaves it at once."""
        if not (LATE.search(request.url) and request.failure == "net::ERR_ABORTED"):
            self.wrong.append(f"failed: {request.url} {request.failure}")


@pytest.fixture(scope="module")
def axe() -> str:
    """The rules of axe."""
    script = ROOT / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        told = "axe-core is not installed: run npm ci"
        if "CI" in os.environ:
            pytest.fail(f"{told}, and nothing is skipped in CI")
        pytest.skip(told)
    return script.read_text("utf-8")


@pytest.fixture(scope="module")
def walk(browser: Browser) -> Iterator[BrowserContext]:
    """One browser profile for all pages, without motion: what moves takes time and says nothing here."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as opened:
        opened.set_default_timeout(30_000)
        opened.add_init_script(OPEN_SHADOWS)
        yield opened


@pytest.fixture(scope="module")
def walker(walk: BrowserContext, guard: Callable[[Page], list[str]]) -> Iterator[tuple[Page, Seen]]:
    page, seen = walk.new_page(), Seen()
    seen.watch(page, guard)
    yield page, seen
    page.close()


def scheme(page: Page, name: Any) -> None:
    page.emulate_media(color_scheme=name)
    if page.locator("[data-md-color-scheme]").count():
        expected = {"light": "default", "dark": "slate"}[name]
        page.wait_for_function(f"document.body.dataset.mdColorScheme === '{expected}'")


def look(page: Page, address: str, seen: Seen, url: str) -> None:
    """Open a page with all that it can show, and see that nothing of it is broken."""
    seen.wrong.clear()
    scheme(page, "light")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}{url}".replace("/./", "/"), wait_until="load")
    if url not in REST or page.locator("pre.mermaid").count():  # what starts the theme's script
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function("!document.querySelector('pre.mermaid')")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    sizes = page.evaluate(SIZES)
    assert all(width > 50 and height > 50 for width, height in sizes), sizes
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids)), [one for one in ids if ids.count(one) > 1]
    for width in (640, 390):  # 640: 1280 at twice the size
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"sideways at {width}"
    assert seen.wrong == []


def violations(page: Page, axe: str, only: dict[str, Any], *, styles: bool = True) -> list[str]:
    """Run axe's rules; without `styles` it does not read the style sheets, which only some rules ask about."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    how = {"runOnly": only, "resultTypes": ["violations"], "preload": styles}
    found = page.evaluate("(how) => axe.run(how)", how)["violations"]
    return [
        f"{one['id']}: {node['target']} {node['any'][0]['message'] if node['any'] else node['html'][:160]}"
        for one in found
        for node in one["nodes"][:4]
    ]


@pytest.mark.parametrize("url", [*WRITTEN, *GENERATED, *SOURCES, "gone/"])
def test_a_page_is_whole_and_open_to_everybody(walker: tuple[Page, Seen], address: str, axe: str, url: str) -> None:
    page, seen = walker
    if url == "gone/":
        page.goto(f"{address}gone/")
        page.wait_for_function("document.fonts.ready")
        assert [
            one for one in seen.wrong if not one.startswith((f"404: {address}gone/", "console: Failed to load"))
        ] == []
        seen.wrong.clear()
    else:
        look(page, address, seen, url)
    name = url.strip("./").replace("/", "_") or "index"
    PICTURES.mkdir(parents=True, exist_ok=True)

    def picture(palette: str, width: int) -> None:
        scheme(page, palette)
        page.set_viewport_size({"width": width, "height": 844})  # what fills the window does not make it higher
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": min(TALL, height)})
        page.evaluate(PAINTED)
        page.screenshot(path=PICTURES / f"{name}.{palette}.{width}.jpg", type="jpeg", quality=50)

    uncut = {"width": 1280, "height": 1800}  # a sidebar cuts no link in two, which a rule would count
    picture("light", 390)
    picture("light", 1280)
    page.set_viewport_size(uncut)
    assert violations(page, axe, {"type": "tag", "values": RULES}) == []
    scheme(page, "dark")
    assert violations(page, axe, {"type": "rule", "values": COLOURS}, styles=False) == []
    picture("dark", 1280)
    picture("dark", 390)


@pytest.mark.parametrize("url", REST)
def test_every_generated_page_is_whole(walker: tuple[Page, Seen], address: str, url: str) -> None:
    look(walker[0], address, walker[1], url)


@pytest.fixture
def reader(context: BrowserContext, guard: Callable[[Page], list[str]]) -> Iterator[tuple[Page, Seen]]:
    """A reader's own browser: nothing kept from before."""
    context.add_init_script(OPEN_SHADOWS)
    page, seen = context.new_page(), Seen()
    seen.watch(page, guard)
    yield page, seen
    assert seen.wrong == []


def test_a_click_leads_on_without_a_new_document_and_diagrams_wait_until_they_are_near(
    reader: tuple[Page, Seen], address: str, wake: Callable[[Page], None]
) -> None:
    page, _ = reader
    page.goto(address)
    wake(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("window.same = true")
    page.get_by_role("link", name="Start with lesson 1").click()
    page.wait_for_url(f"{address}lessons/isolation/")
    expect(page.get_by_role("navigation", name="Breadcrumbs")).to_contain_text("Learn")
    page.keyboard.press("n")
    page.wait_for_url(f"{address}lessons/watchers/")
    expect(page.locator("h1")).to_contain_text("A watcher is not")
    assert page.evaluate("window.same")
    page.wait_for_timeout(300)  # what would come unasked has come
    assert [url for url in asked if "mermaid.esm" in url] == []
    page.locator("pre.mermaid").scroll_into_view_if_needed()
    page.locator("div.mermaid").wait_for()
    assert [url for url in asked if "mermaid.esm" in url] != []


def test_a_page_that_nobody_touches_runs_no_script_of_the_theme(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    asked: list[str] = []
    page.on("request", lambda request: "sec-purpose" not in request.headers and asked.append(request.url))
    page.goto(f"{address}lessons/watchers/")
    page.wait_for_timeout(1500)  # what would start by itself has started
    assert page.evaluate("'component$' in window") is False
    assert [url for url in asked if re.search(r"bundle\.\w+\.min\.js|search_index", url)] == []
    assert page.locator("[data-md-component=search-query]").is_visible()


@pytest.mark.parametrize("move", ["mouse", "finger", "Tab", "find in page", "print"])
def test_the_first_move_of_a_reader_starts_the_theme_once(
    browser: Browser, guard: Callable[[Page], list[str]], address: str, move: str
) -> None:
    with browser.new_context(has_touch=True, viewport={"width": 800, "height": 600}) as context:
        page, seen = context.new_page(), Seen()
        seen.watch(page, guard)
        page.goto(f"{address}lessons/tools/")
        assert page.evaluate("'component$' in window") is False
        match move:
            case "mouse":
                page.mouse.move(300, 300)
            case "finger":
                page.touchscreen.tap(300, 300)
            case "Tab":
                page.keyboard.press("Tab")
            case "find in page":  # what scrolls without the reader's hand
                page.evaluate("scrollTo(0, 900)")
            case "print":
                page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function("'component$' in window")
        page.locator(".md-code__nav").first.wait_for(state="attached")
        page.mouse.move(310, 310)
        page.mouse.wheel(0, 100)
        page.wait_for_timeout(300)
        assert page.locator("script[src*='bundle.']:not([type])").count() == 1
        assert seen.wrong == []


def test_what_only_the_theme_can_show_does_not_wait_for_a_move(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.goto(f"{address}lessons/tools/?h=authorization")
    expect(page.locator("mark[data-md-highlight]").first).to_be_attached(timeout=30_000)
    page.goto(f"{address}?q=watcher")
    expect(page.locator(".md-search-result__item a").first).to_be_visible(timeout=30_000)
    page.set_viewport_size({"width": 1280, "height": 2400})
    page.goto(f"{address}explanation/ledger/")
    expect(page.locator("div.mermaid").first).to_be_visible(timeout=30_000)


def test_nothing_moves_when_the_theme_starts(
    reader: tuple[Page, Seen], address: str, wake: Callable[[Page], None]
) -> None:
    page, _ = reader
    page.add_init_script(SHIFTS)
    for width in (412, 1280):
        page.set_viewport_size({"width": width, "height": 823})
        page.goto(f"{address}lessons/context/", wait_until="networkidle")
        wake(page)
        page.wait_for_timeout(300)
        assert page.evaluate("window.shifts") < 0.02


def test_the_first_key_is_not_lost(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.goto(f"{address}lessons/watchers/", wait_until="networkidle")
    page.keyboard.press("n")
    page.wait_for_url(f"{address}lessons/context/")
    page.goto(f"{address}lessons/watchers/")  # loaded: before that no script listens to what is typed
    query, told = page.locator("[data-md-component=search-query]"), page.locator(".md-search-result__meta")
    page.keyboard.press("/")
    page.keyboard.type("incarnation")  # at once, while the theme starts
    expect(query).to_have_value("incarnation")
    expect(told).to_contain_text("matching document")


@pytest.mark.parametrize(
    ("button", "toggle"), [(".site-drawer", "#__drawer"), (".md-header__button[for=__search]", "#__search")]
)
def test_what_a_reader_opens_first_stays_open(
    reader: tuple[Page, Seen], address: str, button: str, toggle: str
) -> None:
    page, _ = reader
    late: list[Route] = []
    page.route("**/bundle.*.js", lambda route: late.append(route))  # noqa: PLW0108 (a built-in takes no attributes)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}lessons/watchers/#the-contract")
    page.locator(button).click()
    page.wait_for_timeout(200)
    assert late, "the theme was asked for"
    for one in late:
        one.continue_()
    page.wait_for_function("'component$' in window")
    page.wait_for_timeout(600)
    assert page.locator(toggle).is_checked()


def test_the_key_that_prints_draws_every_diagram_first(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.goto(f"{address}explanation/ledger/")
    page.evaluate("() => { window.print = () => { window.left = document.querySelectorAll('pre.mermaid').length; }; }")
    page.keyboard.press("Control+p")
    page.wait_for_function("window.left !== undefined")
    assert page.evaluate("window.left") == 0
    assert page.locator("div.mermaid").count() >= 5


def test_a_lesson_marked_as_done_is_shown_in_this_browser_until_the_marks_are_cleared(
    reader: tuple[Page, Seen], address: str
) -> None:
    page, _ = reader
    page.goto(f"{address}lessons/tools/")
    button = page.get_by_role("button", name="Mark this lesson as done")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Done. Mark as not done")).to_be_focused()
    for place in ("", "lessons/"):
        page.goto(f"{address}{place}")
        expect(page.locator(".site-mark")).to_have_text([" \u2713 done"])
        expect(page.locator(".site-progress")).to_contain_text("1 of 6 lessons done")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Clear the marks").click()
    expect(page.locator(".site-mark")).to_have_count(0)
    assert page.evaluate("localStorage.getItem('sovereign-agent.lessons')") is None
    page.goto(f"{address}lessons/tools/")
    expect(page.get_by_role("button", name="Mark this lesson as done")).to_be_visible()


def test_a_palette_follows_the_system_until_a_reader_chooses_one(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader

    def shown() -> tuple[str, str]:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return page.evaluate("document.body.dataset.mdColorScheme"), ground

    page.emulate_media(color_scheme="dark")
    page.goto(address)
    night = shown()
    page.emulate_media(color_scheme="light")
    page.wait_for_function("document.body.dataset.mdColorScheme === 'default'")
    day = shown()
    assert (night[0], day[0], night[1] == day[1]) == ("slate", "default", False)
    page.get_by_role("button", name="Switch to the light palette").press("Enter")
    page.get_by_role("button", name="Switch to the dark palette").press("Enter")
    assert shown() == night
    page.goto(f"{address}lessons/tools/")
    assert shown() == night, "the choice is kept"
    assert page.evaluate("document.querySelector('meta[name=color-scheme]').content") == "dark"
    page.get_by_role("button", name="Follow the system").click()
    assert shown() == day
    assert page.evaluate("localStorage.getItem('sovereign-agent.palette')") is None


def test_a_page_is_in_its_palette_before_a_script_is_there(reader: tuple[Page, Seen], address: str) -> None:
    """Nor does any script, once it is there, make the browser work out every style again for a palette."""
    page, _ = reader
    page.emulate_media(color_scheme="dark")
    page.route("**/*.js", lambda route: route.fulfill(body=""))
    page.goto(f"{address}lessons/tools/")
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    assert page.locator("[data-md-component=palette]").count() == 0


def test_the_keyboard_alone_gets_everywhere_and_shows_where_it_is(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.goto(f"{address}lessons/tools/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.md-skip')")
    for _ in range(40):
        page.keyboard.press("Tab")
        told = page.evaluate(FOCUSED)
        assert told[3] == 0 or (told[1] != "none" and told[2] != "0px"), told
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("[data-md-component=search-query]")).to_be_focused()
    page.keyboard.type("what?")
    expect(keys).to_be_hidden()


def test_ten_words_find_their_page_first(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.goto(address)
    found = {}
    query, told = page.locator("[data-md-component=search-query]"), page.locator(".md-search-result__meta")
    page.keyboard.press("/")
    for words in SEARCHES:
        query.press("Control+a")
        query.press("Backspace")  # the search listens to keys
        expect(told).to_contain_text("start searching")
        query.fill(words[:-1])
        query.press(words[-1])  # one question: what a part of a word finds would be shown before the answer
        expect(told).to_contain_text("matching document")
        first = page.locator(".md-search-result__item a").first
        found[words] = str(first.evaluate("one => one.href")).removeprefix(address).partition("?")[0]
    assert found == SEARCHES


def test_what_is_copied_from_a_console_is_its_commands(reader: tuple[Page, Seen], address: str) -> None:
    page, _ = reader
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(address)
    block = page.locator("#example-scenario")
    block.hover()
    block.locator("[data-clipboard-target]").first.click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
    assert page.evaluate("navigator.clipboard.readText()") == "sovereign-agent mechanisms --root work | sed -n 1,6p"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_light_and_stands_still(
    reader: tuple[Page, Seen], address: str, site: Path, wake: Callable[[Page], None], lesson: str
) -> None:
    """Bytes as `gzip -9` makes them, once the theme has started; then, while a reader goes down, nothing jumps."""
    page, _ = reader
    page.add_init_script(SHIFTS)
    page.set_viewport_size({"width": 412, "height": 823})
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.goto(f"{address}lessons/{lesson}/", wait_until="networkidle")
    with page.expect_request("**/workers/search.*"):
        wake(page)
    page.wait_for_timeout(300)
    asked = [one.removeprefix(address).partition("?")[0] for one in seen]
    weights = {
        url: len(gzip.compress((site / (url if "." in url else f"{url}index.html")).read_bytes(), 9))
        for url in asked
        if re.search(r"(/|\.html|\.css|\.m?js|\.woff2)$", url)
    }
    assert len(asked) <= 16, asked
    assert sum(weights.values()) < 150_000, weights
    page.evaluate("scrollTo(0, document.querySelector('pre.mermaid').getBoundingClientRect().top + scrollY - 1900)")
    page.wait_for_function("!document.querySelector('pre.mermaid')")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_timeout(200)
    assert page.evaluate("window.shifts") < 0.02
    (site.parent / ".bookproof" / "weights").mkdir(parents=True, exist_ok=True)
    (site.parent / ".bookproof" / "weights" / f"{lesson}.json").write_text(json.dumps(weights, indent=1))


def test_no_style_asks_what_stands_inside(site: Path) -> None:
    """`:has` is asked again at every change of a page: five of them took two thirds of a lesson's style time."""
    assert ":has(" not in re.sub(r"/\*.*?\*/", "", (site / "assets/site.css").read_text(), flags=re.DOTALL)


def test_a_link_to_a_page_shows_the_card_of_this_site(site: Path) -> None:
    for page in ("index.html", "lessons/memory/index.html", "reference/api/fence/index.html"):
        told = dict(re.findall(r'<meta property="(og:[^"]+)" content="([^"]+)">', (site / page).read_text()))
        address = told["og:url"].removesuffix(page.removesuffix("index.html"))
        assert told["og:image"] == f"{address}assets/card.png"
        size = (site / "assets/card.png").read_bytes()[16:24]  # a PNG begins with eight bytes and its header
        assert (told["og:image:width"], told["og:image:height"]) == tuple(
            str(int.from_bytes(size[at : at + 4])) for at in (0, 4)
        )


def test_the_search_index_and_the_pages_of_the_reference_are_small_enough(site: Path) -> None:
    assert len(gzip.compress((site / "search/search_index.json").read_bytes(), 9)) < 200_000
    heavy = {str(one): one.stat().st_size for one in (site / "reference/api").rglob("*.html")}
    assert heavy
    assert {name: size for name, size in heavy.items() if size >= 300_000} == {}
    assert "Sitemap:" not in (site / "robots.txt").read_text() or "SITE_URL" in os.environ
