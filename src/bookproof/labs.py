"""Labs: what a reader's browser needs to run, break and repair the very code that the site was built from.

It promises that the site's `lab/` folder is made of this commit's `src` and `tests`, of the installed test tools and of
the packages that the lock pins, the same bytes each time; that a page which no reader touches loads one small script
and nothing else; and that no lab asks another host. It runs nothing: `labrun` does, in the browser.

How it is called by a build: `labs_off(...)` says why a site has no labs. Pages hold what `lab_place` returns; a site
with such a page loads `SCRIPT`; when the site is written, `write_labs` adds the folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

from bookproof.diagrams import NodeError, ensure_node_modules, find_node
from bookproof.knobs import knobs
from bookproof.mutations import Mutation
from bookproof.options import Settings
from bookproof.page import ExampleRecord, PageRecord

FOLDER = "lab"
"""The site-relative folder of everything below."""
SCRIPT = f"{FOLDER}/load.js"
"""The site-relative classic script that every page loads where the site has labs."""
TOOLS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Distributions that a test needs in the browser, taken as they are installed."""
_LIBRARY = "python_stdlib.zip"
_LOCK = "pyodide-lock.json"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", _LIBRARY, _LOCK)
"""The files of Pyodide that are copied."""

_PYODIDE = "node_modules/pyodide"
# What `labrun` and most packages import, beside what Pyodide loads to start.
_LOADED = (
    "ast", "dataclasses", "datetime", "difflib", "hashlib", "html", "ipaddress", "platform", "secrets", "shutil",
    "sqlite3", "tempfile", "unicodedata", "urllib.parse", "uuid",
)  # fmt: skip
_ASSETS = ("lab.mjs", "lab-worker.mjs", "lab.css")
_EDITOR = "editor.mjs"
# Of Pygments pytest imports the terminal formatter and two lexers; the others are four fifths of it.
_PYGMENTS = re.compile(
    r"pygments/(\w+|formatters/(__init__|_mapping|terminal)|styles/(__init__|_mapping|default)|filters/__init__"
    r"|lexers/(__init__|_mapping|diff|python|special))\.py"
)
_NEVER = (1980, 1, 1, 0, 0, 0)
# Where Pyodide would look for its files if nobody said where they are. The lab says it; the site's copy cannot ask.
_OTHER_HOST = re.compile(rb"(?<=[\"'`])https?://(?=[\w$])")
_BUNDLE = """
const [root, entry] = process.argv.slice(1);
const built = require(root + "/node_modules/esbuild").buildSync({
  stdin: { contents: require("fs").readFileSync(entry, "utf8"), resolveDir: root, sourcefile: "editor.mjs" },
  bundle: true, minify: true, format: "esm", target: "es2022", write: false, legalComments: "none", logLevel: "error",
});
process.stdout.write(built.outputFiles[0].text);
"""


UNPINNED = (
    "labs need Pyodide, and nothing pins it: add pyodide, esbuild and CodeMirror with exact versions to package.json, "
    "or set BOOKPROOF_LABS=off for a draft without labs"
)
"""Why a site has no labs although nobody switched them off: a failure of the blocks that ask for one."""


def labs_off(root: Path, *, serving: bool, environ: Mapping[str, str] = os.environ) -> str:
    """Return why this build leaves the labs out, for its pages to say; empty where it does not.

    Parameters:
        root: The repository.
        serving: Whether the site is only shown to its author.
        environ: Holds `BOOKPROOF_LABS` and `BOOKPROOF_NODE`.

    Raises:
        NodeError: `BOOKPROOF_LABS` holds something other than `on` or `off`.
    """
    asked = environ.get("BOOKPROOF_LABS", "")
    if asked not in {"", "on", "off"}:
        raise NodeError(f"BOOKPROOF_LABS is {asked!r}; it may be 'on' or 'off'", path="BOOKPROOF_LABS")
    if environ.get("BOOKPROOF_NODE") == "off":
        return "The labs are left out of this draft, which was built without node."
    if asked == "off":
        return "The labs are left out of this draft (BOOKPROOF_LABS=off)."
    if serving and not asked:
        return "The labs are left out while you write; BOOKPROOF_LABS=on brings them in."
    return "" if pyodide_version(root) else UNPINNED


def lab_place(kind: str, name: str, page: str, off: str = "") -> str:
    """Return the element that the lab's script fills.

    Parameters:
        kind: `run`, `knobs`, `crash`, `mutation` or `agree`.
        name: The example's or the mutation's id.
        page: The page, relative to the documentation folder.
        off: Why there are no labs; shown instead.
    """
    if off:
        return f'<p class="bookproof-note">{escape(off)}</p>'
    where = f'data-name="{escape(name)}" data-page="{escape(page.removesuffix(".md"))}"'
    without = "Labs need JavaScript."  # until the script puts its buttons here
    return f'<div class="bookproof-lab" data-bookproof-lab="{kind}" {where}>{without}</div>'


def has_labs(html: str) -> bool:
    """Tell whether a page holds what `lab_place` returns."""
    return 'data-bookproof-lab="' in html


def lab_mutations(html: str) -> list[str]:
    """Return the ids of the mutations that a page lets its reader try."""
    return re.findall(r'data-bookproof-lab="mutation" data-name="([\w-]+)"', html)


def write_labs(
    site: Path,
    settings: Settings,
    pages: Iterable[tuple[PageRecord, Sequence[Mutation]]],
    *,
    cache: Path | None = None,
) -> None:
    """Write the site's `lab/` folder.

    Parameters:
        site: The site.
        settings: The site's settings.
        pages: Every page with a lab, and the mutations that its reader may try.
        cache: Where archives and the editor are kept between builds; None: nowhere.

    Raises:
        NodeError: What the lock pins is not there, or the editor could not be bundled.
    """
    root, target = settings.root, site / FOLDER
    ensure_node_modules(root)
    (target / "pyodide").mkdir(parents=True, exist_ok=True)
    for name in PYODIDE:
        source = root / _PYODIDE / name
        if not source.is_file():
            raise NodeError(f"labs need Pyodide, and {_PYODIDE}/{name} is not installed: pin pyodide in package.json")
        if name == _LIBRARY:
            source = compiled_library(root)
        if name.endswith(".mjs"):
            (target / "pyodide" / name).write_bytes(_OTHER_HOST.sub(b"data:,", source.read_bytes()))
        elif name == _LOCK:  # of the packages that it names, none is here
            _write_json(target / "pyodide" / name, json.loads(source.read_text("utf-8")) | {"packages": {}})
        else:
            shutil.copyfile(source, target / "pyodide" / name)
    shutil.copyfile(root / _PYODIDE / "package.json", target / "pyodide" / "package.json")
    (target / "project.zip").write_bytes(_archive(project_files(settings), cache))
    (target / "tools.zip").write_bytes(_archive(tool_files(), cache))
    assets = files("bookproof") / "assets"
    (site / SCRIPT).write_bytes((assets / "lab-load.js").read_bytes())
    for name in _ASSETS:
        (target / name).write_bytes((assets / name).read_bytes())
    (target / _EDITOR).write_bytes(bundle_editor(root, cache))
    first = [*(f"pyodide/{name}" for name in PYODIDE if not name.endswith(".mjs")), "project.zip"]
    facts = {
        "pyodide": pyodide_version(root),
        "build": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        "tools": {name: distribution(name).version for name in TOOLS},
        "bytes": {"first": _sizes(target, first), "tests": _sizes(target, ["tools.zip"])},
        "src": settings.src,
    }
    _write_json(target / "lab.json", facts)
    for record, mutations in pages:
        name = record.path.removeprefix(f"{settings.docs}/").removesuffix(".md")
        _write_json(target / "pages" / f"{name}.json", page_facts(record, mutations))


def pyodide_version(root: Path) -> str:
    """Return the version of Pyodide that the lock pins; empty where it pins none."""
    try:
        lock = json.loads((root / "package-lock.json").read_text("utf-8"))
        return str(lock["packages"][_PYODIDE]["version"])
    except (OSError, ValueError, KeyError):
        return ""


def page_facts(record: PageRecord, mutations: Sequence[Mutation]) -> dict[str, Any]:
    """Return what the lab's script knows of one page: its examples with their outputs, and its mutations."""
    return {
        "examples": [_example_facts(example) for example in record.examples],
        "mutations": {
            mutation.id: {name: getattr(mutation, name) for name in ("title", "file", "before", "after", "test")}
            for mutation in mutations
        },
    }


def project_files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield what the lab's copy of the repository holds, and bookproof itself beside it."""
    own = Path(__file__).parent
    for path in sorted(own.glob("*.py")):
        yield f"lab/bookproof/{path.name}", path.read_bytes()
    outputs = settings.root / settings.outputs if settings.outputs else None
    for folder in (settings.src, settings.tests):
        for path in sorted((settings.root / folder).rglob("*")):
            if not path.is_file() or path.suffix == ".pyc" or own in path.parents:
                continue
            if outputs is None or outputs not in path.parents:
                yield f"project/{path.relative_to(settings.root).as_posix()}", path.read_bytes()
    if (settings.root / "pyproject.toml").is_file():
        yield "project/pyproject.toml", (settings.root / "pyproject.toml").read_bytes()


def tool_files() -> Iterator[tuple[str, bytes]]:
    """Yield the modules of the test tools, and the entry points and versions that they look up."""
    for name in TOOLS:
        for path in distribution(name).files or ():
            shown = path.as_posix()
            module = shown.endswith(".py") and (name != "pygments" or _PYGMENTS.fullmatch(shown))
            if module or shown.endswith(("dist-info/METADATA", "dist-info/entry_points.txt")):
                yield f"lab/{shown}", Path(str(path.locate())).read_bytes()


def archive(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a zip of named files: sorted, of one fixed time, compressed at a fixed level."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as into:
        for name, data in sorted(entries):
            entry = zipfile.ZipInfo(name, _NEVER)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            into.writestr(entry, data)
    return written.getvalue()


def bundle_editor(root: Path, cache: Path | None = None) -> bytes:
    """Return the editor as one module, made by the pinned esbuild of the pinned CodeMirror.

    Raises:
        NodeError: esbuild or a part of the editor is not installed.
    """
    entry = files("bookproof") / "assets" / "lab-editor.mjs"
    key = _digest((root / "package-lock.json").read_bytes(), entry.read_bytes(), _BUNDLE.encode())
    kept = cache / f"{key}.mjs" if cache is not None else None
    if kept is not None and kept.is_file():
        return kept.read_bytes()
    made = _run_node("the editor of the labs cannot be bundled", 60, "-e", _BUNDLE, str(root.resolve()), str(entry))
    _keep(kept, made)
    return made


def compiled_library(root: Path) -> Path:
    """Return Python's library with what labs load at once as bytecode: they start three times as fast.

    It depends on the installed packages alone, and is kept beside them.

    Raises:
        NodeError: Pyodide is not installed or could not be run.
    """
    ensure_node_modules(root)
    script = files("bookproof") / "assets" / "pyodide-compile.mjs"
    names = json.dumps(_LOADED)
    key = _digest(pyodide_version(root).encode(), script.read_bytes(), names.encode())
    kept = root / "node_modules" / ".bookproof" / f"library-{key[:16]}.zip"
    if not kept.is_file():
        wrong = "Python's library cannot be compiled for the labs"
        _keep(kept, _run_node(wrong, 300, str(script), str(root / _PYODIDE), names))
    return kept


def _run_node(wrong: str, timeout_seconds: float, *arguments: str) -> bytes:
    """Return what a script writes to standard output; its first words of complaint follow on what went wrong."""
    done = subprocess.run([*find_node(), *arguments], capture_output=True, check=False, timeout=timeout_seconds)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NodeError("\n".join([wrong, *said[:8]]))
    return done.stdout


def _example_facts(example: ExampleRecord) -> dict[str, Any]:
    options = example.options
    facts: dict[str, Any] = {"id": example.id, "line": example.line, "language": example.language}
    if example.language != "python" or options is None or not options.execute:
        return facts | {
            "skip": f"a {example.language} block" if example.status != "off" else "not run: " + example.detail
        }
    skip = f"it needs {', '.join(options.host)}" if options.host else ""
    kept = ("session", "result", "raises", "normalise", "workdir", "lab")
    return facts | {
        "skip": skip,
        "code": example.code,
        "digest": _digest(example.code.encode()),
        "output": example.output,
        "options": {name: value for name, value in dataclasses.asdict(options).items() if name in kept},
        "predict": options.predict,
        "knobs": [knob.as_json() for knob in knobs(example.code)] if options.lab == "knobs" else [],
    }


def _archive(entries: Iterable[tuple[str, bytes]], cache: Path | None) -> bytes:
    """Return `archive(entries)`, from the cache where the very same files were packed before."""
    found = sorted(entries)
    kept = None
    if cache is not None:
        kept = cache / f"{_digest(*(part for name, data in found for part in (name.encode(), data)))}.zip"
        if kept.is_file():
            return kept.read_bytes()
    packed = archive(found)
    _keep(kept, packed)
    return packed


def _keep(path: Path | None, data: bytes) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(path)


def _sizes(folder: Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", "utf-8")


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{len(part)}:".encode() + part)
    return total.hexdigest()
