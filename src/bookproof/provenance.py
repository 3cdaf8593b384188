"""Provenance: which commit and environment a site came from, what was run for it, and a digest of every file.

This module promises that `provenance.json` lists every other file of the site with its sha256, and that `verify` tells
a site that was changed afterwards from one that was merely built elsewhere. It does not prove who built a site: whoever
can rewrite all of it can rewrite the record too, which is why `verify` builds the commit again and compares bytes.

How it is called by a build:

1. `tree = read_tree(root, ignore=…)`, then `refusals(tree)`: the failures of `SITE_COMMIT`; the build ends with them.
2. `set_epoch(tree)` before anything reads the time: the commit's time becomes `SOURCE_DATE_EPOCH` unless it is set.
3. When everything else is in the site: `write(site_dir, compose(…))`. Nothing may touch the site after that.

and by hand: `verify(site, repository)`, which runs the code of the recorded commit, as building it would.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from bookproof.cache import installed
from bookproof.page import Failure, PageRecord

FILE = "provenance.json"
"""Name of the record in the site."""
EDITIONS = "editions.json"
"""Name of the record of what `bookproof editions` added to the site."""
SCHEMA = 1
"""Version of either record's shape; documented in `docs/reference/provenance.md`."""

_BUILD_SECONDS = 1800
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Tree:
    """What git says of the working tree that a site is built from."""

    commit: str = ""
    """Full id of HEAD; empty where there is none."""
    time: int = 0
    """Committer time of HEAD, in seconds since 1970 UTC."""
    changes: tuple[str, ...] = ()
    """Every path that differs from HEAD, untracked ones included, relative to the repository's top, sorted."""
    folder: str = ""
    """Where the site's root lies in the repository, empty for its top, else with a slash at its end."""
    why: str = ""
    """Why there is no commit; empty where there is one."""

    @property
    def why_draft(self) -> tuple[str, ...]:
        """Reasons why a site built from this tree is a draft; none for a clean commit."""
        if not self.commit:
            return (self.why or "there is no commit",)
        return (f"the tree differs from its commit in {_named(self.changes)}",) if self.changes else ()


class VerifyVerdict(StrEnum):
    """What `verify` found."""

    VERIFIED = "verified"
    """Every digest matches, and the recorded commit builds the same bytes."""
    ALTERED = "altered"
    """The site is not what its record lists, or not what its commit builds in the recorded environment."""
    OTHER_ENVIRONMENT = "other environment"
    """Every digest matches, but this machine differs from the recorded one, and so do the bytes that it builds."""
    DRAFT = "draft"
    """Every digest matches, but no commit holds what the site was built from."""
    UNVERIFIABLE = "unverifiable"
    """There is no usable record, or the commit cannot be built here."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of `verify`; `str()` is one line."""

    verdict: VerifyVerdict
    summary: str
    """What was found, in one sentence."""
    changed: tuple[str, ...] = ()
    """Site-relative paths whose bytes differ."""
    added: tuple[str, ...] = ()
    """Site-relative paths that should not be there."""
    missing: tuple[str, ...] = ()
    """Site-relative paths that should be there."""
    environment: tuple[str, ...] = ()
    """How this environment differs from the recorded one."""
    details: str = ""
    """The last lines of a build that failed."""

    @property
    def ok(self) -> bool:
        """Whether the site is proved to be what its commit builds."""
        return self.verdict is VerifyVerdict.VERIFIED

    def __str__(self) -> str:
        """Return `altered: 1 file changed (index.html)`."""
        return f"{self.verdict}: {self.summary}"


def read_tree(root: Path, *, ignore: Iterable[Path] = ()) -> Tree:
    """Ask git for the commit and for everything that differs from it.

    A file that git was told not to look at (assume-unchanged, skip-worktree) counts as changed: nobody can know.

    Parameters:
        root: The site's root, anywhere in a repository.
        ignore: Folders that this very build writes.
    """
    try:
        top, folder = _git(root, "rev-parse", "--show-toplevel", "--show-prefix").split("\n")[:2]
        commit, time = _git(root, "show", "-s", "--format=%H %ct", "HEAD").split()
        status = _git(
            root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none"
        )
        flags = _git(Path(top), "ls-files", "-v", "-z")
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        return Tree(why=f"git names no commit: {said[0] if said else error}")
    written = [Path(path).resolve() for path in ignore]
    changed = {entry[3:] for entry in status.split("\0") if entry}
    hidden = {entry[2:] for entry in flags.split("\0") if entry and (entry[0] == "S" or entry[0].islower())}
    changes = sorted(
        path
        for path in changed | hidden
        if not any((Path(top) / path).resolve().is_relative_to(own) for own in written)
    )
    return Tree(commit, int(time), tuple(changes), folder)


def refusals(tree: Tree, environ: Mapping[str, str] = os.environ) -> list[Failure]:
    """Return why a build that `SITE_COMMIT` asks for cannot be made from this tree; nothing when it is not set."""
    if "SITE_COMMIT" not in environ:
        return []
    asked, found = environ["SITE_COMMIT"], []
    if not tree.commit:
        found.append(f"asks for {asked}, but {tree.why}")
    elif asked != tree.commit:
        found.append(f"asks for {asked!r}, but the tree is at {tree.commit} (the full id is needed)")
    if tree.changes:
        found.append(f"asks for a clean tree, but this one differs from its commit in {_named(tree.changes, 20)}")
    return [Failure("SITE_COMMIT", 0, text) for text in found]


def set_epoch(tree: Tree, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let everything that stamps a time into the site stamp the commit's, unless the caller has set another one."""
    if tree.commit:
        environ.setdefault("SOURCE_DATE_EPOCH", str(tree.time))


def lock_digest(root: Path) -> str:
    """Return the sha256 over everything that pins a dependency.

    These are the constraints under `[tool.uv]` of `pyproject.toml`, `requirements.txt` and `package-lock.json`; one
    that is absent counts as absent.
    """
    project = root / "pyproject.toml"
    uv = tomllib.loads(project.read_text("utf-8")).get("tool", {}).get("uv", {}) if project.is_file() else {}
    pins: dict[str, Any] = {name: uv.get(name) for name in ("constraint-dependencies", "build-constraint-dependencies")}
    for name in ("requirements.txt", "package-lock.json"):
        pins[name] = _digest((root / name).read_bytes()) if (root / name).is_file() else None
    return _digest(json.dumps(pins, sort_keys=True).encode("utf-8"))


def environment(*, node: str | None = None, host: Mapping[str, bool] | None = None) -> dict[str, Any]:
    """Return what the bytes of a site may depend on beside its commit.

    Parameters:
        node: Node's version, "off" for a draft without it, None where the site needs none.
        host: Facts about the host, such as `userns` and `openat2`, and whether they hold.
    """
    return {
        "host": dict(sorted((host or {}).items())),
        "implementation": platform.python_implementation(),
        "node": node,
        "packages": installed(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def page_entry(record: PageRecord, file: str) -> dict[str, Any]:
    """Return what the record says of one page.

    Parameters:
        record: What the page showed.
        file: Its file in the site.
    """

    def cited(kind: str) -> list[str]:
        return sorted({claim.name for claim in record.claims if claim.kind == kind})

    examples = [
        {
            "code": _digest(example.code.encode("utf-8")),
            "detail": example.detail,
            "id": example.id,
            "language": example.language,
            "line": example.line,
            "output": _digest(example.output.encode("utf-8")),
            "rules": sorted(example.rules),
            "status": example.status,
        }
        for example in record.examples
    ]
    return {
        "diagrams": [
            {"line": diagram.line, "printed": diagram.printed, "text": _digest(diagram.text.encode("utf-8"))}
            for diagram in record.diagrams
        ],
        "examples": examples,
        "file": file,
        "mutations": cited("mutation"),
        "source": _digest(record.source.encode("utf-8")),
        "symbols": cited("symbol"),
        "tests": cited("test"),
    }


def compose(
    tree: Tree,
    *,
    environment: Mapping[str, Any],
    lock: str,
    site_url: str = "",
    config_file: str = "mkdocs.yml",
    src: str = "src",
    pages: Mapping[str, Mapping[str, Any]] | None = None,
    tests: Mapping[str, Mapping[str, Any]] | None = None,
    mutations: Mapping[str, Mapping[str, Any]] | None = None,
    why_draft: Sequence[str] = (),
    notes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of a build, without the digests of the files, which `write` adds.

    Parameters:
        tree: What git said before the build.
        environment: See `environment`.
        lock: See `lock_digest`.
        site_url: The address that the site was built for.
        config_file: MkDocs' configuration, relative to the root.
        src: Folder of the modules to import, relative to the root.
        pages: By repository-relative path of the source; see `page_entry`.
        tests: By node id, each with at least `verdict`.
        mutations: By id, each with at least `verdict` and `test`.
        why_draft: Reasons beside the tree's own why this is a draft, such as an example that this host cannot run.
        notes: What else a reader should know, such as which addresses were cut from the theme's script.
    """
    reasons = [*tree.why_draft, *why_draft]
    committed = datetime.fromtimestamp(tree.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if tree.commit else None
    return {
        "build": {"config_file": config_file, "site_url": site_url, "src": src},
        "environment": dict(environment),
        "lock": lock,
        "mutations": dict(mutations or {}),
        "notes": dict(notes or {}),
        "pages": dict(pages or {}),
        "schema": SCHEMA,
        "source": {
            "changes": list(tree.changes),
            "commit": tree.commit or None,
            "committed": committed,
            "draft": bool(reasons),
            "folder": tree.folder,
            "why_draft": reasons,
        },
        "tests": dict(tests or {}),
    }


def write(site_dir: Path, document: Mapping[str, Any]) -> Path:
    """Write the record, with the sha256 of every other file of the site; nothing may be written after it."""
    path = site_dir / FILE
    text = json.dumps({**document, "files": file_digests(site_dir)}, indent=1, sort_keys=True)
    path.write_bytes((text + "\n").encode("utf-8"))
    return path


def write_editions(site_dir: Path) -> list[str]:
    """Write the record of every file that the site's own record does not list; return their names.

    The record says by its digest which site they were added to, and so of which commit they are.
    """
    data = (site_dir / FILE).read_bytes()
    document = json.loads(data)
    added = {name: own for name, own in file_digests(site_dir).items() if name not in document["files"]}
    record = {
        "commit": document["source"]["commit"],
        "draft": document["source"]["draft"],
        "files": added,
        "provenance": _digest(data),
        "schema": SCHEMA,
    }
    (site_dir / EDITIONS).write_bytes((json.dumps(record, indent=1, sort_keys=True) + "\n").encode("utf-8"))
    return sorted(added)


def file_digests(site_dir: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder but the record itself, by site-relative POSIX path."""
    return {name: _digest(data) for name, data in _files(site_dir) if name != FILE}


def verify(site: Path, repository: Path) -> Verification:
    """Check a site against its own record, and its record against the commit that it names.

    Parameters:
        site: The built site, as a folder.
        repository: A clone of the repository that holds the recorded commit. It is not changed.

    Returns:
        The verdict. Another environment is never reported as tampering, unless the site contradicts its own record.
    """
    try:
        document = _read_document(site)
    except (OSError, ValueError) as error:
        return Verification(VerifyVerdict.UNVERIFIABLE, f"{FILE} cannot be used: {error}")
    try:
        editions = _read_editions(site, document)
    except (OSError, ValueError) as error:
        return Verification(VerifyVerdict.ALTERED, f"{EDITIONS} does not belong to this site: {error}")
    recorded: dict[str, str] = {**document["files"], **editions}
    changed, added, missing = _differences(recorded, file_digests(site))
    if changed or added or missing:
        lists = f"{FILE} and {EDITIONS} list" if editions else f"{FILE} lists"
        summary = f"the site is not what its {lists}: {_told(changed, added, missing)}"
        return Verification(VerifyVerdict.ALTERED, summary, changed, added, missing)
    source = document["source"]
    if source["draft"]:
        reasons = "; ".join(source["why_draft"])
        return Verification(
            VerifyVerdict.DRAFT, f"all {len(recorded)} digests match, but no commit holds this site: {reasons}"
        )
    with tempfile.TemporaryDirectory(prefix="bookproof-verify-") as temporary:
        try:
            rebuilt = _rebuild(repository, document, Path(temporary), editions=bool(editions))
        except _CannotBuildError as error:
            summary = f"all {len(recorded)} digests match, but {error}"
            return Verification(VerifyVerdict.UNVERIFIABLE, summary, details=error.details)
        return _compare(site, rebuilt, document)


def _compare(site: Path, rebuilt: Path, document: Mapping[str, Any]) -> Verification:
    """Compare a site, whose own digests match, with what its commit builds here."""
    commit = document["source"]["commit"]
    try:
        again = _read_document(rebuilt)
    except (OSError, ValueError) as error:
        return Verification(
            VerifyVerdict.UNVERIFIABLE, f"{commit[:12]} builds a site whose {FILE} cannot be used: {error}"
        )
    elsewhere = _environment_differences(document["environment"], again["environment"])
    changed, added, missing = _differences(file_digests(rebuilt), file_digests(site))
    same_record = (site / FILE).read_bytes() == (rebuilt / FILE).read_bytes()
    if elsewhere and not same_record:
        ours, theirs = ({**record, "environment": None, "files": None} for record in (document, again))
        same_record = ours == theirs
    if not same_record:
        changed = tuple(sorted({*changed, FILE}))
    told = _told(changed, added, missing)
    if not same_record:
        parts = [name for name, _, _ in _flat_differences(document, again, "") if not name.startswith("files ")]
        told += f"; the record in {_named(parts)}" if parts else ""
    where = f"this environment is another than the recorded one: {'; '.join(elsewhere)}" if elsewhere else ""
    if not (changed or added or missing):
        same = f"{commit[:12]} builds the same {len(file_digests(site))} files, byte for byte"
        return Verification(VerifyVerdict.VERIFIED, f"{same} ({where})" if where else same, environment=elsewhere)
    if elsewhere:
        summary = f"{where}; its build of {commit[:12]} differs, which proves nothing: {told}"
        return Verification(VerifyVerdict.OTHER_ENVIRONMENT, summary, changed, added, missing, elsewhere)
    return Verification(
        VerifyVerdict.ALTERED, f"the site is not what {commit[:12]} builds: {told}", changed, added, missing
    )


class _CannotBuildError(Exception):
    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


def _rebuild(repository: Path, document: Mapping[str, Any], temporary: Path, *, editions: bool) -> Path:
    """Build the recorded commit, and its editions if asked, with the modules of a clone; return the new site."""
    source, build = document["source"], document["build"]
    clone, site = temporary / "clone", temporary / "site"
    try:
        top = _git(repository, "rev-parse", "--show-toplevel").rstrip("\n")
        _git(repository, "cat-file", "-e", f"{source['commit']}^{{commit}}")
        _git(temporary, "clone", "--quiet", "--no-checkout", top, str(clone))
        # A commit that no branch holds is not cloned; it is fetched by its id from the repository that has it.
        _git(clone, "fetch", "--quiet", top, source["commit"])
        _git(clone, "checkout", "--quiet", "--detach", source["commit"])
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise _CannotBuildError(f"commit {source['commit'][:12]} cannot be had from {repository.name}", said) from error
    root = clone / source["folder"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BOOKPROOF_", "GIT_", "GITHUB_"))}
    kept.pop("SOURCE_DATE_EPOCH", None)
    module = ["-m", "bookproof", "editions"] if editions else ["-m", "mkdocs", "build"]
    command = [sys.executable, *module, "-f", build["config_file"], "-d", str(site)]
    settings = {
        "PYTHONPATH": str(root / build["src"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SITE_COMMIT": source["commit"],
        "SITE_URL": build["site_url"],
    }
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=kept | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _CannotBuildError(f"commit {source['commit'][:12]} does not build here", str(error)) from error
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-20:])
        raise _CannotBuildError(f"commit {source['commit'][:12]} does not build here", last)
    return site


def _read_document(site: Path) -> dict[str, Any]:
    """Read a record and see that it has the shape on which everything here relies.

    Raises:
        OSError: There is no such file.
        ValueError: It is not a record of this schema.
    """
    document = json.loads((site / FILE).read_bytes().decode("utf-8"))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"it is not a record of schema {SCHEMA}")
    try:
        source, build, files = document["source"], document["build"], document["files"]
        texts = [build["config_file"], build["src"], source["folder"], build["site_url"], *source["why_draft"]]
        complete = (
            all(isinstance(text, str) for text in [*texts, *files, *files.values()])
            and isinstance(document["environment"], dict)
            and isinstance(source["draft"], bool)
            and (source["draft"] or re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", source["commit"]) is not None)
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"something is missing from it: {error}") from error
    # The record is not to be trusted: nothing in it may lead a build out of the clone.
    paths = [PurePosixPath(text) for text in texts[:3]]
    if not complete or any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("a value in it has another form than its schema says")
    return document


def _read_editions(site: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every file that was added to a site, the record of them included; none where it has none.

    Raises:
        ValueError: The record belongs to another site, or claims a file of the site itself.
    """
    if not (site / EDITIONS).exists():
        return {}
    data = (site / EDITIONS).read_bytes()
    record = json.loads(data)
    files = record.get("files") if isinstance(record, dict) else None
    if not isinstance(files, dict) or record.get("schema") != SCHEMA:
        raise ValueError(f"it is not a record of schema {SCHEMA}")
    if record.get("provenance") != _digest((site / FILE).read_bytes()):
        raise ValueError(f"it names another {FILE}")
    if twice := sorted(files.keys() & (document["files"].keys() | {EDITIONS})):
        raise ValueError(f"it claims {_named(twice)}")
    return {**files, EDITIONS: _digest(data)}


def _differences(
    expected: Mapping[str, str], found: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return names that are changed, added and missing."""
    changed = tuple(sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name]))
    return changed, tuple(sorted(found.keys() - expected.keys())), tuple(sorted(expected.keys() - found.keys()))


def _environment_differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} {'none' if was is None else was} there, {'none' if now is None else now} here"
        for name, was, now in _flat_differences(recorded, here, "")
    )


def _flat_differences(
    recorded: Mapping[str, Any], here: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, object, object]]:
    for name in sorted(recorded.keys() | here.keys()):
        was, now = recorded.get(name), here.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _flat_differences(was, now, f"{prefix}{name} ")
        elif was != now:
            yield f"{prefix}{name}", was, now


def _told(changed: Sequence[str], added: Sequence[str], missing: Sequence[str]) -> str:
    parts = []
    for names, word in ((changed, "changed"), (added, "added"), (missing, "missing")):
        if names:
            parts.append(f"{len(names)} {'file' if len(names) == 1 else 'files'} {word} ({_named(names)})")
    return ", ".join(parts)


def _named(names: Sequence[str], shown: int = _NAMES_SHOWN) -> str:
    more = len(names) - shown
    return ", ".join([*names[:shown], *([f"{more} more"] if more > 0 else [])])


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a folder: its relative POSIX path and its bytes; a link is its target's name."""
    for at, folders, names in os.walk(folder):
        for name in sorted([*names, *folders]):
            path = Path(at) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                yield relative, b"link to " + os.fsencode(path.readlink())
            elif path.is_file():
                yield relative, path.read_bytes()


def _git(at: Path, *arguments: str) -> str:
    # Variables that a hook or another worktree sets would make git look elsewhere.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        [
            "git",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "log.showSignature=false",
            *arguments,
        ],
        cwd=at,
        env=clean | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=True,
    )
    return done.stdout


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
