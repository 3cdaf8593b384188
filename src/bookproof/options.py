"""What an author may write: the options of a fence, and the settings of a site with their defaults.

It promises that nothing unknown, misspelt or contradictory passes: every complaint about a fence is collected and
worded for the person who wrote it. It runs nothing and reads no file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bookproof.page import ALIASES


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a site; the names are those of the plugin's and the extension's options."""

    root: Path = Path()
    """The repository: messages are relative to it. The folder of `mkdocs.yml` unless set."""
    docs: str = "docs"
    """The documentation folder, relative to the root."""
    src: str = "src"
    """The folder of the packages that the pages speak of; put on the examples' module path."""
    tests: str = "tests"
    """The folder of the tests that pages may cite."""
    timeout_seconds: float = 10.0
    """How long one example may take."""
    outputs: str = "tests/outputs"
    """Where normalised outputs are committed, one text file per page; empty: not compared."""
    mutations: str = "tests/mutations.toml"
    """The mutations that pages may cite."""
    evidence: str = "evidence/index.md"
    """The page that an article's end links to, relative to the documentation folder; no link where there is none."""
    cache: str = ".bookproof"
    """Where passes are remembered between builds; empty: nowhere."""
    labs_off: str = ""
    """Why this site has no labs, for its pages to say; empty: it has them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that every example sees, beside the fixed ones."""
    host_facts: Mapping[str, str] = field(default_factory=dict)
    """Further host facts: name to a shell command that exits 0 where the fact holds."""
    plain_tokens: Sequence[str] = ()
    """Pygments' short names of tokens that the style sheet shows like any text; pages are smaller without them."""
    normalise: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further normalisation rules: name to `pattern` (a regular expression) and `replace`."""


@dataclass(frozen=True, slots=True)
class FenceOptions:
    """The options of one fence, checked and typed."""

    execute: bool = True
    why: str = ""
    """Why the block is not run; only with `exec="off"`."""
    id: str = ""
    session: str = ""
    """Python blocks of one page that share their variables."""
    source: str = "above"
    result: str = "text"
    raises: str = ""
    """Name of the exception class that must be raised (or of one of its bases)."""
    returncode: int = 0
    timeout_seconds: float = 10.0
    host: tuple[str, ...] = ()
    """Host facts without which the block is not run."""
    normalise: tuple[str, ...] = ()
    """Normalisation rules beside those that always apply."""
    workdir: str = "page"
    """`page`: the page's scratch folder; `root`: the repository."""
    tabs: tuple[str, str] = ("Source", "Result")
    lab: str = ""
    """What readers may do with this block in their browser: `run`, `knobs` or `crash`; empty: nothing."""
    predict: str = ""
    """What the reader is asked before a lab shows anything."""
    display: Mapping[str, str] = field(default_factory=dict)
    """Options that only concern how the source is shown: title, hl_lines, linenums."""


SOURCES = ("above", "below", "block", "tabbed-left", "tabbed-right", "none")
"""Where a block's source is shown."""
RESULTS = ("text", "markdown", "html", "mermaid", "none")
"""How a block's output is shown; any other value is the name of a Pygments lexer."""
_DISPLAY = ("title", "hl_lines", "linenums")
LABS = ("run", "knobs", "crash")
"""What a lab may be; the bare word `lab` means the first."""
_COMMON = ("exec", "why", "id", "source", "result", "timeout", "host", "normalise", "workdir", "tabs", *_DISPLAY)
_KNOWN = {
    "python": (*_COMMON, "session", "raises", "lab", "predict"),
    "bash": (*_COMMON, "returncode"),
    "console": (*_COMMON, "returncode"),
}
_BARE = ("lab",)


def parse(language: str, written: Sequence[tuple[str, str]], settings: Settings) -> tuple[FenceOptions, list[str]]:
    """Return the typed options of a fence and every complaint about them.

    Parameters:
        language: The fence's language as written.
        written: Its options in order; a bare word has itself as its value.
        settings: The site's settings, for defaults.

    Returns:
        Options, of use only when there are no complaints, and the complaints.
    """
    given = dict(written)
    proper = ALIASES.get(language.lower(), language.lower())
    complaints = [f"option {key} stands twice" for key in given if sum(key == k for k, _ in written) > 1]
    if given.get("exec") == "off":
        return _opted_out(given, complaints)
    if language != proper:
        complaints.append(f'{language} is not run: write {proper}, or exec="off" with a reason in why="..."')
        return FenceOptions(), complaints
    complaints += _spelling(proper, given)
    if "exec" not in given and not complaints:
        complaints.append('say whether this block runs: exec="on", or exec="off" with a reason in why="..."')
    elif given.get("exec", "on") != "on":
        complaints.append(f'exec is "on" or "off", not {given["exec"]!r}')
    if "why" in given:
        complaints.append('why="..." belongs to exec="off"')
    options = FenceOptions(
        id=given.get("id", ""),
        session=given.get("session", ""),
        source=given.get("source", "console" if proper == "console" else "above"),
        result=given.get("result", "text"),
        raises=given.get("raises", ""),
        returncode=int(_number(given, "returncode", 0, complaints, whole=True)),
        timeout_seconds=_number(given, "timeout", settings.timeout_seconds, complaints),
        host=_names(given.get("host", "")),
        normalise=_names(given.get("normalise", "")),
        workdir=given.get("workdir", "page"),
        tabs=_tabs(given.get("tabs", "Source|Result"), complaints),
        lab={"lab": "run"}.get(given.get("lab", ""), given.get("lab", "")),
        predict=given.get("predict", ""),
        display={key: given[key] for key in _DISPLAY if key in given},
    )
    return options, complaints + _values(proper, options, given) + _lab(options)


def _opted_out(given: Mapping[str, str], complaints: list[str]) -> tuple[FenceOptions, list[str]]:
    allowed = ("exec", "why", "id", *_DISPLAY)
    complaints += [f'option {key} means nothing with exec="off"' for key in given if key not in allowed]
    if given.get("why", "why").strip() in {"", "why"}:
        complaints.append('a block with exec="off" says why it is not run: why="..."')
    display = {key: given[key] for key in _DISPLAY if key in given}
    return FenceOptions(execute=False, why=given.get("why", ""), id=given.get("id", ""), display=display), complaints


def _spelling(language: str, given: Mapping[str, str]) -> list[str]:
    complaints = []
    for key, value in given.items():
        if key not in _KNOWN[language]:
            owners = [other for other, keys in _KNOWN.items() if key in keys]
            near = difflib.get_close_matches(key, _KNOWN[language], n=1)
            hint = (
                f" (it belongs to {' and '.join(owners)})" if owners else f" (did you mean {near[0]}?)" if near else ""
            )
            complaints.append(f"unknown option {key}{hint}")
        elif value == key and key not in _BARE:
            complaints.append(f'option {key} has no value: write {key}="..."')
        elif not value.strip():
            complaints.append(f"option {key} is empty")
    return complaints


def _values(language: str, options: FenceOptions, given: Mapping[str, str]) -> list[str]:
    complaints = []
    sources = ("console", "none") if language == "console" else SOURCES
    if options.source not in sources:
        complaints.append(f"source is one of {', '.join(sources)}, not {options.source!r}")
    if language == "console" and options.result not in {"text", "none"}:
        complaints.append(f"a console block shows its transcript: result is text or none, not {options.result!r}")
    elif options.result not in RESULTS and not _is_lexer(options.result):
        complaints.append(f"result is one of {', '.join(RESULTS)} or a language to highlight, not {options.result!r}")
    if options.workdir not in {"page", "root"}:
        complaints.append(f"workdir is page or root, not {options.workdir!r}")
    if options.timeout_seconds <= 0:
        complaints.append("timeout is a number of seconds above 0")
    if not 0 <= options.returncode <= 255:
        complaints.append("returncode is a number from 0 to 255")
    if "returncode" in given and options.returncode == 0:
        complaints.append("returncode names the code that a failing block ends with; 0 is the default")
    if options.id and not options.id.replace("-", "").replace("_", "").isalnum():
        complaints.append(f"id is made of letters, digits, - and _, not {options.id!r}")
    return complaints


def _lab(options: FenceOptions) -> list[str]:
    if not options.lab:
        return ["predict is the question of a lab: add lab"] if options.predict else []
    complaints = [] if options.lab in LABS else [f"lab is one of {', '.join(LABS)}, not {options.lab!r}"]
    if not options.id:
        complaints.append('a lab is found by its name: give it id="..."')
    if options.source == "none":
        complaints.append('a lab shows its source: source="none" would hide it')
    if options.lab == "crash" and (options.session or options.raises):
        complaints.append("a block that is killed has a process of its own: it has no session and raises nothing")
    return complaints


def _is_lexer(name: str) -> bool:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        get_lexer_by_name(name)
    except ClassNotFound:
        return False
    return True


def _number(given: Mapping[str, str], key: str, default: float, complaints: list[str], *, whole: bool = False) -> float:
    text = given.get(key, "")
    if not text or text == key:
        return default
    try:
        return int(text) if whole else float(text)
    except ValueError:
        complaints.append(f"{key} is a {'whole ' if whole else ''}number, not {text!r}")
        return default or 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _tabs(text: str, complaints: list[str]) -> tuple[str, str]:
    first, bar, second = text.partition("|")
    if not bar:
        complaints.append('tabs names two titles: tabs="Source|Result"')
    return first, second
