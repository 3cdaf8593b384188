"""The repository itself: pinned dependencies, no host of a registry, one direction of imports, documented names."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(pin.split("==") for pin in PYPROJECT["tool"]["uv"]["constraint-dependencies"])


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def command(name: str) -> ModuleType:
    """Import a file of `.ci`."""
    specification = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pins() -> ModuleType:
    return command("pins")


def test_a_fresh_lock_finds_every_package_pinned(pins: ModuleType, tmp_path: Path) -> None:
    """A package that is missing in the list would float without anybody noticing."""
    if shutil.which("uv") is None and "CI" not in os.environ:
        pytest.skip("uv is not installed")
    try:
        locked = pins.lock((ROOT / "pyproject.toml").read_text(), tmp_path)
    except SystemExit as failure:
        if "CI" not in os.environ and re.search("error sending request|Failed to fetch", str(failure)):
            pytest.skip("the package registry cannot be reached")
        raise
    assert locked == PINS


def test_the_hashed_requirements_hold_the_same_pins() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert dict(re.findall(r"^([\w.-]+)==([^ ;\\]+)", text, flags=re.MULTILINE)) == PINS
    assert text.count("--hash=sha256:") >= len(PINS)


def test_the_build_back_end_is_pinned() -> None:
    names = {pin.split("==")[0] for pin in PYPROJECT["tool"]["uv"]["build-constraint-dependencies"]}
    assert "hatchling" in names


def test_no_file_names_the_host_of_a_registry() -> None:
    host = re.compile("|".join((r"py" + r"pi\.org", r"python" + r"hosted\.org", r"registry\." + r"npm" + r"js")))
    named = [str(path.relative_to(ROOT)) for path in tracked() if host.search(path.read_text(errors="replace"))]
    assert named == []


def test_no_lock_with_addresses_is_committed() -> None:
    files = {path.name for path in tracked()}
    assert "uv.lock" not in files
    assert ".python-version" not in files
    for path in tracked():
        if path.name == "package-lock.json":
            assert '"resolved"' not in path.read_text()


def public_modules() -> list[Path]:
    return [
        path
        for package in ("sovereign_agent", "bookproof")
        for path in sorted((ROOT / "src" / package).glob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]


@pytest.mark.parametrize("path", public_modules(), ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_module_says_what_it_promises_and_every_public_name_is_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), path
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    named = [node for node in named if not node.name.startswith("_")]
    classes = [node for node in named if isinstance(node, ast.ClassDef)]
    named += [child for node in classes for child in node.body if isinstance(child, ast.FunctionDef)]
    undocumented = [
        f"{path.name}:{node.lineno} {node.name}"
        for node in named
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert undocumented == []


def test_mechanism_modules_import_only_the_standard_library_at_the_top() -> None:
    """They run unchanged in a browser, where there is no subprocess and nothing to install."""
    import sys

    allowed = sys.stdlib_module_names - {"subprocess", "multiprocessing", "concurrent", "socket", "ctypes", "asyncio"}
    for path in (ROOT / "src" / "sovereign_agent").glob("*.py"):
        if path.stem in ("cli", "__main__", "memory_index"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and node.level == 0
                else []
            )
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_a_record_is_stale_once_a_measured_file_has_changed_is_new_or_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = command("record")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "_git", lambda *_: "0" * 40)
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text(name)
    known = record.about("*.py", "c.txt", browser="Chromium 1")
    assert "Chromium 1" in record.where(known)
    assert "are the same" in record.since(known)
    for change in (
        lambda: (tmp_path / "b.py").write_text("changed"),
        lambda: (tmp_path / "d.py").write_text("new"),
        (tmp_path / "c.txt").unlink,
    ):
        change()
        assert "have changed" in record.since(known)
        (tmp_path / "b.py").write_text("b.py")
        (tmp_path / "d.py").unlink(missing_ok=True)


def test_nothing_is_recorded_from_a_tree_that_differs_from_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = command("record")
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "_git", lambda *_: " M src/x.py")
    with pytest.raises(SystemExit, match=r"src/x\.py"):
        record.write("x", {})
    assert record.read("x") == {}
    monkeypatch.setattr(record, "_git", lambda *_: "")
    record.write("x", {"seconds": 1})
    assert record.read("x") == {"seconds": 1}


def test_each_record_of_a_run_names_its_commit_its_machine_and_its_files() -> None:
    record = command("record")
    for path in sorted((ROOT / "docs" / "evidence").glob("*.json")):
        found = record.read(path.stem)
        runs = [one for one in (found, *found.values()) if isinstance(one, dict) and "measured_files" in one]
        assert runs or path.stem == "zensical", path  # which names versions, and is no measurement
        for run in runs:
            assert re.fullmatch("[0-9a-f]{40}", run["commit"]), path
            assert record.where(run)
            assert "measured files" in record.since(run)
