"""Labs: what the site's folder holds, that it is the same each time, and what a build without it says."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bookproof.diagrams import NodeError
from bookproof.knobs import check_knobs, knobs, turn
from bookproof.labs import (
    UNPINNED,
    archive,
    compiled_library,
    has_labs,
    lab_mutations,
    lab_place,
    labs_off,
    project_files,
    pyodide_version,
    tool_files,
)
from bookproof.options import Settings

if TYPE_CHECKING:
    from conftest import TinySite

ROOT = Path(__file__).parents[2]
CRASH = """\
import os
import signal

print("claimed")
open("ledger", "w").write("half")
os.kill(os.getpid(), signal.SIGKILL)
print("never")"""


def test_archives_are_the_same_bytes_whatever_the_files_times_and_order() -> None:
    entries = [("b.py", b"two"), ("a.py", b"one")]
    assert archive(entries) == archive(reversed(entries))
    with zipfile.ZipFile(io.BytesIO(archive(entries))) as opened:
        assert opened.namelist() == ["a.py", "b.py"]
        assert {info.date_time for info in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_project_is_the_commits_own_and_bookproof_comes_once() -> None:
    found = dict(project_files(Settings(ROOT)))
    assert found["project/src/sovereign_agent/memory.py"] == (ROOT / "src/sovereign_agent/memory.py").read_bytes()
    assert "project/tests/test_advanced_mechanisms.py" in found
    assert "project/pyproject.toml" in found
    assert "lab/bookproof/labrun.py" in found
    assert not [name for name in found if "__pycache__" in name or name.startswith("project/src/bookproof")]
    assert not [name for name in found if name.startswith("project/tests/outputs")]


def test_the_tools_suffice_to_run_pytest(tmp_path: Path) -> None:
    """Nothing but the archive is on the path, so a module that Pygments was cut down by too much is missed here."""
    packed = tmp_path / "tools.zip"
    packed.write_bytes(archive(tool_files()))
    with zipfile.ZipFile(packed) as opened:
        opened.extractall(tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert [1, 2] == [1, 3]\n")
    command = [sys.executable, "-S", "-P", "-m", "pytest", "-q", "--color=yes", "-p", "no:cacheprovider", "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lab")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed" in re.sub(r"\x1b\[[\d;]*m", "", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1


@pytest.mark.skipif("CI" not in os.environ, reason="starts a browser's Python twice; set CI=true, as .ci/run does")
def test_the_library_of_the_labs_is_pyodides_whole_one_and_compiled_the_same_each_time(tmp_path: Path) -> None:
    root = tmp_path / "again"
    (root / "node_modules").mkdir(parents=True)
    shutil.copyfile(ROOT / "package-lock.json", root / "package-lock.json")
    kept = compiled_library(ROOT)
    for name in ("pyodide", ".bookproof-lock"):
        (root / "node_modules" / name).symlink_to(ROOT / "node_modules" / name)
    assert compiled_library(root).read_bytes() == kept.read_bytes()
    with zipfile.ZipFile(kept) as ours, zipfile.ZipFile(ROOT / "node_modules/pyodide/python_stdlib.zip") as theirs:
        assert {name.removesuffix("c") for name in ours.namelist()} == {
            name.removesuffix("c") for name in theirs.namelist()
        }
        assert len([name for name in ours.namelist() if name.endswith(".pyc")]) > 100


def test_the_version_of_pyodide_is_one_value() -> None:
    """The package, the lock and the reader's page name the same; the browser's tests ask Python itself."""
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]["pyodide"]
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert pyodide_version(ROOT) == wanted == lock["packages"][""]["dependencies"]["pyodide"]
    assert re.fullmatch(r"[\d.]+", wanted)
    assert "resolved" not in (ROOT / "package-lock.json").read_text()


def test_a_place_is_found_again() -> None:
    html = lab_place("mutation", "no-check", "lessons/x.md")
    assert has_labs(html)
    assert lab_mutations(html) == ["no-check"]
    assert 'data-page="lessons/x"' in html
    assert "Labs need JavaScript." in html
    assert not has_labs(lab_place("run", "a", "x.md", off="Not here."))


@pytest.mark.parametrize(
    ("serving", "environ", "told"),
    [
        (False, {}, ""),
        (True, {}, "The labs are left out while you write; BOOKPROOF_LABS=on brings them in."),
        (True, {"BOOKPROOF_LABS": "on"}, ""),
        (False, {"BOOKPROOF_LABS": "off"}, "The labs are left out of this draft (BOOKPROOF_LABS=off)."),
        (False, {"BOOKPROOF_NODE": "off"}, "The labs are left out of this draft, which was built without node."),
    ],
)
def test_labs_are_left_out_on_request_and_while_writing(serving: bool, environ: dict[str, str], told: str) -> None:
    assert labs_off(ROOT, serving=serving, environ=environ) == told


def test_a_misspelt_switch_is_refused_and_an_unpinned_pyodide_is_told(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="BOOKPROOF_LABS is 'yes'"):
        labs_off(ROOT, serving=False, environ={"BOOKPROOF_LABS": "yes"})
    assert labs_off(tmp_path, serving=False, environ={}) == UNPINNED


def test_knobs_are_read_turned_and_checked() -> None:
    code = 'lease = 20  # 5 to 60 by 5: lease, in seconds\nmode = "once"  # "once" or "skip"\nx = 3  # not a knob'
    lease, mode = knobs(code)
    assert (lease.name, lease.value, lease.low, lease.high, lease.step) == ("lease", "20", "5", "60", "5")
    assert lease.label == "lease, in seconds"
    assert (mode.value, mode.choices, mode.label) == ('"once"', ('"once"', '"skip"'), "mode")
    turned = turn(turn(code, "lease", "45"), "mode", '"skip"')
    assert turned.startswith('lease = 45  # 5 to 60 by 5: lease, in seconds\nmode = "skip"  # "once"')
    assert not check_knobs(code)
    assert check_knobs("a = 4  # 1 to 9 by 2") == ["knob a stands at 4, which its range does not reach"]
    assert check_knobs('a = "x"  # "y" or "z"') == ['knob a stands at "x", which is none of its choices']


def lab_fence(code: str, options: str) -> str:
    return f'```python exec="on" {options}\n{code}\n```\n'


@pytest.mark.site
def test_a_block_that_kills_itself_is_killed_for_real_and_the_page_goes_on(site: TinySite) -> None:
    after = lab_fence('print(open("ledger").read())', 'id="after"')
    site.write("docs/index.md", lab_fence(CRASH, 'id="kill" lab="crash"') + "\n" + after)
    built = site.build("--strict", BOOKPROOF_LABS="off")
    assert built.returncode == 0, built.log
    html = built.html()
    assert "claimed" in html
    assert "never" not in re.sub(r"<code>.*?</code>", "", html, count=1, flags=re.DOTALL)
    assert "half" in html
    assert "Killed on purpose" in html


@pytest.mark.site
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print(1)", "was to kill its own process, but ended"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os\nos.kill(os.getpid(), 15)", "was to kill its own process, but ended"),
    ],
)
def test_a_block_that_should_be_killed_and_is_not_is_red(site: TinySite, code: str, told: str) -> None:
    site.write("docs/index.md", lab_fence(code, 'id="kill" lab="crash"'))
    built = site.build("-q", BOOKPROOF_LABS="off")
    assert built.returncode == 1
    assert told in built.log


IN_BROWSER = """
import json, os, sys
from bookproof.labrun import Lab

told = []
place, orders = sys.argv[1], json.loads(sys.argv[2])


def end():
    print(json.dumps({"events": told}), flush=True, file=sys.__stdout__)
    os._exit(9)


lab = Lab(f"{place}/project", f"{place}/scratch", "src", lambda event: told.append(json.loads(event)), end)
print(json.dumps({"answers": [json.loads(lab.answer(json.dumps(order))) for order in orders], "events": told}))
"""


def answers(place: Path, *orders: dict[str, object]) -> dict[str, Any]:
    """Carry out orders in a process of this machine, as the browser's worker does in its own."""
    command = [sys.executable, "-c", IN_BROWSER, str(place), json.dumps(orders)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 9}, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("project/src/till", "project/tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/src/till/__init__.py").write_text("def total(*prices):\n    return sum(prices)\n")
    (tmp_path / "project/tests/test_till.py").write_text(
        "import pytest\nfrom till import total\n\n\ndef test_total():\n    assert total(1, 2) == 3\n\n\n"
        "@pytest.mark.skip(reason='not today')\ndef test_skipped():\n    pass\n"
    )
    return tmp_path


def test_a_change_is_red_its_removal_green_and_what_did_not_run_is_never_green(project: Path) -> None:
    file, test = "src/till/__init__.py", "tests/test_till.py::test_total"
    order = {"kind": "test", "file": file, "test": test}
    original = (project / "project" / file).read_bytes()
    broken = {"before": "sum(prices)", "after": "sum(prices[1:])"}
    found = answers(
        project,
        {**order, **broken},
        order,
        {**order, "text": "def total(*prices):\n    return 3\n"},
        {**order, "text": "def total(:\n"},
        {**order, "before": "sum(prices)", "after": "summ(prices)"},
        {**order, "test": "tests/test_till.py::test_nothing"},
        {**order, "test": "tests/test_skipped.py::test_total"},
        {**order, "test": "tests/test_till.py::test_skipped"},
        order,
    )["answers"]
    assert [one["green"] for one in found] == [False, True, True, False, False, False, False, False, True]
    assert [one["verdict"] for one in found] == [
        "killed", "passed", "passed", "error", "broken", "not collected", "not collected", "skipped", "passed",
    ]  # fmt: skip
    assert found[0]["file"] == "tests/test_till.py"
    assert found[0]["line"] == 6
    assert found[0]["text"].startswith("AssertionError: assert 2 == 3")
    assert (project / "project" / file).read_bytes() == original
    assert (found[3]["detail"], found[3]["file"], found[3]["line"]) == ("SyntaxError: invalid syntax", file, 1)


def block(name: str, code: str, **options: object) -> dict[str, object]:
    known = {"session": "", "result": "text", "raises": "", "normalise": [], "workdir": "page", "lab": ""}
    return {"id": name, "code": code, "options": known | options}


def test_blocks_are_judged_as_a_build_judges_them(project: Path) -> None:
    found = answers(
        project,
        {
            "kind": "blocks",
            "blocks": [
                block("one", "import os\nfrom till import total\nx = total(1, 2)\nprint(os.getcwd(), x)", session="s"),
                block("two", "print(x)\nopen('kept', 'w').write('y')", session="s"),
                block("three", "1 / 0", raises="ZeroDivisionError"),
                block("four", "print('so far')\n1 / 0"),
                block("five", "print(x)"),
            ],
        },
    )
    one, two, three, four, five = found["answers"][0]
    assert one == {"id": "one", "output": "<work> 3\n", "failure": "", "line": 0}
    assert two["output"] == "3\n"
    assert (three["output"], three["failure"]) == ("ZeroDivisionError: division by zero\n", "")
    assert (four["output"], four["line"]) == ("so far\n", 2)
    assert "ZeroDivisionError" in four["failure"]
    assert "NameError" in five["failure"]
    texts = [event["text"] for event in found["events"] if event["event"] == "text" and event["id"] == "four"]
    assert "".join(texts) == "so far\n"


def test_a_block_that_kills_its_process_leaves_its_files_and_nothing_after_it_runs(project: Path) -> None:
    found = answers(
        project, {"kind": "blocks", "blocks": [block("kill", CRASH, lab="crash"), block("next", "print(1)")]}
    )
    assert found["events"][-1] == {"event": "killed", "id": "kill", "output": "claimed\n"}
    assert "answers" not in found
    after = {"kind": "blocks", "blocks": [block("after", "print(open('ledger').read())")], "fresh": False}
    assert answers(project, after)["answers"][0][0]["output"] == "half\n"
