"""The command line: six lines every time, read-only views, one line for each error, a true exit status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from sovereign_agent import mechanisms
from sovereign_agent.cli import cli, main
from sovereign_agent.errors import Refusal, Unproved
from sovereign_agent.ledger import Ledger
from sovereign_agent.trace import Event, events, sequence_diagram, status

SIX = """\
isolation: process=UNAVAILABLE, filesystem=ENFORCED, network=ENFORCED, credentials=ENFORCED, tools=ENFORCED
tools: discovered=read_inventory authorized=read_inventory truncated=True
automation: NO_FIRE, runs=0, state persisted
context: source=7 rendered=6 summaries=1
coordination: incarnation 1->2
memory: visible=1 semantic=used
""".splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run_one(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run_one


def test_the_scenario_prints_the_same_six_lines_again_and_keeps_the_evidence(run: Any, tmp_path: Path) -> None:
    counts = []
    for _ in range(3):
        code, out, err = run("mechanisms", "--root", tmp_path)
        assert (code, err) == (0, "")
        assert out.splitlines()[:6] == SIX
        with Ledger.open(tmp_path, read_only=True) as ledger, ledger.read() as tx:
            counts.append(
                [tx.all(f"SELECT count(*) FROM {t}")[0][0] for t in ("events", "memories", "session_completions")]
            )
    assert counts[2] == [1 + 3 * (counts[0][0] - 1), 6, 3]


def test_six_scenarios_at_once_in_a_new_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sovereign_agent", "mechanisms", "--root", str(tmp_path / "new")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    results = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * 6, results
    assert [out.splitlines()[:6] for out, _ in results] == [SIX] * 6
    with Ledger.open(tmp_path / "new", read_only=True) as ledger, ledger.read() as tx:
        assert tx.all("SELECT count(*) FROM session_completions")[0][0] == 6


def test_qualified_claims_follow_the_lines(run: Any, tmp_path: Path) -> None:
    out = run("mechanisms", "--root", tmp_path)[1]
    for name in mechanisms.SCENARIO:
        section = out.split(f"\n{name}\n")[1].split("\n\n")[0]
        assert "  + " in section
        assert "  - not claimed: " in section


def test_one_mechanism_alone_and_as_data(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("mechanisms", "--root", tmp_path, "--only", "coordination", "--json")
    data = json.loads(out)
    assert code == 0
    assert [finding["line"] for finding in data["mechanisms"]] == ["coordination: incarnation 1->2"]
    assert data["mechanisms"][0]["facts"]["incarnations"] == [1, 2]


def test_without_a_root_nothing_is_left_behind(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("mechanisms", "--only", "memory")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_the_scenario_does_not_load_rich(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sovereign_agent.cli import main\n"
        "try:\n    main(['mechanisms', '--root', sys.argv[1]])\n"
        "except SystemExit:\n    print('rich' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_workspace_that_is_a_link_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "workspace").symlink_to("/usr")
    code, out, err = run("mechanisms", "--root", tmp_path)
    assert (code, out) == (1, "")
    assert "the workspace is a link" in err


@pytest.mark.parametrize("target", ["dangling", "file"])
def test_a_workspace_that_is_no_directory_is_refused(run: Any, tmp_path: Path, target: str) -> None:
    if target == "file":
        (tmp_path / "workspace").write_text("")
    else:
        (tmp_path / "workspace").symlink_to(tmp_path / "nowhere")
    code, _, err = run("mechanisms", "--root", tmp_path)
    assert code == 1
    assert len(err.splitlines()) == 1


def test_a_line_whose_observation_fails_is_not_printed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim is printed because it was observed, not because the program says so."""
    monkeypatch.setattr("sovereign_agent.isolation.IsolationPolicy.authorize_path", lambda self, path: Path(path))
    code, out, err = run("mechanisms", "--root", tmp_path)
    assert (code, out) == (1, "")
    assert "should have been refused" in err


@pytest.mark.parametrize("command", ["status", "events"])
def test_views_refuse_a_directory_without_a_ledger_and_create_nothing(run: Any, tmp_path: Path, command: str) -> None:
    code, out, err = run(command, "--root", tmp_path / "none")
    assert (code, out) == (1, "")
    assert "there is no ledger" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["status"], ["events"], ["events", "--mermaid"], ["events", "--json"], ["status", "--json"]]
)
def test_views_leave_the_ledger_as_it_was(run: Any, tmp_path: Path, arguments: list[str]) -> None:
    run("mechanisms", "--root", tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    code, out, err = run(*arguments, "--root", tmp_path)
    assert (code, err) == (0, "")
    assert out
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


def test_status_shows_every_table_whole(run: Any, tmp_path: Path) -> None:
    run("mechanisms", "--root", tmp_path)
    data = json.loads(run("status", "--root", tmp_path, "--json")[1])
    assert list(data) == sorted(["automations", "runs", "sessions", "hosts", "deliveries"])
    assert data["sessions"][0]["incarnation"] == 2
    assert data["sessions"][0]["ended"] == "FINISHED"
    out = run("status", "--root", tmp_path)[1]
    for word in ("automations (1)", "runs (0)", "sessions (1)", "hosts (2)", "deliveries (0)", "FINISHED"):
        assert word in out


@pytest.mark.parametrize("columns", [40, 80, 250])
def test_status_fits_the_terminal_and_cuts_no_value(tmp_path: Path, columns: int) -> None:
    """A table that is too wide is shown row by row; one without rows is its title alone."""
    main_py = [sys.executable, "-m", "sovereign_agent"]
    subprocess.run([*main_py, "mechanisms", "--root", tmp_path], check=True, capture_output=True)
    leader, follower = os.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "dumb"}
    with subprocess.Popen([*main_py, "status", "--root", tmp_path], stdout=follower, env=environment) as process:
        os.close(follower)
        out = b""
        with contextlib.suppress(OSError):  # how a terminal says that its other end is closed
            while part := os.read(leader, 65536):
                out += part
    os.close(leader)
    assert process.returncode == 0
    text = out.decode()
    data = json.loads(subprocess.check_output([*main_py, "status", "--json", "--root", tmp_path]))
    for rows in data.values():
        for row in rows:
            assert all(re.sub(r"\.\d{6}Z$", "Z", str(value)) in text for value in row.values() if value is not None)
    assert ("- session_id" in text) == (columns < 250)
    assert re.search(r"^runs \(0\)\s*\n\S", text, re.MULTILINE), "no frame around nothing"
    assert max(map(len, text.splitlines())) <= max(columns, 60)


def test_the_scenario_says_that_it_is_ahead_of_the_clock(run: Any, tmp_path: Path) -> None:
    before = datetime.now(UTC)
    run("mechanisms", "--root", tmp_path, "--only", "coordination")
    at = [json.loads(line)["at"] for line in run("events", "--root", tmp_path, "--json")[1].splitlines()]
    ahead = (datetime.fromisoformat(max(at)) - before).total_seconds()
    assert 26 <= ahead < 60
    assert "26 seconds ahead" in " ".join(run("mechanisms", "--help")[1].split())


@pytest.mark.parametrize("name", list(cli.commands))
def test_the_list_of_commands_cuts_no_sentence(run: Any, name: str) -> None:
    out = run("--help")[1]
    assert re.search(rf"^  {name} .*\.$", out, re.MULTILINE)
    assert "..." not in out.split("Commands:")[1]


def test_a_long_table_is_cut_and_says_so(run: Any, tmp_path: Path, clock: Any) -> None:
    from sovereign_agent.coordination import register_host

    with Ledger.open(tmp_path, clock=clock) as ledger:
        for number in range(5):
            register_host(ledger, f"host-{number}")
            clock.advance(1)
        hosts = next(table for table in status(ledger, limit=2) if table.name == "hosts")
    assert [row[0] for row in hosts.rows] == ["host-3", "host-4"]
    assert hosts.total == 5


def test_events_are_filtered_and_bounded(run: Any, tmp_path: Path) -> None:
    run("mechanisms", "--root", tmp_path)
    lines = [json.loads(line) for line in run("events", "--root", tmp_path, "--json", "--limit", "3")[1].splitlines()]
    assert len(lines) == 3
    assert lines[0]["seq"] < lines[1]["seq"] < lines[2]["seq"]
    refused = [json.loads(line) for line in run("events", "--root", tmp_path, "--json")[1].splitlines()]
    subject = next(event["subject"] for event in refused if event["kind"] == "session.claimed")
    one = run("events", "--root", tmp_path, "--json", "--subject", subject)[1].splitlines()
    assert {json.loads(line)["subject"] for line in one} == {subject}


def test_no_event_holds_content_messages_or_vectors(run: Any, tmp_path: Path) -> None:
    run("mechanisms", "--root", tmp_path)
    out = run("events", "--root", tmp_path, "--json")[1]
    for text in ("bolts", "weekdays", "shelves", "written by", "INVENTORY_TOKEN"):
        assert text not in out


def test_what_another_client_wrote_does_nothing_to_the_terminal(run: Any, tmp_path: Path) -> None:
    nasty = "red\x1b[31m\x9b2J\u202e\r\nnext"
    with Ledger.open(tmp_path) as ledger, ledger.write() as tx:
        tx.event("x.y", nasty, at=ledger.now(), **{nasty: nasty})
        tx.run(
            "INSERT INTO hosts (host_id, boot, registered_at, expires_at) VALUES (:name, 1, :name, :name)", name=nasty
        )
    for arguments in (["events"], ["events", "--json"], ["events", "--mermaid"], ["status"], ["status", "--json"]):
        code, out, err = run(*arguments, "--root", tmp_path)
        assert (code, err) == (0, "")
        assert out
        assert "red" in out
        if "--mermaid" not in arguments:
            assert all(line.isprintable() for line in out.split("\n"))
    assert len(run("events", "--root", tmp_path)[1].splitlines()) == 2


@pytest.mark.parametrize("detail", ["[]", "5", "null", '"x"', "1e400"])
def test_an_event_that_nobody_can_read_is_one_line_on_stderr(run: Any, tmp_path: Path, detail: str) -> None:
    with Ledger.open(tmp_path) as ledger, ledger.write() as tx:
        tx.run(
            "INSERT INTO events (at, kind, actor, subject, detail) VALUES (:at, 'x', 'x', 'x', :detail)",
            at="2026-01-05T08:00:00.000000Z",
            detail=detail,
        )
    code, out, err = run("events", "--root", tmp_path)
    assert (code, out) == (1, "")
    assert "event 2" in err
    assert len(err.splitlines()) == 1


def test_a_subject_that_no_event_can_have_finds_none(run: Any, tmp_path: Path) -> None:
    Ledger.open(tmp_path).close()
    assert run("events", "--root", tmp_path, "--subject", os.fsdecode(b"\xff")) == (0, "", "")


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("step", range(7))
def test_a_workspace_that_somebody_takes_away_is_a_refusal_or_no_matter(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, link: bool
) -> None:
    """At each use of the file system in turn the workspace vanishes, or a link stands in its place."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    run("mechanisms", "--root", root)
    left = [step]

    def disturb_before(name: str) -> None:
        original = getattr(Path, name)

        def disturbed(path: Path, *arguments: Any, **options: Any) -> Any:
            if "workspace" in path.parts:
                left[0] -= 1
                if left[0] == -1:
                    (root / "workspace").rename(tmp_path / "taken")
                    if link:
                        os.symlink(outside, root / "workspace")  # noqa: PTH211 - the method is patched
            return original(path, *arguments, **options)

        monkeypatch.setattr(Path, name, disturbed)

    for name in ("mkdir", "write_text", "symlink_to", "is_symlink", "lstat"):
        disturb_before(name)
    code, out, err = run("mechanisms", "--root", root, "--only", "isolation")
    monkeypatch.undo()
    assert left[0] < 0
    assert (code, len(err.splitlines())) in ((0, 0), (1, 1))
    assert out.splitlines()[:1] == ([] if code else SIX[:1])
    assert (outside / "kept").read_text() == "kept"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["status"],
        ["events", "--root", "x", "--limit", "0"],
        ["events", "--root", "x", "--mermaid", "--json"],
        ["mechanisms", "--only", "nonsense"],
        ["mechanisms", "--colour"],
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(run: Any, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 or arguments == []
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_help_of_every_command_shows_an_example(run: Any, name: str) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0
    assert f"Example:\n    sovereign-agent {name}".rstrip() in out
    assert "\b" not in out


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_option_has_a_help_text(name: str) -> None:
    for option in cli.commands[name].params:
        assert isinstance(option, click.Option)
        assert option.help


def test_every_command_that_a_message_advises_exists() -> None:
    advised = {
        word
        for path in Path(mechanisms.__file__).parent.glob("*.py")
        for word in re.findall(r"sovereign-agent ([a-z]+)", path.read_text(encoding="utf-8"))
    }
    assert advised - {"has"} == set(cli.commands)  # "a newer sovereign-agent has written it"


@pytest.mark.parametrize("command", ["mechanisms", "status", "events"])
def test_a_root_that_is_a_file_is_one_line(run: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("kept")
    code, out, err = run(command, "--root", tmp_path / "file")
    assert (code, out) == (1, "")
    assert "not a directory" in err
    assert len(err.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "kept"


def test_both_ways_to_call_it_are_one_program(tmp_path: Path) -> None:
    executable = Path(sys.executable).parent / "sovereign-agent"
    for command in ([str(executable)], [sys.executable, "-m", "sovereign_agent"]):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("Usage: sovereign-agent ")


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger, ledger.write() as tx:
        for number in range(3000):
            tx.event("test.happened", f"subject-{number}", at=ledger.now())
    command = f"{sys.executable} -m sovereign_agent events --limit 3000 --root {tmp_path} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_probe_exits_with_0_only_where_everything_was_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from sovereign_agent.isolation import Act, Experiment, ProbeReport

    def report(*, refused: bool) -> ProbeReport:
        acts = [Experiment(act, True, refused or act is not Act.CONNECT, "as seen") for act in Act]
        return ProbeReport("toy", "kernel", datetime(2026, 1, 5, tzinfo=UTC), tuple(acts))

    for refused, expected in ((True, 0), (False, 1)):
        monkeypatch.setattr("sovereign_agent.sandbox.prove", lambda sandbox, refused=refused: report(refused=refused))
        code, out, _ = run("probe")
        assert code == expected
        assert ("NOT REFUSED" in out) == (not refused)
        assert f"process: {'ENFORCED' if refused else 'UNAVAILABLE'}" in out


def test_probe_without_a_sandbox_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    code, out, err = run("probe")
    assert (code, out) == (1, "")
    assert "Process isolation refused" in err


# The trace


def test_a_diagram_is_safe_whatever_the_subjects_are(ledger: Ledger) -> None:
    with ledger.write() as tx:
        for subject in ("a;b", "x --> y", "<script>", 'quote"d', "end", "a:b", "%% c", "line\u2028break", "#35;"):
            tx.event("test.happened", subject, at=ledger.now(), reason="a: b; c", big=10**9)
    text = sequence_diagram(events(ledger))
    assert not set(';"#<') & set(text.replace("<br/>", ""))
    assert len(text.splitlines()) == 3 + 1 + 9


def test_a_refusal_points_back_at_who_asked() -> None:
    from datetime import UTC, datetime

    at = datetime(2026, 1, 5, tzinfo=UTC)
    trace = [
        Event(1, at, "session.claimed", "a", "s", {"incarnation": 1, "host_id": "a"}),
        Event(2, at, "refused", "b", "s", {"category": "session", "why": "live claim belongs to a"}),
    ]
    assert sequence_diagram(trace).splitlines() == [
        "sequenceDiagram",
        "    participant P0 as a",
        "    participant L as ledger",
        "    participant P1 as b",
        "    P0->>L: session.claimed s<br/>incarnation 1",
        "    L--xP1: REFUSED s<br/>live claim belongs to a",
    ]


@pytest.mark.parametrize("bad", [0, 10_001, -1])
def test_bounds_of_the_trace_are_checked(ledger: Ledger, bad: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        events(ledger, limit=bad)
    with pytest.raises(ValueError, match="limit"):
        status(ledger, limit=bad)


def test_an_unknown_mechanism_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only"):
        mechanisms.run(tmp_path, only="nonsense")
    assert list(tmp_path.iterdir()) == []


def test_every_observation_of_the_scenario_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each mechanism broken in turn, the scenario raises instead of printing its line."""
    breaks = {
        "isolation": ("sovereign_agent.isolation.IsolationPolicy.authorize_path", lambda self, path: path),
        "tools": ("sovereign_agent.tools.ToolCatalog.authorize", lambda self, tool, policy, ledger=None: tool),
        "automation": ("sovereign_agent.automation.list_runs", lambda *a, **k: ("a run",)),
        "context": ("sovereign_agent.context.compact_one", lambda *a, **k: False),
        "coordination": ("sovereign_agent.coordination.finish_session", lambda *a, **k: None),
        "memory": ("sovereign_agent.memory.recall", lambda *a, **k: ()),
    }
    for name, (target, broken) in breaks.items():
        with monkeypatch.context() as patch:
            patch.setattr(target, broken)
            with pytest.raises((Unproved, Refusal)):
                mechanisms.run(tmp_path, only=name)
