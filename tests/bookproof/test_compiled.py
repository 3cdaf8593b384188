"""Compiled sources: faster, and never those of another text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bookproof.compiled import compile_sources


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
