"""Sandbox: what a command inside can reach, and whether the experiments would notice if it reached more."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent import sandbox as module
from sovereign_agent.errors import Refusal
from sovereign_agent.isolation import BASE_ENVIRONMENT, Act, Enforcement, IsolationPolicy, Verdict, kernel_name
from sovereign_agent.sandbox import Sandbox, SandboxResult, prove

NOTHING = IsolationPolicy()


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The machine's bubblewrap. Where it is missing these tests are skipped, but never where CI is set."""
    found = Sandbox.detect()
    if not found.available:
        assert "CI" not in os.environ, f"no sandbox works here: {found.reason}"
        pytest.skip(f"no sandbox works here: {found.reason}")
    return found


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return tmp_path / "ws"


def shell(sandbox: Sandbox, script: str, policy: IsolationPolicy = NOTHING, **options: Any) -> str:
    result = sandbox.run(["sh", "-c", script], policy, **options)
    assert result.returncode == 0, result
    return result.stdout.decode()


def stops(beat: Path) -> bool:
    """Tell whether the file that something rewrites all the time is left alone, soon enough."""
    for _ in range(20):
        last = beat.read_bytes()
        time.sleep(0.3)
        if beat.read_bytes() == last:
            return True
    return False


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# --- without a sandbox ------------------------------------------------------------------------------------------------

HIDES_NOTHING = """
fd=; while [ "$1" != -- ]; do [ "$1" = --json-status-fd ] && fd=$2; shift; done; shift
echo '{"exit-code": 0}' > /dev/fd/$fd; exec "$@"
"""


@pytest.mark.parametrize(
    ("bubblewrap", "reason"),
    [
        (None, "not on PATH"),
        ("exit 1", "did not start inside"),
        ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "No permissions"),
        ("kill -9 $$", "did not start inside"),
    ],
)
def test_where_no_sandbox_works_everything_refuses_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bubblewrap: str | None, reason: str
) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    if bubblewrap:
        program(path / "bwrap", bubblewrap)
    monkeypatch.setenv("PATH", str(path))
    found = Sandbox.detect()
    assert not found.available
    assert reason in found.reason
    for call in (lambda: found.run(["/bin/touch", str(tmp_path / "ran")], NOTHING), lambda: prove(found)):
        with pytest.raises(Refusal, match=re.escape(found.reason)) as refusal:
            call()
        assert refusal.value.category == "process"
    assert not (tmp_path / "ran").exists()
    status = NOTHING.explain(lambda: prove(found))[0]
    assert status.verdict is Verdict.UNAVAILABLE
    assert "raised Refusal" in status.detail


def test_a_program_that_is_gone_is_a_refusal(tmp_path: Path) -> None:
    gone = Sandbox(str(tmp_path / "bwrap"), "gone")
    with pytest.raises(Refusal, match="cannot be started"):
        gone.run(["true"], NOTHING)
    assert not prove(gone).passed


def test_a_sandbox_that_hides_nothing_does_not_pass(tmp_path: Path) -> None:
    """Each act works outside and inside, and the report says so."""
    report = prove(Sandbox(program(tmp_path / "bwrap", HIDES_NOTHING), "a sandbox in name only"))
    assert [experiment.act for experiment in report.experiments] == list(Act)
    assert [(experiment.control, experiment.refused) for experiment in report.experiments] == [(True, False)] * 4
    assert not report.passed
    status = NOTHING.explain(report)[0]
    assert status.verdict is Verdict.UNAVAILABLE
    assert all(str(act) in status.detail for act in Act)


@pytest.mark.parametrize(
    "bubblewrap",
    [
        "exit 1",
        HIDES_NOTHING.replace('exec "$@"', "echo '[]'"),
        HIDES_NOTHING.replace('exec "$@"', "echo nonsense"),
        HIDES_NOTHING.replace('exec "$@"', "exit 0"),
    ],
)
def test_a_sandbox_that_runs_nothing_refused_nothing(tmp_path: Path, bubblewrap: str) -> None:
    """Silence from inside is no refusal by the operating system."""
    report = prove(Sandbox(program(tmp_path / "bwrap", bubblewrap), "silent"))
    assert [(experiment.control, experiment.refused) for experiment in report.experiments] == [(True, False)] * 4


@pytest.mark.parametrize("act", list(Act))
def test_an_act_that_fails_outside_too_proves_nothing(act: Act) -> None:
    def attempts(*, done: bool) -> list[module._Attempt]:
        return [module._Attempt(each, done, done, "OSError: no") for each in Act]

    inside = attempts(done=False)
    outside = [dataclasses.replace(a, done=False) if a.act is act else a for a in attempts(done=True)]
    unseen = [dataclasses.replace(a, effect=False) if a.act is act else a for a in attempts(done=True)]
    for broken in (outside, unseen, [a for a in outside if a.act is not act]):
        judged = {each: module._judge(each, broken, inside, "silence") for each in Act}
        assert [each for each in Act if not judged[each].passed] == [act]
        assert "outside, where it must succeed" in judged[act].detail


def test_what_the_parent_saw_counts_more_than_what_the_child_says() -> None:
    """A child that lies about its success, or that did not notice it, is not refused."""
    outside = [module._Attempt(Act.SIGNAL, done=True, effect=True, detail="")]
    for done, effect in ((True, False), (False, True), (True, True)):
        inside = [module._Attempt(Act.SIGNAL, done, effect, "OSError: no")]
        assert not module._judge(Act.SIGNAL, outside, inside, "").refused
    mixed = [module._Attempt(Act.SIGNAL, done, effect=False, detail="") for done in (False, True)]
    assert not module._judge(Act.SIGNAL, outside, mixed, "").refused, "one way out of two is enough to fail"


# --- proof ------------------------------------------------------------------------------------------------------------


def test_four_acts_work_outside_and_are_refused_inside(sandbox: Sandbox) -> None:
    before = datetime.now(UTC)
    environment = dict(os.environ)
    report = prove(sandbox)
    assert report.passed, report
    assert [experiment.act for experiment in report.experiments] == list(Act)
    assert (report.sandbox, report.kernel) == (sandbox.name, kernel_name())
    assert before <= report.at <= datetime.now(UTC)
    status = NOTHING.explain(lambda: report)[0]
    assert (status.verdict, status.enforcement) == (Verdict.ENFORCED, Enforcement.KERNEL)
    assert sandbox.name in status.detail
    assert dict(os.environ) == environment
    assert all("/tmp" not in experiment.detail for experiment in report.experiments), "the same text on every run"


def test_an_explicit_instant_is_the_reports(sandbox: Sandbox) -> None:
    at = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
    report = prove(sandbox, now=at)
    assert report.at == at
    assert NOTHING.explain(report, now=at)[0].verdict is Verdict.ENFORCED
    with pytest.raises(ValueError, match="now"):
        prove(sandbox, now=datetime(2026, 1, 5, 8, 0))


@pytest.mark.parametrize(
    ("weakness", "broken"),
    [
        ('[ "$a" = --unshare-net ] && continue', {Act.CONNECT}),
        ('[ "$a" = --unshare-pid ] && continue', {Act.SIGNAL}),
        ('[ "$a" = --chdir ] && set -- "$@" --ro-bind / /', {Act.READ_FILE}),
        ('[ "$a" = --chdir ] && set -- "$@" --ro-bind /etc/passwd /etc/passwd', {Act.READ_FILE}),
        ('[ "$a" = --chdir ] && set -- "$@" --setenv SOVEREIGN_AGENT_PROBE_SECRET "$secret"', {Act.READ_SECRET}),
    ],
)
def test_each_experiment_notices_its_own_hole(
    sandbox: Sandbox, tmp_path: Path, weakness: str, broken: set[Act]
) -> None:
    """The real bubblewrap with one option missing, or one too many."""
    script = f"""
secret=$(tr '\\0' '\\n' < /proc/$PPID/environ | sed -n s/^SOVEREIGN_AGENT_PROBE_SECRET=//p)
for a in "$@"; do shift; {weakness}; set -- "$@" "$a"; done
exec {sandbox.executable} "$@"
"""
    weak = Sandbox(program(tmp_path / "weak", script), "weakened")
    report = prove(weak)
    assert {e.act for e in report.experiments if not e.refused} == broken, report
    assert all(experiment.control for experiment in report.experiments)
    assert not report.passed


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_command_sees_its_roots_and_nothing_else_of_this_machines_files(sandbox: Sandbox, ws: Path) -> None:
    policy = IsolationPolicy(filesystem_roots=[ws])
    assert shell(sandbox, "cat file; pwd", policy) == f"inside{ws}\n"
    assert shell(sandbox, f"ls -d /home /root /etc/passwd /sys /run {ws.parent}/secret 2>&1 | wc -l", policy) == "6\n"
    assert shell(sandbox, f"ls {ws.parent}", policy) == "ws\n"
    missing = sandbox.run(["cat", str(ws.parent / "secret")], policy)
    assert (missing.returncode, missing.stdout) == (1, b"")
    seen = set(shell(sandbox, "ls -A /", policy).split()) - {"bin", "lib", "lib32", "lib64", "libx32", "sbin"}
    assert seen == {"dev", "etc", "nonexistent", "proc", "tmp", "usr", ws.parts[1]} | {"tmp"}
    assert not shell(sandbox, "find /etc -mindepth 1 -maxdepth 1 ! -name alternatives ! -name ld.so.cache", policy)


def test_a_root_can_be_written_and_the_system_cannot(sandbox: Sandbox, ws: Path) -> None:
    policy = IsolationPolicy(filesystem_roots=[ws])
    shell(sandbox, "echo new > new; rm file; mkdir folder", policy)
    assert sorted(path.name for path in ws.iterdir()) == ["folder", "new"]
    for target in ("/usr/x", "/usr/bin/x", "/lib/x", "/etc/ld.so.cache"):
        assert sandbox.run(["sh", "-c", f"echo > {target}"], policy).returncode != 0
    assert not Path("/usr/x").exists()


def test_no_switch_of_the_kernel_can_be_turned(sandbox: Sandbox) -> None:
    """A caller who is root stays user 0 inside, whom the kernel asks for no capability before it writes a sysctl."""
    assert sandbox.run(["sh", "-c", "echo > /proc/sys/kernel/hostname"], NOTHING).returncode != 0
    writable = "find /proc -path '/proc/[0-9]*' -prune -o ! -path /proc/self ! -path /proc/thread-self -writable -print"
    assert not [name for name in shell(sandbox, f"{writable} 2>/dev/null || true").split() if "pressure" not in name]


def test_a_link_out_of_a_root_leads_nowhere_inside(sandbox: Sandbox, ws: Path) -> None:
    (ws / "link").symlink_to(ws.parent / "secret")
    result = sandbox.run(["cat", "link"], IsolationPolicy(filesystem_roots=[ws]))
    assert (result.returncode, result.stdout) == (1, b"")


def test_what_stands_in_tmp_and_home_is_private_and_vanishes(sandbox: Sandbox, tmp_path: Path) -> None:
    for _ in range(2):
        script = "cat /tmp/new $HOME/new; echo x > /tmp/new; echo y > $HOME/new; cat /tmp/new $HOME/new"
        assert shell(sandbox, script) == "x\ny\n"
    assert not Path(BASE_ENVIRONMENT["HOME"]).exists()


def test_the_environment_is_the_policys_and_stands_on_no_command_line(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "of the child")
    monkeypatch.setenv("OTHER", "of the parent")
    policy = IsolationPolicy(credential_names=["TOKEN"])
    lines = shell(sandbox, "cat /proc/self/environ").split("\0")
    assert set(filter(None, lines)) == {f"{k}={v}" for k, v in BASE_ENVIRONMENT.items()} | {"PWD=/tmp"}
    lines = shell(sandbox, "cat /proc/self/environ", policy).split("\0")
    assert "TOKEN=of the child" in lines
    assert "of the child" not in shell(sandbox, "cat /proc/*/cmdline | tr '\\0' ' '", policy)
    assert "of the parent" not in shell(sandbox, "cat /proc/*/environ | tr '\\0' ' '", policy)


def test_namespaces_capabilities_and_descriptors_are_its_own(sandbox: Sandbox) -> None:
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    inside = shell(sandbox, f"for kind in {' '.join(kinds)}; do readlink /proc/self/ns/$kind; done").split()
    for kind, seen in zip(kinds, inside, strict=True):
        assert seen != str(Path(f"/proc/self/ns/{kind}").readlink())
    assert set(re.findall(r"Cap(?:Prm|Eff|Bnd|Amb):\t(\w+)", shell(sandbox, "cat /proc/self/status"))) == {"0" * 16}
    assert "NoNewPrivs:\t1" in shell(sandbox, "cat /proc/self/status")
    assert shell(sandbox, "cat /proc/sys/kernel/hostname") == "sandbox\n"
    assert sandbox.run(["unshare", "--user", "true"], NOTHING).returncode != 0, "no further namespace, no capability"
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        assert shell(sandbox, "ls /proc/$$/fd").split() in (["0", "1", "2"], ["0", "1", "10", "2"])
    finally:
        os.close(reader)
        os.close(writer)
    group, session = shell(sandbox, "cut -d' ' -f5,6 /proc/$$/stat").split()
    assert group == session != "0", "0 would be a session that began outside"
    assert shell(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]


def test_a_listener_here_is_out_of_reach_whatever_the_policys_hosts(sandbox: Sandbox) -> None:
    """An allowlist of hosts opens no network inside; abstract sockets belong to the network namespace too."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0sovereign-test-{os.getpid()}")
        abstract.listen()
        port = server.getsockname()[1]
        policy = IsolationPolicy(network_hosts=["127.0.0.1", f"localhost:{port}"])
        result = sandbox.run(["bash", "-c", f"echo > /dev/tcp/127.0.0.1/{port}"], policy)
        assert result.returncode == 1
        assert b"onnection refused" in result.stderr
        assert not shell(sandbox, "tail -n +2 /proc/net/unix", policy)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_input_output_and_status_come_through(sandbox: Sandbox) -> None:
    assert sandbox.run(["cat"], NOTHING, input=b"\0\xff\n" * 100_000).stdout == b"\0\xff\n" * 100_000
    result = sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 7"], NOTHING)
    assert result == SandboxResult(7, b"out\n", b"err\n", timed_out=False, truncated=False)
    assert sandbox.run(["sh", "-c", "kill -9 $$"], NOTHING).returncode == 128 + signal.SIGKILL
    assert sandbox.run(["cat"], NOTHING).stdout == b""
    words = ["a b", "", "$HOME", "-n", "--", "ä\n"]
    assert sandbox.run(["printf", "%s|", *words], NOTHING).stdout.decode() == "".join(f"{w}|" for w in words)
    assert sandbox.run(["false"], NOTHING).returncode == 1


def test_a_command_that_cannot_be_started_is_a_refusal_not_a_status(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    policy = IsolationPolicy(filesystem_roots=[tmp_path])
    for name in ("no-such-program", str(tmp_path / "plain"), "/", "--version"):
        with pytest.raises(Refusal, match=r"did not start inside.*nothing was run outside") as refusal:
            sandbox.run([name], policy)
        assert refusal.value.category == "process"


def test_when_the_time_is_over_everything_inside_is_killed(sandbox: Sandbox, ws: Path) -> None:
    policy = IsolationPolicy(filesystem_roots=[ws])
    script = "echo begun; (setsid sh -c 'while :; do date +%s%N > beat; sleep 0.02; done' &) ; sleep 60"
    start = time.monotonic()
    result = sandbox.run(["sh", "-c", script], policy, timeout_seconds=1)
    assert time.monotonic() - start < 20
    assert (result.returncode, result.stdout, result.timed_out) == (124, b"begun\n", True)
    assert stops(ws / "beat")


def test_closed_streams_and_a_lingering_child_neither_end_nor_prolong_a_run(sandbox: Sandbox, ws: Path) -> None:
    policy = IsolationPolicy(filesystem_roots=[ws])
    assert sandbox.run(["sh", "-c", "exec >&- 2>&-; sleep 0.2; echo done > late"], policy).returncode == 0
    assert (ws / "late").read_text() == "done\n"
    assert sandbox.run(["sh", "-c", "exec >&- 2>&-; sleep 60"], policy, timeout_seconds=0.2).timed_out
    lingering = sandbox.run(["sh", "-c", "sleep 60 & echo done"], policy, timeout_seconds=30)
    assert (lingering.stdout, lingering.timed_out) == (b"done\n", False)


def test_output_beyond_the_limit_is_dropped_and_said_to_be(sandbox: Sandbox) -> None:
    result = sandbox.run(["sh", "-c", "head -c 3000000 /dev/zero; echo -n err >&2"], NOTHING, output_limit_bytes=1000)
    assert (len(result.stdout), result.stderr, result.returncode, result.truncated) == (1000, b"err", 0, True)
    exact = sandbox.run(["printf", "12345"], NOTHING, output_limit_bytes=5)
    assert (exact.stdout, exact.truncated) == (b"12345", False)
    none = sandbox.run(["printf", "12345"], NOTHING, output_limit_bytes=0)
    assert (none.stdout, none.truncated) == (b"", True)


def test_a_run_dies_with_the_process_that_started_it(sandbox: Sandbox, ws: Path) -> None:
    code = f"""
from sovereign_agent.sandbox import Sandbox
from sovereign_agent.isolation import IsolationPolicy
script = "while :; do date +%s%N > beat; sleep 0.02; done"
Sandbox({sandbox.executable!r}, "x").run(["sh", "-c", script], IsolationPolicy(filesystem_roots=[{str(ws)!r}]))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        deadline = time.monotonic() + 20
        while not (ws / "beat").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    assert stops(ws / "beat")


def test_it_starts_inside_a_root_or_refuses(sandbox: Sandbox, ws: Path) -> None:
    (ws / "below").mkdir()
    (ws / "out").symlink_to("/usr")
    policy = IsolationPolicy(filesystem_roots=[ws])
    assert shell(sandbox, "pwd", policy, cwd=ws / "below") == f"{ws}/below\n"
    assert shell(sandbox, "pwd") == "/tmp\n"
    for cwd in ("/usr", ws / "out", ws.parent, ""):
        with pytest.raises(Refusal) as refusal:
            sandbox.run(["pwd"], policy, cwd=cwd)
        assert refusal.value.category == "filesystem"
    with pytest.raises(Refusal, match="did not start inside"):
        sandbox.run(["pwd"], policy, cwd=ws / "absent")


def test_read_only_places_are_seen_and_kept_also_within_a_root(sandbox: Sandbox, ws: Path) -> None:
    (ws / "kept").mkdir()
    (ws / "kept" / "file").write_text("kept")
    policy = IsolationPolicy(filesystem_roots=[ws])
    read_only: list[str | Path] = [ws / "kept", ws.parent, str(ws.parent / "secret")]
    assert shell(sandbox, f"cat kept/file {ws.parent}/secret", policy, read_only=read_only) == "keptoutside"
    assert sandbox.run(["touch", "new"], policy, read_only=read_only).returncode == 0
    for target in ("kept/new", "kept/file", str(ws.parent / "new")):
        assert sandbox.run(["touch", target], policy, read_only=read_only).returncode != 0
    with pytest.raises(Refusal, match="did not start inside"):
        sandbox.run(["true"], policy, read_only=[ws / "absent"])
    assert sandbox.run(["touch", "new"], policy, read_only=[ws]).returncode != 0, "on one path read-only wins"


@pytest.mark.parametrize("place", ["/", "/proc", "/sys", "/dev", "/proc/self", "/dev/shm"])
def test_a_place_that_would_undo_the_isolation_is_refused(place: str) -> None:
    """Decided before anything is started, so without a sandbox too."""
    anything = Sandbox("/nonexistent/bwrap", "never started")
    if Path(place).is_dir():
        for policy, read_only in ((IsolationPolicy(filesystem_roots=[place]), []), (NOTHING, [place])):
            with pytest.raises(Refusal, match="nothing isolated") as refusal:
                anything.run(["true"], policy, read_only=read_only)
            assert refusal.value.category == "process"


def test_a_root_that_was_replaced_is_not_bound(ws: Path) -> None:
    policy = IsolationPolicy(filesystem_roots=[ws])
    ws.rename(ws.parent / "moved")
    ws.symlink_to("/etc")
    with pytest.raises(Refusal, match="replaced"):
        Sandbox("/nonexistent/bwrap", "never started").run(["true"], policy)


@pytest.mark.parametrize(
    ("argv", "options", "error", "named"),
    [
        ("true", {}, TypeError, "argv"),
        (None, {}, TypeError, "argv"),
        (["true", 3], {}, TypeError, "argv"),
        ([b"true"], {}, TypeError, "argv"),
        ([], {}, ValueError, "argv"),
        ([""], {}, ValueError, "argv"),
        (["true", "a\0b"], {}, ValueError, "argv"),
        (["true"], {"timeout_seconds": 0}, ValueError, "timeout_seconds"),
        (["true"], {"timeout_seconds": float("nan")}, ValueError, "timeout_seconds"),
        (["true"], {"timeout_seconds": True}, TypeError, "timeout_seconds"),
        (["true"], {"input": "text"}, TypeError, "input"),
        (["true"], {"output_limit_bytes": -1}, ValueError, "output_limit_bytes"),
        (["true"], {"output_limit_bytes": 1.5}, TypeError, "output_limit_bytes"),
        (["true"], {"read_only": "/usr"}, TypeError, "read_only"),
        (["true"], {"read_only": Path("/usr")}, TypeError, "read_only"),
    ],
)
def test_a_malformed_argument_names_itself(
    argv: Any, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Sandbox("/nonexistent/bwrap", "never started").run(argv, NOTHING, **options)


def test_it_needs_no_root(sandbox: Sandbox, as_nobody: Callable[..., Any]) -> None:
    """The same options, given by a user without any right of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        options = [*module._NAMESPACES, *module._system_mounts(), "--bind", folder, folder]
        script = f"id -u; cat /etc/passwd; echo x > {folder}/x"
        words = [str(sandbox.executable), *options, "--", "sh", "-c", script]
        ran = as_nobody("import subprocess; subprocess.run(sys.argv[1:])", *words)
        if "No permissions" in ran.stderr:
            pytest.skip("this machine lets only root make user namespaces")
        assert ran.stdout.split() == ["65534" if os.getuid() == 0 else str(os.getuid())], ran.stderr
        assert Path(folder, "x").read_text() == "x\n"
