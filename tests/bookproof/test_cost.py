"""What bookproof adds to a build in which nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.site, pytest.mark.ci]

PAGES, BLOCKS = 30, 2
PLAIN = """
site_name: cost
theme: {name: material, font: false}
markdown_extensions: [tables, admonition, pymdownx.superfences, {pymdownx.highlight: {anchor_linenums: false}}]
"""


def seconds(root: Path, config: str) -> float:
    """Build, and return the processor time that the build and all its processes took."""
    before = os.times()
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", config, "-d", f"site-{config}"]
    subprocess.run(command, cwd=root, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def test_a_warm_build_of_thirty_pages_costs_half_a_second_more_than_one_without_it(tmp_path: Path) -> None:
    """Processor time, the best of three, side by side; half a second at the speed where the plain build takes 1.5 s."""
    (tmp_path / "plain.yml").write_text(PLAIN)
    (tmp_path / "proved.yml").write_text(PLAIN + "plugins: [search, bookproof]\n")
    (tmp_path / "docs").mkdir()
    for page in range(PAGES):
        blocks = [
            f'```python exec="on" id="b{block}"\nfor n in range({page}):\n    print(n, {page}, {block})\n```\n'
            for block in range(BLOCKS)
        ]
        (tmp_path / f"docs/page{page}.md").write_text(f"# Page {page}\n\n" + "\n\nSome words.\n\n".join(blocks))
    (tmp_path / "docs/index.md").write_text("# Home\n")
    command = Path(sys.executable).with_name("bookproof")
    subprocess.run([command, "accept", "-f", "proved.yml"], cwd=tmp_path, check=True)
    seconds(tmp_path, "proved.yml")
    pairs = [(seconds(tmp_path, "plain.yml"), seconds(tmp_path, "proved.yml")) for _ in range(3)]
    plain, proved = (min(column) for column in zip(*pairs, strict=True))
    print(f"plain {plain:.2f} s, with bookproof {proved:.2f} s, ratio {proved / plain:.2f}")
    assert proved - plain < 0.5 * max(1.0, plain / 1.5)
