"""Examples that run ahead of the rendering: each once, each page apart, and the same site as without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = pytest.mark.site

BLOCK = """
```python exec="on" session="s"
import os
with open({log!r}, "a") as file:
    print({number}, os.getppid(), os.getpid(), file=file)
kept = {number}
```

```python exec="on" session="s"
print("kept", kept)
```
"""


def runs(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


@pytest.fixture
def log(site: TinySite, tmp_path: Path) -> Path:
    """Six pages with examples, which write down that they ran, in which worker and which process."""
    log = tmp_path / "runs"
    for number in range(6):
        site.write(f"docs/page{number}.md", f"# Page\n{BLOCK.format(log=str(log), number=number)}")
    site.write("docs/index.md", "# Home\n")
    return log


@pytest.mark.parametrize("memory", ['cache: ""', "cache: .bookproof"])
def test_each_page_runs_once_in_one_of_two_workers(site: TinySite, log: Path, memory: str) -> None:
    site.options = f'outputs: ""\n{memory}'
    built = site.build("--strict")
    assert built.returncode == 0, built.log
    assert sorted(number for number, _, _ in runs(log)) == list("012345")
    assert len({worker for _, worker, _ in runs(log)}) == 2
    assert len({page for _, _, page in runs(log)}) == 6
    for number in range(6):
        assert f"kept {number}" in built.html(f"page{number}")


def test_a_failure_is_told_by_the_renderer_at_its_line(site: TinySite, log: Path) -> None:
    site.options = 'outputs: ""\ncache: ""'
    site.write("docs/page5.md", '# Page\n\n```python exec="on"\nprint(1)\n```\n\n```python exec="on"\n1 / 0\n```\n')
    built = site.build("-q")
    assert len(built.failures) == 1
    assert built.failures[0].startswith("docs/page5.md:8: python example failed: ZeroDivisionError")
    assert sorted(number for number, _, _ in runs(log)) == list("01234")


def test_a_page_of_which_the_scan_sees_other_text_is_run_by_the_renderer(site: TinySite, log: Path) -> None:
    """What a snippet brings is not in the page's source, and so not known ahead."""
    site.options = 'outputs: ""\ncache: ""'
    site.write("part.py", "print('from the snippet')\n")
    site.write("docs/page5.md", '# Page\n\n```python exec="on"\n--8<-- "part.py"\n```\n')
    built = site.build("--strict")
    assert built.returncode == 0, built.log
    assert "from the snippet" in built.html("page5")


def test_with_and_without_running_ahead_the_site_is_the_same(site: TinySite, log: Path) -> None:
    site.options = 'outputs: ""\ncache: ""'
    pages = [site.root / f"docs/page{number}.md" for number in range(6)]
    whole = site.build("--strict")
    manifest = json.loads((whole.site / "provenance.json").read_text())["pages"]
    for page in pages[3:]:  # too few of the others are left for a second worker
        page.unlink()
    few = site.build("--strict")
    told = json.loads((few.site / "provenance.json").read_text())["pages"]
    assert told == {name: entry for name, entry in manifest.items() if name in told}
    assert len(told) == 4
    assert len({worker for _, worker, _ in runs(log)[6:]}) == 1
