"""The built wheel with its extra, in an environment of its own, builds the site of a stranger."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = [pytest.mark.site, pytest.mark.ci]

ROOT = Path(__file__).parents[2]
FILES = {
    "book.yml": """
        site_name: Strange
        docs_dir: pages
        site_dir: out
        theme: {name: material, font: false}
        markdown_extensions: [tables, admonition]
        plugins:
          - search
          - mkdocstrings: {handlers: {python: {paths: [lib]}}}
          - bookproof: {src: lib, tests: checks, outputs: pages-said, mutations: checks/changes.toml, evidence: ran.md}
    """,
    "lib/till/__init__.py": '''
        """A till."""

        def total(*prices: int) -> int:
            """Return the sum of prices."""
            return sum(prices)
    ''',
    "checks/test_till.py": """
        from till import total

        def test_total():
            assert total(1, 2) == 3
    """,
    "checks/changes.toml": """
        [[mutation]]
        id = "forgets-one"
        title = "The first price is forgotten"
        file = "lib/till/__init__.py"
        before = "sum(prices)"
        after = "sum(prices[1:])"
        test = "checks/test_till.py::test_total"
    """,
    "pages/index.md": """
        ---
        symbols: [till.total]
        tests: [checks/test_till.py::test_total]
        mutation: forgets-one
        ---
        # Till

        ```python exec="on"
        import till
        print(till.total(20, 22))
        ```

        ```console exec="on"
        $ python -c "import till; print(till.total(1, 2))"
        ```

        ```mermaid
        graph LR
          a --> b
        ```
    """,
    "pages/api.md": "# API\n\n::: till\n",
    "pages/ran.md": "# Evidence\n\n<!-- bookproof: evidence -->\n",
    "pages-said/index.txt": """
        === example-1
            42

        === example-2
            $ python -c "import till; print(till.total(1, 2))"
            3
    """,
}


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory, needs: Callable[[object, str], None]) -> Path:
    """An environment that holds the wheel and what its extra asks for, at the pinned versions, and nothing else."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])) or ""
    needs(uv, "uv is not installed")
    folder = tmp_path_factory.mktemp("wheel")

    def run(*command: str) -> None:
        for offline in (["--offline"], []):  # from uv's cache, if all of it is there
            done = subprocess.run([uv, *command, *offline], cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
        pytest.fail(done.stderr)

    run("build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"))
    (wheel,) = (folder / "dist").glob("*.whl")
    run("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    python = str(folder / "venv/bin/python")
    run("pip", "install", "--quiet", "--python", python, "-c", "requirements.txt", f"{wheel}[bookproof]")
    return folder / "venv"


def test_the_wheel_builds_checks_and_verifies_a_strange_site(venv: Path, tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": os.environ["HOME"], "NO_MKDOCS_2_WARNING": "1"}

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    where = run(["python", "-c", "import bookproof; print(bookproof.__file__)"]).stdout
    assert where.startswith(str(venv)), where
    built = run(["bookproof", "build", "-f", "book.yml"])
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    page = (tmp_path / "out/index.html").read_text()
    assert ">42\n" in page
    assert "2 examples run" in page
    assert 'bookproof-verdict--passed"' in page
    assert 'bookproof-verdict--killed"' in page
    assert "Draft" in page, "there is no git here"
    assert (tmp_path / "out/source/lib/till/__init__.py.html").is_file()
    assert (tmp_path / "out/assets/mermaid/mermaid.esm.min.mjs").is_file()
    checked = run(["bookproof", "check", "out", "--docs", "pages", "--outputs", "pages-said"])
    assert (checked.returncode, checked.stderr) == (0, "")
    assert re.fullmatch(r"\d+ pages: every link, fragment and id is in order, .*\n", checked.stdout)
    verified = run(["bookproof", "verify", "out"])
    assert verified.returncode == 1
    assert verified.stdout.startswith("draft: all ")
    (tmp_path / "pages/index.md").write_text('# Till\n\n```python exec="on"\n1 / 0\n```\n')
    failed = run(["mkdocs", "build", "-q", "-f", "book.yml"])
    assert failed.returncode == 1
    assert "pages/index.md:4: python example failed: ZeroDivisionError: division by zero" in failed.stderr
    assert list((tmp_path / "out").iterdir()) == []
