"""Compiled sources and templates: faster, and never those of another text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader

from bookproof import compiled
from bookproof.compiled import compile_sources, compiled_templates


def answer(folder: Path) -> str:
    """Return what a fresh process gets from the module."""
    code = "import shop, pathlib; print(shop.answer, pathlib.Path(shop.__cached__).exists())"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_edit_of_the_same_second_and_size_is_seen(tmp_path: Path) -> None:
    """Bytecode with a time would answer with the text of before."""
    source = tmp_path / "src/shop.py"
    source.parent.mkdir()
    source.write_text("answer = 1\n")
    before = source.stat()
    compile_sources(tmp_path, ("src",))
    assert answer(source.parent) == "1 True"
    source.write_text("answer = 2\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert answer(source.parent) == "2 True"


def test_only_what_is_outdated_is_compiled(tmp_path: Path) -> None:
    """Bytecode of a plain run is replaced, current bytecode is left, and a file that is no Python is no failure."""
    source = tmp_path / "src/shop.py"
    source.parent.mkdir()
    source.write_text("answer = 1\n")
    (tmp_path / "src/broken.py").write_text("answer =\n")
    subprocess.run(
        [sys.executable, "-c", "import shop"],
        cwd=source.parent,
        check=True,
        env=dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": ""},
    )
    (compiled,) = source.parent.glob("__pycache__/shop.*.pyc")
    with_time = compiled.read_bytes()
    compile_sources(tmp_path, ("src",))
    by_hash = compiled.stat()
    assert compiled.read_bytes() != with_time
    compile_sources(tmp_path, ("src",))
    assert compiled.stat().st_ino == by_hash.st_ino
    assert compiled.stat().st_mtime_ns == by_hash.st_mtime_ns
    assert len(list(source.parent.glob("__pycache__/*"))) == 1


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where bookproof seems to be installed, with nothing compiled in it."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.setattr(compiled, "__file__", str(folder / "compiled.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def shown(theme: Path, say: Callable[[str], str] = str.upper, **how: Any) -> str:
    """Return what a new build makes of the theme's only template."""
    env = Environment(loader=FileSystemLoader(theme), bytecode_cache=compiled_templates(None), **how)
    env.filters["say"] = say
    return env.get_template("page.html").render(name="<you>")


@pytest.fixture
def theme(tmp_path: Path) -> Path:
    folder = tmp_path / "theme"
    folder.mkdir()
    (folder / "page.html").write_text("{{ 'Hello' | say }} {{ name }}")
    return folder


def test_a_template_is_compiled_once_for_all_sites_of_an_environment(
    package: Path, theme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shown(theme)
    monkeypatch.setattr(Environment, "compile", lambda *_: pytest.fail("compiled again"))
    assert shown(theme) == first == "HELLO <you>"
    assert len(list(package.glob("__pycache__/templates/*"))) == 1


def test_a_template_is_never_answered_by_the_code_of_another(package: Path, theme: Path) -> None:
    """Of an earlier text, or of an environment in which a constant or a value comes out otherwise."""
    assert shown(theme) == "HELLO <you>"
    assert shown(theme, say=str.lower) == "hello <you>"
    assert shown(theme, autoescape=True) == "HELLO &lt;you&gt;"
    before = (theme / "page.html").stat()
    (theme / "page.html").write_text("{{ 'Again' | say }} {{ name }}")
    os.utime(theme / "page.html", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shown(theme) == "AGAIN <you>"


def test_templates_are_kept_with_the_site_where_bookproof_may_not_write_and_nowhere_where_python_may_not(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "__pycache__").write_text("no folder")
    assert compiled_templates(None) is None
    kept = compiled_templates(tmp_path / "site")
    assert kept is not None
    assert kept.directory == str(tmp_path / "site")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiled_templates(tmp_path / "site") is None
