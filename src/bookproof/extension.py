"""The Markdown extension: claims a page's python, bash and console fences, runs them, and shows what they said.

It promises that every such fence of a page was run, or opted out with a reason, or is a failure: what SuperFences
handed over is reconciled with a scan of the source that knows nothing of SuperFences. It works under any tool that
renders Python-Markdown; alone it raises at the end of the first page with failures, with the plugin it collects them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement

from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString
from markdown_exec import InsertHeadings, base_format, markdown_config
from pymdownx.snippets import SnippetMissingError
from pymdownx.superfences import SuperFencesCodeExtension, SuperFencesException

from bookproof.alone import alone
from bookproof.book import Book, settings_from
from bookproof.cache import digest
from bookproof.claims import LONG_CODE, ROLE, claims
from bookproof.diagram_text import diagram_text
from bookproof.examples import Outcome, plan
from bookproof.labs import UNPINNED, lab_place
from bookproof.options import FenceOptions
from bookproof.page import (
    ALIASES,
    CLAIMED,
    DiagramRecord,
    ExampleRecord,
    Failure,
    Fence,
    PageRecord,
    PageSource,
    bad_snippets,
    directives,
    find_page,
    page_key,
    scan,
)

_MARKERS = ("exec", "why", "session", "raises", "returncode", "result", "source")
"""Options that show a fence was meant to run, whatever its language says."""
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_DIRECTIVES = ("production-map", "mutation", "evidence", "agree")


class _State:
    """The book that pages are written into, and the page being rendered."""

    book: Book | None = None
    shared: bool = False
    """Whether the plugin opened the book."""
    page: _PageRun | None = None


def use(book: Book | None) -> None:
    """Write the pages rendered from now on into this book; None: into one of the extension's own."""
    _State.book, _State.shared, _State.page = book, book is not None, None


def recorded() -> tuple[int, ...]:
    """Return how much the page being rendered has shown so far: examples, diagrams, failures."""
    record = _State.page.record if _State.page is not None else PageRecord("")
    return len(record.examples), len(record.diagrams), len(record.failures)


class _PageRun:
    """One page while it is rendered."""

    def __init__(self, book: Book, source: PageSource, md: Markdown) -> None:
        self.book, self.source, self.md = book, source, md
        path = f"{book.settings.docs}/{source.path}" if source.path else "<text>"
        self.record: PageRecord = book.begin(path, source.url)
        self.record.source = source.text
        found, complaints = claims(path, source.text, source.meta)
        self.record.claims.extend(found)
        self.record.failures.extend(complaints)
        self.waiting: list[Fence] = list(scan(source.text))
        self.unseen = 0
        """How many of the page's own fences were handed over that the scan does not have."""
        self.shown: dict[str, int] = {}
        """HTML of each claimed fence that is to stand in the page, and its line."""
        self.depth = 0
        """How deep the conversion of printed Markdown is; above 0 a fence is output."""
        self.treed = False
        """Whether the tree is finished; before that, post-processing concerns a heading only."""
        self.line = 0
        """Line of the example whose output is being converted."""
        self.ids: set[str] = set()
        self.numbered: set[str] = set()
        """Ids that were given by counting, because the author gave none."""
        book.open_page(path)

    def fail(self, line: int, text: str) -> str:
        """Note a failure and return the box that stands in the page for it."""
        failure = Failure(self.record.path, line, text)
        self.record.failures.append(failure)
        first, _, rest = str(failure).partition("\n")
        more = f"<pre><code>{escape(rest)}</code></pre>" if rest else ""
        return f'<div class="admonition failure bookproof-failure" role="alert"><p>{escape(first)}</p>{more}</div>'

    def take(self, language: str, written: dict[str, str], body: str) -> Fence | None:
        """Return, and count as seen, the fence of the source that SuperFences handed over; None if it is not there."""
        wanted = _plain(body)
        same = [
            fence
            for fence in self.waiting
            if fence.language == language and dict(fence.options) == written and not fence.problem
        ]
        exact = [fence for fence in same if _plain(fence.body) == wanted]
        included = [fence for fence in same if "8<--" in fence.body]
        for fence in (*exact, *included):
            self.waiting.remove(fence)
            return fence
        return None


def _plain(body: str) -> str:
    return "\n".join(line.rstrip() for line in body.split("\n")).strip("\n")


class BookproofExtension(Extension):
    """Python-Markdown extension `bookproof`; to be listed after `pymdownx.superfences`."""

    def __init__(self, **kwargs: Any) -> None:
        self.config = {
            "root": ["", "The repository; default: the parent of the documentation folder."],
            "src": ["src", "The folder of the packages."],
            "tests": ["tests", "The folder of the tests."],
            "timeout_seconds": [10.0, "How long one example may take."],
            "outputs": ["tests/outputs", "Where outputs are committed; empty: not compared."],
            "mutations": ["tests/mutations.toml", "The mutations."],
            "evidence": ["evidence/index.md", "The page that an article's end links to."],
            "cache": [".bookproof", "Where passes are remembered; empty: nowhere."],
            "environment": [{}, "Variables that every example sees."],
            "host_facts": [{}, "Further host facts."],
            "plain_tokens": [[], "Tokens that need no element in code."],
            "normalise": [{}, "Further normalisation rules."],
        }
        super().__init__(**kwargs)

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the base class's name)
        """Register fences and processors.

        Raises:
            ValueError: SuperFences is not there yet.
        """
        fences = next((ext for ext in md.registeredExtensions if isinstance(ext, SuperFencesCodeExtension)), None)
        if fences is None:
            raise ValueError("markdown_extensions: list pymdownx.superfences before bookproof")
        for language in (*CLAIMED, *ALIASES, "mermaid"):
            fences.extend_super_fences(language, self._format, self._validate, None)
        if _State.page is not None and _State.page.depth:
            _follow_links(_State.page.md, md)
        md.registerExtension(self)
        # Before backticks (190), which would take the name for code.
        md.inlinePatterns.register(_Role(ROLE.pattern, md), "bookproof_role", 195)
        md.preprocessors.register(_Begin(md, self), "bookproof_begin", 1000)
        parser: Any = md.parser
        parser.parseDocument = partial(_parse_document, md, parser.parseDocument)
        if "snippet" in md.preprocessors:
            snippets: Any = md.preprocessors["snippet"]
            snippets.run = partial(_run_snippets, snippets.run)
        md.treeprocessors.register(_Treed(md), "bookproof_treed", -1000)
        md.postprocessors.register(_End(md, self), "bookproof_end", -1000)

    def begin(self, md: Markdown, lines: list[str]) -> None:
        """Begin a page if this instance renders one, and not a part of one."""
        key, page = page_key(md), _State.page
        if page is not None and (key is None or (key is page.source.key and md is not page.md)):
            return
        source = find_page(md) or PageSource("", "", Path.cwd(), md, {}, "\n".join(lines))
        book = _State.book
        if book is None:
            root = Path(self.getConfig("root") or source.docs_dir.parent)
            book = _State.book = alone(settings_from(dict(self.getConfigs()), root, source.docs_dir))
        if markdown_config.exts is None and "rendering_context" in md.preprocessors:
            context: Any = md.preprocessors["rendering_context"]
            markdown_config.save(context.config["markdown_extensions"], context.config["mdx_configs"])
        _State.page = _PageRun(book, source, md)

    def end(self, md: Markdown, html: str) -> str:
        """Reconcile, close the page, and return its HTML."""
        page = _State.page
        if page is None or page.md is not md or not page.treed:
            return html
        _State.page = None
        page.book.runner.close_page()
        _reconcile(page, html)
        for shown in page.shown:
            # A block that printed headings comes back in a paragraph, which may not hold it.
            html = html.replace(f"<p>{shown}\n</p>", shown)
        if not page.book.collecting:
            html = page.book.complete(html, page.record)
        page.book.finish(page.record)
        return html

    def _validate(
        self, language: str, inputs: dict[str, str], options: dict[str, Any], _attrs: dict[str, Any], _md: Markdown
    ) -> bool:
        page = _State.page
        if page is None:
            return False
        if page.depth and language != "mermaid":
            # The shown source of a block, or a fence that it printed: text to highlight.
            if "exec" in inputs:
                page.fail(page.line, "an example printed a fence that asks to be run; only fences of the page are")
            return False
        options["written"] = dict(inputs)
        return True

    def _format(
        self,
        src: str,
        language: str,
        options: dict[str, Any],
        md: Markdown,
        classes: list[str] | None = None,  # noqa: ARG002
        id_value: str = "",  # noqa: ARG002
        attrs: dict[str, str] | None = None,  # noqa: ARG002
    ) -> str:
        page = _State.page
        if page is None:
            return escape(src)
        try:
            if language == "mermaid":
                return _diagram(page, options["written"], src)
            return _example(page, language, options["written"], src, md)
        except Exception as error:
            # SuperFences would swallow anything else and show the raw fence.
            raise SuperFencesException(f"bookproof: {page.record.path}: {type(error).__name__}: {error}") from error


class _Begin(Preprocessor):
    def __init__(self, md: Markdown, extension: BookproofExtension) -> None:
        super().__init__(md)
        self._extension = extension

    def run(self, lines: list[str]) -> list[str]:
        self._extension.begin(self.md, lines)
        return lines


def _parse_document(md: Markdown, parse: Callable[[list[str]], ElementTree], lines: list[str]) -> ElementTree:
    """Parse a page; an error of another extension is a failure of the page, so that the other pages are told too."""
    page = _State.page
    if page is None or page.md is not md or not page.book.collecting:
        return parse(lines)
    try:
        return parse(lines)
    except Exception as error:  # whatever another extension raises
        message = str(error) or type(error).__name__
        source = enumerate(page.source.text.splitlines(), start=1)
        autodoc = [(at, text.split()) for at, text in source if text.lstrip().startswith("::: ")]
        line = next((at for at, words in autodoc if words[-1] in message), autodoc[0][0] if autodoc else 0)
        root = Element("div")
        box = SubElement(root, "div")
        box.text = md.htmlStash.store(
            page.fail(line, f"this page cannot be rendered: {type(error).__name__}: {message}")
        )
        return ElementTree(root)


def _run_snippets(run: Callable[[list[str]], list[str]], lines: list[str]) -> list[str]:
    """Run the snippets' own preprocessor, so that a snippet which is missing is a failure at its line."""
    try:
        return run(lines)
    except SnippetMissingError:
        page = _State.page
        if page is None:
            raise
    missing = {line: reason for line in lines if (reason := _missing_snippet(run, line))}
    if not missing:
        raise ValueError(f"bookproof: {page.record.path}: a snippet in a snippet, or one of several lines, is missing")
    source = page.source.text.splitlines()
    for line, reason in missing.items():
        number = next((at for at, text in enumerate(source, start=1) if text.strip() == line.strip()), 0)
        page.fail(number, reason)
    return run([line for line in lines if line not in missing])


def _missing_snippet(run: Callable[[list[str]], list[str]], line: str) -> str:
    try:
        if "8<" in line:
            run([line])
    except SnippetMissingError as error:
        return str(error)
    return ""


class _Role(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802 - name and form of InlineProcessor, which its stub leaves out
        self, m: re.Match[str], data: str
    ) -> tuple[Element, int, int] | tuple[None, None, None]:
        if any(span.start() < m.start() < span.end() for span in LONG_CODE.finditer(data)):
            return None, None, None  # a page that shows how a role is written
        element = Element("span", {"data-bookproof-role": m["kind"]})
        element.text = AtomicString(m["name"])
        return element, m.start(0), m.end(0)


class _Treed(Treeprocessor):
    def run(self, root: Element) -> None:  # noqa: ARG002 (the base class's signature)
        if _State.page is not None and _State.page.md is self.md:
            _State.page.treed = True


class _End(Postprocessor):
    def __init__(self, md: Markdown, extension: BookproofExtension) -> None:
        super().__init__(md)
        self._extension = extension

    def run(self, text: str) -> str:
        return self._extension.end(self.md, text)


def _example(page: _PageRun, language: str, written: dict[str, str], code: str, md: Markdown) -> str:
    """Check, run and show one claimed fence."""
    fence = page.take(language, written, code)
    line = fence.line if fence else 0
    page.unseen += fence is None and md is page.md
    pairs = tuple(written.items()) if fence is None else fence.options
    planned = plan(language, pairs, code, line, page.ids, page.book.settings)
    name, options = planned.example.id, planned.example.options
    if planned.numbered:
        page.numbered.add(name)
    if planned.complaints:
        return "".join(page.fail(line, complaint) for complaint in planned.complaints)
    if not options.execute or planned.absent:
        status, detail = ("absent", ", ".join(planned.absent)) if planned.absent else ("off", options.why)
        page.record.examples.append(ExampleRecord(name, line, language, code, "", status, detail, options=options))
        shown = _shown_only(page, language, code, options, md)
        return _wrapped(page, line, shown, escape(f"not run: {detail}"), _attributes(page, name, options, status), md)
    outcome = page.book.runner.run(planned.example)
    status = "failed" if outcome.failure else "passed"
    record = ExampleRecord(name, line, language, code, outcome.output, status, "", outcome.rules, options)
    page.record.examples.append(record)
    if outcome.failure:
        return page.fail(outcome.line or line, outcome.failure)
    shown, attributes = _shown(page, record, options, md), _attributes(page, name, options, status)
    if options.lab and page.book.labs_off == UNPINNED:
        return page.fail(line, UNPINNED)
    lab = lab_place(options.lab, name, page.source.path, page.book.labs_off) if options.lab else ""
    return _wrapped(page, line, shown, _note(options, outcome), attributes, md, lab + _locally(page, record))


def _shown(page: _PageRun, example: ExampleRecord, options: FenceOptions, md: Markdown) -> str:
    """Return the HTML of a block that passed, as markdown-exec lays it out."""
    if options.predict:
        return _folded(page, example, options, md)
    console = example.language == "console"
    source = "" if console or options.source == "none" else options.source
    result, output = ("console" if console else options.result), example.output
    if options.result == "none" or not output.strip():
        result = output = ""
    plain = page.book.form and result not in {"markdown", "html", "mermaid"}
    key = digest(page.book.form, example.id, example.language, example.code, output, repr(options)) if plain else ""
    cache = page.book.cache("blocks")
    if plain and (known := cache.get(key)):
        return str(known["html"])
    page.line, page.depth = example.line, page.depth + 1
    try:
        shown = str(
            base_format(
                language=example.language,
                run=lambda *_arguments, **_options: output.rstrip("\n"),
                code=example.code,
                md=md,
                html=options.result == "html",
                source=source,
                result="" if result in {"markdown", "html", "none"} else result,
                tabs=options.tabs,
                id=example.id,
                id_prefix=f"{example.id}-",
                extra=dict(options.display) if source else {},
            )
        )
    finally:
        page.depth -= 1
    if plain:
        cache.put(key, {"html": shown})
    return shown


def _folded(page: _PageRun, example: ExampleRecord, options: FenceOptions, md: Markdown) -> str:
    """Return the HTML of a block whose reader is asked something first: its output is folded."""
    asked = escape(options.predict)
    source = _shown(page, replace(example, output=""), replace(options, predict="", source="above"), md)
    output = _shown(page, example, replace(options, predict="", source="none"), md)
    return (
        f'{source}<p class="bookproof-predict"><strong>Predict first.</strong> {asked}</p>'
        f'<details class="bookproof-reveal"><summary>What the build computed</summary>{output}</details>'
    )


def _shown_only(page: _PageRun, language: str, code: str, options: FenceOptions, md: Markdown) -> str:
    """Return the HTML of a block that was not run."""
    example = ExampleRecord(options.id, 0, ALIASES.get(language, language), code, "", "off")
    if example.language == "console":
        example = ExampleRecord(options.id, 0, "console", "", code, "off")
        return _shown(page, example, FenceOptions(source="none", display=options.display), md)
    return _shown(page, example, FenceOptions(display=options.display), md)


def _attributes(page: _PageRun, name: str, options: FenceOptions, status: str) -> str:
    """Return the attributes of the element that holds a block: what a style sheet or a lab finds it by."""
    kinds = ["fails"] if options.raises or options.returncode else []
    kinds += ["not-run"] if status != "passed" else []
    kinds += ["lab"] if options.lab else []
    classes = " ".join(["bookproof-example", *(f"bookproof-example--{kind}" for kind in kinds)])
    anchor = escape(name if name in page.numbered else f"example-{name}")
    return f'class="{classes}" id="{anchor}"' + (f' data-lab="{escape(name)}"' if options.lab else "")


def _wrapped(page: _PageRun, line: int, html: str, note: str, attributes: str, md: Markdown, below: str = "") -> str:
    """Return a block's HTML in the element that names it, and keep markdown-exec's headings with it."""
    if not html and not note:
        return ""
    told = f'<p class="bookproof-note">{note}</p>' if note else ""
    wrapped = f"<div {attributes}>\n{_numbered(html, attributes)}\n{told}{below}</div>"
    page.shown[wrapped] = line
    if InsertHeadings.name in md.treeprocessors:
        headings: Any = md.treeprocessors[InsertHeadings.name]
        found = headings.headings.pop(html, None)
        if found:
            headings.headings[wrapped] = found
    return wrapped


def _numbered(html: str, attributes: str) -> str:
    """Give each listing of a block an id; without one the theme's copy buttons would all name the block's own."""
    anchor, number = attributes.partition('id="')[2].partition('"')[0], count(1)
    return re.sub(r'<div (?=class="[^"]*\bhighlight")', lambda _: f'<div id="{anchor}-{next(number)}" ', html)


def _note(options: FenceOptions, outcome: Outcome) -> str:
    """Return, as HTML, what is said below a block: that it was meant to fail, and what was not shown as it was."""
    parts = []
    if options.lab == "crash":
        told = "Written to kill its own process with SIGKILL. Had it lived, the build would have failed."
        parts.append(f'<strong class="bookproof-fails" title="{told}">\u2717 Killed on purpose</strong>')
    if options.raises or options.returncode:
        how = f"raises {escape(options.raises)}" if options.raises else f"exit code {options.returncode}"
        told = "Written to fail. Had it passed, the build would have failed."
        parts.append(f'<strong class="bookproof-fails" title="{told}">\u2717 Fails on purpose: {how}</strong>')
    if outcome.rules:
        parts.append(f"With placeholders for what differs from run to run: {escape(', '.join(outcome.rules))}")
    return "<br>".join(parts)


def _locally(page: _PageRun, example: ExampleRecord) -> str:
    """Return how to run an example in a clone, folded; of an example that shows no source there is nothing to run."""
    if example.options is None or example.options.source == "none":
        return ""
    command = escape(f"uv run bookproof run {page.record.path}#{example.id}")
    return (
        '<details class="bookproof-locally"><summary>Run this locally</summary>'
        f'<p>In a clone, at this commit: <code data-copy="{command}">{command}</code></p></details>'
    )


def _diagram(page: _PageRun, written: dict[str, str], text: str) -> str:
    """Note a Mermaid diagram, to be parsed by Mermaid, and return the element that the theme draws."""
    line = page.line
    if not page.depth:
        fence = page.take("mermaid", written, text)
        line = fence.line if fence else 0
        for key in written:
            page.fail(line, f"unknown option {key} of a mermaid fence")
    page.record.diagrams.append(DiagramRecord(line, text, printed=bool(page.depth)))
    shown = f'<pre class="{page.book.diagram_class}"><code>{escape(text, quote=False)}</code></pre>'
    return shown + (diagram_text(text) if page.book.diagram_class == "mermaid" else "")


def _reconcile(page: _PageRun, html: str) -> None:
    """Note everything that the source holds and the page does not show, and the other way round."""
    if page.unseen and "8<" not in page.source.text:  # a snippet brings fences that stand elsewhere
        stray = [fence.line for fence in scan(page.source.text) if fence.problem]
        told = "the renderer and the scan of this page disagree about where its fences end: is one never closed?"
        page.fail(stray[0] if stray else 0, told)
    for fence in page.waiting:
        claimed = fence.language.lower() in {*CLAIMED, *ALIASES, "mermaid"}
        options = [key for key, _ in fence.options if key in _MARKERS]
        if fence.problem and (claimed or options or "exec" in fence.problem):
            page.fail(fence.line, f"this fence would not have run: {fence.problem}")
        elif claimed:
            page.fail(
                fence.line, "this fence would not have run: the renderer did not take it for a fence (indentation?)"
            )
        elif options:
            told = f"is no language that is run: {', '.join(CLAIMED)} are"
            page.fail(fence.line, f"this fence would not have run: {fence.language or 'an empty name'} {told}")
    seen = _COMMENT.sub("", html)
    for shown, line in page.shown.items():
        if _COMMENT.sub("", shown) not in seen:
            told = "this fence ran, but the page does not show it: it stands in an indented code block or a comment"
            page.fail(line, told)
    _reconcile_directives(page)


def _reconcile_directives(page: _PageRun) -> None:
    for number, text in bad_snippets(page.source.text):
        page.fail(number, f"this snippet line would be printed, not followed: {text} (quote the file's name)")
    for number, name, argument in directives(page.source.text):
        if name not in _DIRECTIVES:
            page.fail(number, f"unknown directive {name!r}: known are {', '.join(_DIRECTIVES)}")
        elif (name == "mutation") != bool(argument):
            page.fail(
                number, "a mutation directive names one mutation" if name == "mutation" else f"{name} takes no argument"
            )


def _follow_links(outer: Markdown, inner: Markdown) -> None:
    """Let links that a block prints be rewritten and checked by MkDocs like those of the page itself."""
    if "relpath" in outer.treeprocessors:
        processor: Any = outer.treeprocessors["relpath"]
        vars(inner)["bookproof_inner"] = True  # told apart from the page's own instance
        inner.treeprocessors.register(type(processor)(processor.file, processor.files, processor.config), "relpath", 0)
