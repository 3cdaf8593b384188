"""What MkDocs, SuperFences and markdown-exec let pass in silence, measured once, and what a build here makes of it.

The other traps stand beside the feature that they belong to: failing, exiting, hanging and misspelt blocks in
`test_faults`, verbosity and strictness in `test_builds`, times in `test_provenance`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bookproof.diagrams import ensure_node_modules

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flags", [(), ("-q", "--strict"), ("-v", "--strict")])
def test_a_dead_fragment_is_red_at_every_verbosity(site: TinySite, flags: tuple[str, ...]) -> None:
    """MkDocs tells it at level INFO unless asked otherwise, and loses count of warnings with -v and -q."""
    site.write("docs/index.md", "# Home\n\n[there](other.md#gone)\n")
    site.write("docs/other.md", "# Other\n")
    built = site.build(*flags)
    assert built.returncode == 1
    assert "docs/index.md:3: link 'other/#gone' leads to no place" in built.log
    assert list(built.site.iterdir()) == []


def test_a_broken_diagram_is_red_at_its_line(site: TinySite) -> None:
    """Without the plugin nobody but the reader's browser finds it; printed ones are read too."""
    ensure_node_modules(ROOT)
    for name in ("package.json", "package-lock.json", "node_modules"):
        (site.root / name).symlink_to(ROOT / name)
    page = """
        # Home

        ```mermaid
        sequenceDiagram
          A->>B: x
          B->>
          A->>B: y
        ```

        ```python exec="on" result="mermaid"
        print("flowchart LR")
        print("  A --")
        ```
    """
    site.write("docs/index.md", page)
    told = site.build("-q").failures
    assert len(told) == 2, told
    assert told[0].startswith("docs/index.md:6: diagram does not parse: ")
    assert told[1].startswith("docs/index.md:10: printed diagram does not parse (line 2 of it): ")
    draft = site.build(BOOKPROOF_NODE="off")
    assert draft.returncode == 0, draft.log
    assert "diagrams were not read (BOOKPROOF_NODE=off)" in draft.html()
    assert 'class="mermaid"' not in draft.html(), "or the theme would fetch a script to draw it"
    site.write("docs/index.md", page.replace("B->>\n", "B->>A: y\n").replace("A --", "A --> B"))
    good = site.build("--strict")
    assert good.returncode == 0, good.log
    assert (good.site / "assets/mermaid/mermaid.esm.min.mjs").is_file()


def test_an_error_within_a_fence_ends_the_build(site: TinySite) -> None:
    """SuperFences swallows whatever a formatter raises, except its own exception, and shows the raw fence."""
    site.options = 'outputs: ""\ncache: ""\nhost_facts: {moon: [3]}'  # which no shell can run
    site.write("docs/index.md", '```python exec="on" host="moon"\npass\n```\n')
    built = site.build("-q")
    assert built.returncode != 0
    assert "bookproof: docs/index.md: TypeError" in built.log


def test_numbered_lines_that_would_repeat_ids_are_refused(site: TinySite) -> None:
    site.extensions = "  - pymdownx.highlight: {anchor_linenums: true}"
    site.write("docs/index.md", "# Home\n")
    built = site.build("-q")
    assert built.returncode == 1
    assert "anchor_linenums repeats ids in executed blocks" in built.log


def test_a_failing_example_of_a_snippet_or_a_docstring_is_red_at_its_page(site: TinySite) -> None:
    """They stand in no line of the page, and are run all the same, once."""
    site.plugins = "  - mkdocstrings: {handlers: {python: {paths: [src]}}}"
    block = '```python exec="on"\nraise ValueError("{}")\n```\n'
    site.write("part.md", block.format("of a snippet"))
    site.write("src/pack.py", '"""Pack.\n\n{}"""\n'.format(block.format("of a docstring")))
    site.write("docs/index.md", '# Home\n\n--8<-- "part.md"\n')
    site.write("docs/api.md", "# API\n\n::: pack\n")
    told = site.build("-q").failures
    assert told == [
        "docs/api.md: python example failed: ValueError: of a docstring",
        "docs/index.md: python example failed: ValueError: of a snippet",
    ]


def test_cross_references_that_a_block_prints_are_resolved(site: TinySite) -> None:
    site.plugins = "  - mkdocstrings: {handlers: {python: {paths: [src]}}}"
    site.write("src/pack.py", '"""Pack."""\n')
    site.write("docs/api.md", "# API\n\n::: pack\n")
    site.write(
        "docs/index.md", '```python exec="on" result="markdown"\nprint("[the pack][pack] and [gone][pack.x]")\n```\n'
    )
    built = site.build("--strict")
    assert built.returncode == 1, "the second leads nowhere"
    assert "pack.x" in built.log
    site.write("docs/index.md", '```python exec="on" result="markdown"\nprint("[the pack][pack]")\n```\n')
    assert 'href="api/#pack"' in site.build("--strict").html()
