"""`mkdocs serve`: a failure stands in its page, the server lives on, and the next good edit clears it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = [pytest.mark.site, pytest.mark.ci]


class Served:
    """A running server, its log and its pages."""

    def __init__(self, port: int, log: Path) -> None:
        self.port, self.log = port, log

    def get(self, path: str = "") -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    def wait(self, good: Callable[[str], bool], path: str = "") -> str:
        """Return a page as soon as it is as wanted."""
        deadline = time.monotonic() + 60
        while not good(text := self.get(path)):
            assert time.monotonic() < deadline, (text, self.log.read_text())
            time.sleep(0.05)
        return text

    def builds(self) -> int:
        """Return how many builds have begun, once no more begin."""
        before = -1
        while before != (now := self.log.read_text().count("Building documentation...")):
            before = now
            time.sleep(0.8)
        return now


def _heed() -> None:
    """Let the signal that ends a server end it also where the tests are a job in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def served(site: TinySite) -> Iterator[Served]:
    site.write("src/pack.py", "value = 1\n")
    site.write("pyproject.toml", "[tool.pytest.ini_options]\n")
    site.write("tests/test_pack.py", "import pack\n\ndef test_one():\n    assert pack.value\n")
    site.write("docs/index.md", PAGE)
    site.configure()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = site.root / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mkdocs", "serve", "-a", f"127.0.0.1:{port}"],
            cwd=site.root,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
            preexec_fn=_heed,  # noqa: PLW1509 (nothing here runs in a thread)
        )
    try:
        yield Served(port, log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


PAGE = """
    ---
    tests: [tests/test_pack.py::test_one]
    ---
    # Home

    ```python exec="on"
    import pack
    print("value", pack.value)
    ```
"""


def test_a_failure_stands_in_the_page_and_the_next_good_edit_clears_it(site: TinySite, served: Served) -> None:
    html = served.wait(lambda text: "value 1" in text)
    assert "bookproof-failure" not in html
    assert "being served to its author" in html
    assert "bookproof-verdict--running" in html

    site.write("docs/index.md", PAGE.replace("pack.value", "pack.gone"))
    html = served.wait(lambda text: "bookproof-failure" in text)
    assert "docs/index.md:8: python example failed: AttributeError" in html

    site.write("docs/index.md", PAGE.replace("value", "value", 1) + "\n    Good.\n")
    assert "bookproof-failure" not in served.wait(lambda text: "Good." in text)
    assert served.builds() == 3, "one build for each edit"

    site.write("src/pack.py", "value = 2\n")
    served.wait(lambda text: "value 2" in text)
    site.write("src/pack.py", "value = (\n")
    served.wait(lambda text: "bookproof-failure" in text)
    site.write("src/pack.py", "value = 3\n")
    assert "bookproof-failure" not in served.wait(lambda text: "value 3" in text)
    assert served.builds() == 6, "one build for each edit"

    verdicts = json.loads(served.wait(lambda text: "passed" in text, "bookproof/verdicts.json"))
    assert verdicts["tests"]["tests/test_pack.py::test_one"]["verdict"] == "passed"
    assert served.builds() == 6, "verdicts come without a build"


def test_an_edit_changes_no_other_page(site: TinySite, served: Served) -> None:
    """Were each page to name every edited file, each would be another page once one more file is edited."""
    served.wait(lambda text: "value 1" in text)
    site.write("docs/third.md", "# Third\n")
    site.write("docs/other.md", "# Other\n\nNone.\n")
    served.wait(lambda text: "None." in text, "other/")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "docs", "src", "tests"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=site.root, check=True)
    seen = []
    for name in ("other", "third"):
        site.write(f"docs/{name}.md", "# Edited\n\nOnce.\n")
        served.wait(lambda text: "Once." in text, f"{name}/")
        html = served.wait(lambda text: "value 1" in text)
        seen.append(re.sub(r"livereload\([^)]*\)", "", html))  # MkDocs' own script, which counts the builds
    assert seen[0] == seen[1]


def test_an_edit_of_the_code_does_not_wait_for_every_example(site: TinySite, served: Served) -> None:
    """The page shows what was printed before, and is told what has become of it, without another build.

    So it does where the page also has a block that reads the checkout, and that therefore runs in each build.
    """
    served.wait(lambda text: "value 1" in text)
    slow = PAGE.replace("import pack", "import pack, time; time.sleep(1.5)").replace('exec="on"', 'exec="on" id="slow"')
    slow += '\n    ```python exec="on" workdir="root"\n    print(open("src/pack.py").read())\n    ```\n'
    site.write("docs/index.md", slow)
    assert "value 1" in served.wait(lambda text: 'id="example-slow"' in text)
    builds = served.builds()

    site.write("src/pack.py", "value = 2\n")
    served.wait(lambda text: '"running": true' in text, "bookproof/examples.json")
    assert "value 1" in served.get()
    told = json.loads(served.wait(lambda text: "changed" in text, "bookproof/examples.json"))
    assert told == {"": {"changed": {"slow": "value 2\n"}}}
    assert served.builds() == builds + 1

    site.write("docs/index.md", slow + "\n    More.\n")
    assert "value 2" in served.wait(lambda text: "More." in text)
    assert served.wait(lambda text: "changed" not in text, "bookproof/examples.json") == "{}"

    site.write("src/pack.py", "")
    told = json.loads(served.wait(lambda text: "changed" in text, "bookproof/examples.json"))
    assert "AttributeError" in told[""]["changed"]["slow"]
    site.write("docs/index.md", slow + "\n    Even more.\n")
    assert "bookproof-failure" in served.wait(lambda text: "Even more." in text), "a failure is shown by the next build"


def test_without_the_plugin_the_first_failing_page_ends_the_build_under_zensical(
    site: TinySite, needs: Callable[[object, str], None]
) -> None:
    """It knows no plugins of ours, and ends with an error code all the same."""
    zensical = shutil.which("zensical", path=str(Path(sys.executable).parent)) or ""
    needs(zensical, "zensical is not installed")
    site.write(
        "mkdocs.yml",
        """
        site_name: tiny
        markdown_extensions:
          - pymdownx.superfences
          - bookproof: {outputs: ""}
        """,
    )
    build = [zensical, "build", "--clean"]
    site.write("docs/index.md", '# Home\n\n```python exec="on"\nprint("it", "ran")\n```\n')
    done = subprocess.run(build, cwd=site.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "it ran" in (site.root / "site/index.html").read_text()
    site.write("docs/index.md", '# Home\n\n```python exec="on"\n1 / 0\n```\n')
    done = subprocess.run(build, cwd=site.root, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "docs/index.md:4: python example failed: ZeroDivisionError" in done.stderr
