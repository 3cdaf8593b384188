"""`bookproof run`: one example in a clone, as the build runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PAGE = """\
# Page

```python exec="on" id="first" session="s"
n = 1
print("first", n)
```

```console exec="on" id="shell"
$ echo two
```

```python exec="off" why="not here" id="never"
print("never")
```

```python exec="on" id="last" session="s"
print("last", n + 1)
```

```python exec="on" id="wrong" session="s"
1 / 0
```
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(PAGE)
    (tmp_path / "mkdocs.yml").write_text("site_name: tiny\nplugins:\n  - bookproof\n")
    return tmp_path


def run(root: Path, page: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("bookproof")), "run", page]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_one_example_runs_after_those_above_it_and_alone_is_shown(root: Path) -> None:
    done = run(root, "docs/index.md#last")
    assert (done.returncode, done.stdout) == (0, "last 2\n")


def test_a_page_runs_as_a_whole_and_ends_at_the_first_failure(root: Path) -> None:
    done = run(root, "docs/index.md")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "== first", "first 1", "== shell", "$ echo two", "two", "== never", "== last", "last 2", "== wrong",
    ]  # fmt: skip
    assert "not run: not here" in done.stderr
    assert "docs/index.md:21: python example failed: ZeroDivisionError" in done.stderr


def test_what_is_not_there_is_told_with_what_is(root: Path) -> None:
    done = run(root, "docs/index.md#gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert "it has first, shell, never, last, wrong" in done.stderr
    assert run(root, "docs/gone.md").returncode == 2
