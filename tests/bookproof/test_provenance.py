"""A site says which commit and environment it came from, and `verify` tells a changed site from another environment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookproof import provenance
from bookproof.page import Claim, DiagramRecord, ExampleRecord, PageRecord
from bookproof.provenance import VerifyVerdict, compose, lock_digest, read_tree, refusals, set_epoch, verify, write

ROOT = Path(__file__).parents[2]
WHEN = "2026-01-05T08:00:00Z"


def git(at: Path, *arguments: str) -> str:
    named = {f"GIT_{who}_{what}": "x@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dated = {"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN}
    done = subprocess.run(
        ["git", *arguments], cwd=at, env=os.environ | named | dated, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def repository(folder: Path, **files: str) -> Path:
    """A repository with one commit of these files; in a name, two underscores are a slash and one is a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    return repository(tmp_path / "repo", a_txt="one", sub__b_txt="two", _gitignore="ignored/\n")


def test_a_clean_tree_is_its_commit(repo: Path) -> None:
    tree = read_tree(repo)
    assert (tree.commit, tree.time, tree.changes, tree.folder) == (git(repo, "rev-parse", "HEAD"), 1767600000, (), "")
    assert tree.why_draft == ()


def test_every_kind_of_change_is_named_and_makes_a_draft(repo: Path) -> None:
    """Edited, staged, removed, renamed, untracked in a new folder, with odd names; ignored files are not changes."""
    (repo / "a.txt").write_text("ONE")
    git(repo, "mv", "sub/b.txt", "sub/ c é.txt")
    for name in ("new/deep/d.txt", "ignored/e.txt"):
        (repo / name).parent.mkdir(parents=True)
        (repo / name).touch()
    tree = read_tree(repo)
    assert tree.changes == ("a.txt", "new/deep/d.txt", "sub/ c é.txt", "sub/b.txt")
    assert tree.why_draft == ("the tree differs from its commit in a.txt, new/deep/d.txt, sub/ c é.txt, sub/b.txt",)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_told_not_to_look_at_counts_as_changed(repo: Path, flag: str) -> None:
    git(repo, "update-index", flag, "a.txt")
    assert read_tree(repo).changes == ("a.txt",)


def test_what_the_build_itself_writes_is_no_change(repo: Path) -> None:
    for name in ("site/index.html", "site-old/index.html"):
        (repo / name).parent.mkdir()
        (repo / name).touch()
    assert read_tree(repo, ignore=[repo / "site"]).changes == ("site-old/index.html",)


def test_a_root_below_the_top_knows_its_folder_and_the_whole_repository(repo: Path) -> None:
    (repo / "a.txt").write_text("ONE")
    tree = read_tree(repo / "sub")
    assert (tree.folder, tree.changes) == ("sub/", ("a.txt",))


def test_without_git_or_a_commit_it_is_a_draft_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    tree = read_tree(tmp_path)
    assert tree.commit == ""
    assert "not a git repository" in tree.why_draft[0]
    git(tmp_path, "init", "-q")
    assert read_tree(tmp_path).why_draft[0].startswith("git names no commit: fatal: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file or directory: 'git'" in read_tree(tmp_path).why_draft[0]


def test_variables_of_a_git_hook_do_not_lead_it_elsewhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = repository(tmp_path / "other", z_txt="z")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    tree = read_tree(repo)
    monkeypatch.undo()
    assert tree.commit == git(repo, "rev-parse", "HEAD")


def test_a_named_commit_refuses_any_other_tree(repo: Path) -> None:
    """Another commit, an abbreviation, nothing at all, a dirty tree, no tree."""
    tree = read_tree(repo)
    assert refusals(tree, {}) == []
    assert refusals(tree, {"SITE_COMMIT": tree.commit}) == []
    for other in ("0" * 40, tree.commit[:12], ""):
        (failure,) = refusals(tree, {"SITE_COMMIT": other})
        assert str(failure) == (
            f"SITE_COMMIT: asks for {other!r}, but the tree is at {tree.commit} (the full id is needed)"
        )
    (repo / "new.txt").touch()
    (failure,) = refusals(read_tree(repo), {"SITE_COMMIT": tree.commit})
    assert str(failure) == "SITE_COMMIT: asks for a clean tree, but this one differs from its commit in new.txt"
    (failure,) = refusals(provenance.Tree(why="git names no commit: x"), {"SITE_COMMIT": tree.commit})
    assert failure.text == f"asks for {tree.commit}, but git names no commit: x"


def test_the_epoch_is_the_commit_time_unless_it_is_set(repo: Path) -> None:
    for given, expected in (({}, "1767600000"), ({"SOURCE_DATE_EPOCH": "5"}, "5")):
        environ = dict(given)
        set_epoch(read_tree(repo), environ)
        assert environ == {"SOURCE_DATE_EPOCH": expected}
    environ = {}
    set_epoch(provenance.Tree(), environ)
    assert environ == {}


def test_the_lock_digest_follows_every_pin_and_nothing_else(tmp_path: Path) -> None:
    seen = {lock_digest(tmp_path)}

    def changes(name: str, text: str) -> bool:
        (tmp_path / name).write_text(text)
        before = len(seen)
        seen.add(lock_digest(tmp_path))
        return len(seen) > before

    assert changes("pyproject.toml", '[tool.uv]\nconstraint-dependencies = ["a==1"]\n')
    assert changes("pyproject.toml", '[tool.uv]\nconstraint-dependencies = ["a==2"]\n')
    assert changes("pyproject.toml", '[tool.uv]\nbuild-constraint-dependencies = ["a==2"]\n')
    assert not changes("pyproject.toml", '[project]\nname = "x"\n[tool.uv]\nbuild-constraint-dependencies = ["a==2"]\n')
    assert changes("requirements.txt", "a==1\n")
    assert changes("package-lock.json", "{}")
    assert changes("requirements.txt", "a==2\n")
    assert not changes("uv.lock", "x")


def test_the_environment_names_what_bytes_may_depend_on() -> None:
    found = provenance.environment(node="v1", host={"userns": True, "openat2": False})
    assert list(found["host"].items()) == [("openat2", False), ("userns", True)]
    assert found["python"].count(".") == 2
    assert found["packages"]["mkdocs"].startswith("1.")
    assert {"implementation", "node", "platform", "sqlite"} <= found.keys()


def page() -> PageRecord:
    example = ExampleRecord("example-1", 3, "python", "print(1)", "1\n", "passed", "", ("paths", "address"))
    claims = [Claim("test", "t.py::b", 1, True), Claim("test", "t.py::a", 9, False), Claim("symbol", "m.f", 2, True)]
    return PageRecord("docs/a.md", "a/", [example], [DiagramRecord(7, "pie\n")], claims=claims, source="# A\n")


def record(tree: provenance.Tree, **more: Any) -> dict[str, Any]:
    return compose(
        tree,
        environment=provenance.environment(),
        lock="0" * 64,
        pages={"docs/a.md": provenance.page_entry(page(), "a/index.html")},
        tests={"t.py::a": {"verdict": "passed"}},
        mutations={"m": {"verdict": "killed", "test": "t.py::a"}},
        **more,
    )


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_record_lists_every_other_file_and_every_example(tmp_path: Path, repo: Path) -> None:
    site = tmp_path / "site"
    (site / "a").mkdir(parents=True)
    (site / "a" / "index.html").write_text("<p>")
    (site / "linked").symlink_to(repo)
    (site / provenance.FILE).write_text("an older one")
    path = write(site, record(read_tree(repo)))
    first = path.read_bytes()
    written = json.loads(first)
    assert written["files"] == {"a/index.html": sha256("<p>"), "linked": sha256(f"link to {repo}")}
    entry = written["pages"]["docs/a.md"]
    assert entry["examples"][0]["code"] == sha256("print(1)")
    assert entry["examples"][0]["output"] == sha256("1\n")
    assert entry["examples"][0]["rules"] == ["address", "paths"]
    assert (entry["tests"], entry["symbols"], entry["mutations"]) == (["t.py::a", "t.py::b"], ["m.f"], [])
    assert entry["source"] == sha256("# A\n")
    assert written["source"]["committed"] == WHEN
    assert written["source"]["draft"] is False
    assert first == (json.dumps(written, indent=1, sort_keys=True) + "\n").encode()
    assert write(site, record(read_tree(repo))).read_bytes() == first
    assert str(tmp_path) not in first.decode()


def test_every_reason_for_a_draft_stands_in_the_record(repo: Path) -> None:
    (repo / "a.txt").write_text("ONE")
    source = record(read_tree(repo), why_draft=["diagrams were not read"])["source"]
    assert source["draft"] is True
    assert source["why_draft"] == ["the tree differs from its commit in a.txt", "diagrams were not read"]
    assert source["changes"] == ["a.txt"]


def test_the_reference_names_every_key_of_the_record(repo: Path) -> None:
    """Down to where names stop being keys: pages, tests, mutations, packages, files."""
    text = (ROOT / "docs" / "reference" / "provenance.md").read_text("utf-8")
    found = record(read_tree(repo)) | {"files": {}}
    (entry,) = found["pages"].values()
    blocks = [
        found,
        found["build"],
        found["source"],
        found["environment"],
        entry,
        entry["examples"][0],
        entry["diagrams"][0],
    ]
    missing = [key for block in blocks for key in block if f"`{key}`" not in text]
    assert missing == []


CONFIG = (
    "site_name: x\nsite_url: !ENV SITE_URL\ntheme: {name: null, custom_dir: theme}\nplugins: []\nhooks: [hook.py]\n"
)
HOOK = """
import os, sys
from pathlib import Path
import toy
from bookproof import provenance

def on_config(config):
    global tree
    root = Path(config.config_file_path).parent
    tree = provenance.read_tree(root)
    found = provenance.refusals(tree)
    if found:
        sys.exit("\\n".join(map(str, found)))
    provenance.set_epoch(tree)

def on_page_content(html, page, config, files):
    return html + toy.WORD

def on_post_build(config):
    site = Path(config.site_dir)
    (site / "node.txt").write_text(os.environ.get("TOY_NODE", "same"))
    facts = provenance.environment(node=os.environ.get("TOY_NODE"))
    provenance.write(site, provenance.compose(tree, environment=facts, lock="0", site_url=config.site_url))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository whose HEAD has moved on, and a site built from the commit before."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "repo").mkdir()
    repo = repository(
        folder / "repo",
        docs__index_md="# One\n",
        theme__main_html="{{ page.content }}{{ build_date_utc }}",
        src__toy_py='WORD = "first"\n',
        mkdocs_yml=CONFIG,
        hook_py=HOOK,
        _gitignore="site/\n__pycache__/\n",
    )
    build(repo, folder / "site")
    (repo / "src" / "toy.py").write_text('WORD = "second"\n')
    git(repo, "commit", "-q", "-a", "-m", "y")
    (repo / "docs" / "index.md").write_text("# Not committed\n")
    return folder


def build(repo: Path, site: Path) -> None:
    subprocess.run(
        [provenance.sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(site)],  # type: ignore[attr-defined]
        cwd=repo,
        env=os.environ
        | {"PYTHONPATH": f"{repo / 'src'}{os.pathsep}{ROOT / 'src'}", "SITE_URL": "https://x.example/y/"},
        check=True,
        capture_output=True,
    )


@pytest.fixture
def site(built: Path, tmp_path: Path) -> Path:
    """A copy of the built site, to be changed."""
    return Path(shutil.copytree(built / "site", tmp_path / "site"))


def rewrite(site: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record, and make its digests match again."""
    document = json.loads((site / provenance.FILE).read_bytes())
    change(document)
    write(site, document)


@pytest.mark.site
def test_an_untouched_site_is_verified_from_a_clone_of_its_own_commit(built: Path, site: Path) -> None:
    """Although the working tree has another commit, other modules and uncommitted edits; which stay as they are."""
    before = git(built / "repo", "status", "--porcelain"), git(built / "repo", "rev-parse", "HEAD")
    found = verify(site, built / "repo")
    commit = json.loads((site / provenance.FILE).read_bytes())["source"]["commit"]
    assert str(found) == f"verified: {commit[:12]} builds the same 4 files, byte for byte"
    assert found.ok
    assert (git(built / "repo", "status", "--porcelain"), git(built / "repo", "rev-parse", "HEAD")) == before
    assert "first" in (site / "index.html").read_text()


def test_one_flipped_byte_an_added_and_a_missing_file_are_named(built: Path, site: Path) -> None:
    """Without a build: the site contradicts its own record."""
    page = bytearray((site / "index.html").read_bytes())
    page[3] ^= 1
    (site / "index.html").write_bytes(page)
    (site / "extra.js").touch()
    (site / "node.txt").unlink()
    found = verify(site, built / "no-such-repository")
    assert not found.ok
    assert str(found) == (
        "altered: the site is not what its provenance.json lists: "
        "1 file changed (index.html), 1 file added (extra.js), 1 file missing (node.txt)"
    )
    assert (found.changed, found.added, found.missing) == (("index.html",), ("extra.js",), ("node.txt",))


@pytest.fixture
def rebuilt(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the untouched site for what the commit builds, which the test above shows, to save the time."""
    monkeypatch.setattr(provenance, "_rebuild", lambda *_, **__: built / "site")


@pytest.mark.parametrize("fault", ["changed", "added", "missing"])
def test_each_fault_alone_is_enough(built: Path, site: Path, fault: str) -> None:
    if fault == "missing":
        (site / "node.txt").unlink()
    else:
        (site / ("node.txt" if fault == "changed" else "x")).write_text("x")
    found = verify(site, built / "no-such-repository")
    assert found.verdict is VerifyVerdict.ALTERED
    assert f"1 file {fault}" in found.summary


@pytest.mark.usefixtures("rebuilt")
def test_a_change_that_the_record_was_made_to_cover_is_found_by_building_again(built: Path, site: Path) -> None:
    (site / "index.html").write_text("forged")
    (site / "extra.js").touch()
    rewrite(site, lambda document: document["tests"].update({"t.py::forged": {"verdict": "passed"}}))
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.ALTERED
    assert (found.changed, found.added) == (("index.html", provenance.FILE), ("extra.js",))
    assert found.environment == ()


@pytest.mark.site
def test_another_environment_with_other_bytes_is_called_another_environment(
    built: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_NODE", "v1")
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.OTHER_ENVIRONMENT
    assert not found.ok
    assert found.environment == ("node none there, v1 here",)
    assert found.changed == ("node.txt",)
    assert "another than the recorded one: node none there, v1 here" in str(found)


@pytest.mark.usefixtures("rebuilt")
def test_another_environment_that_builds_the_same_bytes_is_verified(built: Path, site: Path) -> None:
    rewrite(site, lambda document: document["environment"]["packages"].update({"zzz": "1"}))
    found = verify(site, built / "repo")
    assert found.ok
    assert found.environment == ("packages zzz 1 there, none here",)


@pytest.mark.usefixtures("rebuilt")
def test_a_forged_result_is_altered_even_where_all_other_bytes_match(built: Path, site: Path) -> None:
    rewrite(site, lambda document: document["tests"].update({"t.py::forged": {"verdict": "passed"}}))
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.ALTERED
    assert found.changed == (provenance.FILE,)
    assert found.summary.endswith("1 file changed (provenance.json); the record in tests t.py::forged")


def test_a_draft_is_called_a_draft(built: Path, site: Path) -> None:
    rewrite(site, lambda document: document["source"].update(draft=True, why_draft=["x"], commit=None))
    found = verify(site, built / "repo")
    assert str(found) == "draft: all 4 digests match, but no commit holds this site: x"


def test_a_commit_that_is_not_there_cannot_be_verified(built: Path, site: Path) -> None:
    rewrite(site, lambda document: document["source"].update(commit="0" * 40))
    found = verify(site, built / "repo")
    assert str(found) == "unverifiable: all 4 digests match, but commit 000000000000 cannot be had from repo"


@pytest.mark.site
def test_a_commit_that_does_not_build_cannot_be_verified_and_its_last_words_are_told(built: Path, site: Path) -> None:
    rewrite(site, lambda document: document["build"].update(config_file="gone.yml"))
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.UNVERIFIABLE
    assert "gone.yml" in found.details


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("build", {"config_file": "/etc/mkdocs.yml"}),
        ("build", {"config_file": "../mkdocs.yml"}),
        ("build", {"src": "a/../../src"}),
        ("build", {"site_url": None}),
        ("source", {"folder": "/"}),
        ("source", {"commit": "--upload-pack=x"}),
        ("source", {"commit": None}),
        ("source", {"draft": "no"}),
    ],
)
def test_a_record_that_leads_out_of_the_clone_is_not_followed(
    built: Path, site: Path, part: str, change: dict[str, object]
) -> None:
    rewrite(site, lambda document: document[part].update(change))
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.UNVERIFIABLE
    assert found.summary.startswith("provenance.json cannot be used: ")


@pytest.mark.parametrize("text", [None, "", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "source": 3}'])
def test_a_site_without_a_usable_record_cannot_be_verified(built: Path, site: Path, text: str | None) -> None:
    (site / provenance.FILE).unlink()
    if text is not None:
        (site / provenance.FILE).write_text(text)
    found = verify(site, built / "repo")
    assert found.verdict is VerifyVerdict.UNVERIFIABLE
    assert found.summary.startswith("provenance.json cannot be used: ")
