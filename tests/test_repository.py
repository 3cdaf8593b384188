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


@pytest.fixture(scope="module")
def pins() -> ModuleType:
    specification = importlib.util.spec_from_file_location("pins", ROOT / ".ci" / "pins.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


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
