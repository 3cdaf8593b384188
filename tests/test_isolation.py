"""Isolation: what a policy allows, what it refuses, and what it says of itself."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sovereign_agent import isolation
from sovereign_agent.errors import Refusal, shorten
from sovereign_agent.isolation import (
    BASE_ENVIRONMENT,
    Act,
    Enforcement,
    Experiment,
    IsolationPolicy,
    Plane,
    PlaneStatus,
    ProbeReport,
    Verdict,
    kernel_name,
)

NOW = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
BACKENDS = ["walk", "openat2"]
MODES = ["rb", "wb", "ab", "xb", "r+b"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which `open_path` opens; the kernel's only where the kernel has it."""
    name = str(request.param)
    if name == "openat2" and not isolation._openat2_works():
        pytest.skip("this kernel has no openat2, or does not let this process call it")
    monkeypatch.setattr(isolation, "_openat2_works", lambda: name == "openat2")
    return name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root `ws` beside a directory `outside`, each with one file."""
    for name in ("ws", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "ws" / "file").write_text("inside")
    (tmp_path / "outside" / "secret").write_text("outside")
    return tmp_path


@pytest.fixture
def policy(place: Path) -> IsolationPolicy:
    return IsolationPolicy(filesystem_roots=[place / "ws"])


def refuses(policy: IsolationPolicy, path: str | Path, match: str | None = None) -> None:
    """Both functions refuse the path, whatever the mode."""
    calls: list[Callable[[str | Path], object]] = [
        policy.authorize_path,
        *(partial(policy.open_path, mode=mode) for mode in MODES),
    ]
    for call in calls:
        with pytest.raises(Refusal, match=match) as refusal:
            call(path)
        assert refusal.value.category == "filesystem"


# --- roots ------------------------------------------------------------------------------------------------------------


def test_an_empty_policy_allows_nothing(place: Path) -> None:
    policy = IsolationPolicy()
    refuses(policy, place / "ws" / "file")
    refuses(policy, "/")
    refuses(policy, ".")
    for ask in (policy.authorize_network, policy.authorize_credential, policy.authorize_tool):
        with pytest.raises(Refusal):
            ask("x")
        with pytest.raises(Refusal):
            ask("")
    assert policy.environment() == BASE_ENVIRONMENT


def test_a_relative_root_is_pinned_where_it_was_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place / "ws")
    policies = [IsolationPolicy(filesystem_roots=[root]) for root in (".", Path(), "../ws", Path("../outside/../ws"))]
    monkeypatch.chdir(place / "outside")
    for policy in policies:
        assert policy.filesystem_roots == (place / "ws",)
        assert policy.authorize_path(place / "ws" / "file") == place / "ws" / "file"
        refuses(policy, "secret")


def test_a_root_that_is_a_link_is_pinned_to_what_it_led_to(place: Path) -> None:
    (place / "link").symlink_to(place / "ws")
    policy = IsolationPolicy(filesystem_roots=[place / "link"])
    (place / "link").unlink()
    (place / "link").symlink_to(place / "outside")
    refuses(policy, place / "link" / "secret")
    with policy.open_path(place / "ws" / "file") as file:
        assert file.read() == b"inside"


def test_a_directory_put_in_the_place_of_a_root_is_not_the_root(
    place: Path, policy: IsolationPolicy, backend: str
) -> None:
    (place / "ws").rename(place / "moved")
    (place / "ws").mkdir()
    (place / "ws" / "file").write_text("another")
    refuses(policy, place / "ws" / "file", "replaced")
    (place / "ws" / "file").unlink()
    (place / "ws").rmdir()
    (place / "ws").symlink_to(place / "moved")
    refuses(policy, place / "ws" / "file")


def test_open_path_itself_checks_that_the_root_is_the_pinned_one(
    place: Path, policy: IsolationPolicy, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is swapped after the path was authorized, just before it is opened."""
    monkeypatch.setattr(isolation.PinnedRoot, "is_in_place", lambda _self: True)
    (place / "ws").rename(place / "moved")
    (place / "outside").rename(place / "ws")
    with pytest.raises(Refusal, match="replaced"):
        policy.open_path(place / "ws" / "secret")


@pytest.mark.parametrize("root", ["", " ", "\t", "a\0b"])
def test_an_empty_root_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="filesystem_roots"):
        IsolationPolicy(filesystem_roots=[root])


def test_a_root_must_be_a_directory_that_exists(place: Path) -> None:
    (place / "loop").symlink_to("loop")
    for root in (place / "missing", place / "ws" / "file", place / "loop", "\ud800", "x" * 5000):
        with pytest.raises(Refusal) as refusal:
            IsolationPolicy(filesystem_roots=[root])
        assert refusal.value.category == "filesystem"


FIELDS = ["filesystem_roots", "network_hosts", "credential_names", "allowed_tools", "denied_tools"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["name", b"name", Path("/"), None, 3])
def test_one_value_where_a_set_belongs_is_a_type_error_that_names_it(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=field):
        IsolationPolicy(**{field: value})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("member", [None, 3, b"name", ("a",)])
def test_a_member_that_is_no_text_is_a_type_error_that_names_its_set(field: str, member: Any) -> None:
    with pytest.raises(TypeError, match=field):
        IsolationPolicy(**{field: [member]})


@pytest.mark.parametrize(
    ("field", "member"),
    [
        *(("credential_names", name) for name in ("", " ", "A=B", "A B", "A\0", "A\n")),
        *((field, name) for field in ("allowed_tools", "denied_tools") for name in ("", " ", "a\0", "a\u200bb", "\n")),
    ],
)
def test_a_member_that_is_no_name_is_refused_when_the_policy_is_made(field: str, member: str) -> None:
    with pytest.raises(ValueError, match=field):
        IsolationPolicy(**{field: [member]})


def test_a_policy_takes_any_iterable_and_cannot_be_changed(place: Path) -> None:
    names = ["B", "A"]
    policy = IsolationPolicy(credential_names=names, filesystem_roots=(str(place / n) for n in ("ws", "outside", "ws")))
    names.append("C")
    assert policy.credential_names == {"A", "B"}
    assert policy.filesystem_roots == (place / "outside", place / "ws")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.credential_names = frozenset({"C"})  # type: ignore[misc]  # the point of the test


# --- paths ------------------------------------------------------------------------------------------------------------


def test_links_are_resolved_before_ancestry_is_checked(place: Path, policy: IsolationPolicy, backend: str) -> None:
    """A name inside the root that leads out is outside; one that leads to another place inside is inside."""
    ws = place / "ws"
    (ws / "tempfile").symlink_to(place / "outside" / "secret")
    (ws / "folder").symlink_to(place / "outside")
    (ws / "up").symlink_to("..")
    (ws / "dangling").symlink_to(place / "outside" / "new")
    (ws / "good").symlink_to("file")
    (ws / "around").symlink_to(place / "outside" / ".." / "ws")
    for path in ("tempfile", "folder/secret", "up/outside/secret", "folder/new", "dangling", "up", "../outside/secret"):
        refuses(policy, ws / path, "outside every root")
    assert (place / "outside" / "secret").read_text() == "outside"
    assert not (place / "outside" / "new").exists()
    for path in ("good", "around/file", "up/ws/file", "./folder/../ws/good", "file"):
        assert policy.authorize_path(ws / path) == ws / "file"
        with policy.open_path(str(ws / path)) as file:
            assert file.read() == b"inside"


def test_a_loop_and_a_chain_too_long_are_refused(place: Path, policy: IsolationPolicy) -> None:
    (place / "ws" / "a").symlink_to("b")
    (place / "ws" / "b").symlink_to("a")
    refuses(policy, place / "ws" / "a", "40 links")
    refuses(policy, f"{place}/ws/a/../file", "40 links")
    (place / "ws" / "0").symlink_to("file")
    for number in range(1, 45):
        (place / "ws" / str(number)).symlink_to(str(number - 1))
    assert policy.authorize_path(place / "ws" / "39") == place / "ws" / "file"
    refuses(policy, place / "ws" / "40", "40 links")
    assert not os.path.exists(place / "ws" / "40"), "the kernel has the same limit"  # noqa: PTH110


@pytest.mark.parametrize(
    "tail", ["", "\0", "a\0b", "\ud800", "x" * 300, "x/" * 3000, "file/below", "file/", "\udcff/x", "\n", "~", "*"]
)
def test_every_text_is_answered_with_a_path_inside_or_a_refusal(
    place: Path, policy: IsolationPolicy, tail: str
) -> None:
    for path in (tail, f"{place}/ws/{tail}", f"{place}/ws/../{tail}", f"{place}/missing/../ws/{tail}"):
        try:
            answer = repr(policy.authorize_path(path).relative_to(place / "ws"))
        except Refusal as refusal:
            answer = str(refusal)
        assert "\n" not in answer


def test_empty_and_nul_are_refused_with_the_reason(policy: IsolationPolicy) -> None:
    refuses(policy, "", "empty")
    refuses(policy, "a\0b", "NUL")


def test_a_relative_path_starts_at_the_current_directory(
    place: Path, policy: IsolationPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert policy.authorize_path("ws/./file") == place / "ws" / "file"
    refuses(policy, "ws/../outside/secret")
    refuses(policy, "outside")
    monkeypatch.chdir(place / "ws")
    assert policy.authorize_path(Path("new")) == place / "ws" / "new"
    assert policy.authorize_path(".") == policy.authorize_path(Path()) == place / "ws"


def test_a_current_directory_that_is_gone_is_a_refusal(place: Path) -> None:
    """In a child, since a test must not stand in a directory that is gone."""
    code = """
import os, sys
from sovereign_agent.errors import Refusal, shorten
from sovereign_agent.isolation import IsolationPolicy
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
policy = IsolationPolicy(filesystem_roots=["/"])
for call in (lambda: policy.authorize_path("x"), lambda: IsolationPolicy(filesystem_roots=["."])):
    try: call()
    except Refusal as refusal: print(refusal.category)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["filesystem", "filesystem"]


@pytest.mark.parametrize("path", [None, 3, b"/etc", ["/etc"], object()])
def test_what_is_neither_text_nor_path_is_a_type_error(policy: IsolationPolicy, path: Any) -> None:
    for call in (policy.authorize_path, policy.open_path):
        with pytest.raises(TypeError, match="path"):
            call(path)


def test_a_name_like_the_root_is_not_inside_it(place: Path, policy: IsolationPolicy) -> None:
    (place / "ws2").mkdir()
    (place / "ws2" / "file").write_text("x")
    refuses(policy, place / "ws2" / "file")
    assert policy.authorize_path(place / "ws") == place / "ws"


def test_a_component_that_cannot_be_examined_is_refused() -> None:
    """Behind a closed directory there may be a link to anywhere. In a child without root, which sees everything."""
    code = """
import ctypes, os, sys
from sovereign_agent.errors import Refusal, shorten
from sovereign_agent.isolation import IsolationPolicy
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
policy = IsolationPolicy(filesystem_roots=[sys.argv[1]])
for path in ("closed/link", "closed/link/secret", "unreadable", "listless/file"):
    for call in (policy.authorize_path, policy.open_path):
        try: print(path, call(sys.argv[1] + "/" + path) and "allowed")
        except Refusal as refusal: print(path, refusal.why)
"""
    with tempfile.TemporaryDirectory() as folder:
        ws = Path(folder).resolve()
        for name in ("closed", "listless"):
            (ws / name).mkdir()
        (ws / "closed" / "link").symlink_to("/etc")
        (ws / "unreadable").write_text("x")
        (ws / "listless" / "file").write_text("x")
        for name, mode in {"": 0o711, "unreadable": 0, "listless": 0o711, "closed": 0}.items():
            (ws / name).chmod(mode)
        ran = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
        (ws / "closed").chmod(0o700)
    assert ran.stdout.splitlines() == [
        *["closed/link permission denied"] * 2,
        *["closed/link/secret permission denied"] * 2,
        "unreadable allowed",
        "unreadable permission denied",
        *["listless/file allowed"] * 2,
    ], ran.stderr


def test_many_roots_cost_no_more_than_a_comparison_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots are resolved once, when the policy is made: a question examines its own path and one root."""
    roots = [tmp_path / str(number) for number in range(200)]
    for root in roots:
        root.mkdir()
    policy = IsolationPolicy(filesystem_roots=roots)
    looked: list[object] = []
    real = os.lstat

    def counted(path: str) -> os.stat_result:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os, "lstat", counted)
    policy.authorize_path(roots[-1] / "file")
    assert len(looked) <= len((roots[-1] / "file").parts) + 1


# --- opening ----------------------------------------------------------------------------------------------------------


def test_open_path_reads_writes_appends_creates_and_updates(place: Path, policy: IsolationPolicy, backend: str) -> None:
    path = place / "ws" / "new"
    with policy.open_path(path, "xb") as file:
        file.write(b"one")
    with policy.open_path(path, "ab") as file:
        file.write(b" two")
    with policy.open_path(path, "r+b") as file:
        file.write(b"ONE")
    with policy.open_path(path) as file:
        assert file.read() == b"ONE two"
    with policy.open_path(
        path,
        "w",
    ) as file:
        file.write("größer\n")
    assert path.read_bytes() == "größer\n".encode()
    with policy.open_path(path, "rt") as file:
        assert file.read() == "größer\n"
    with policy.open_path(path, "w+b") as file:
        file.write(b"x")
        file.seek(0)
        assert file.read() == b"x"
    with pytest.raises(Refusal, match="exists"):
        policy.open_path(path, "xb")
    for mode in ("rb", "r+b"):
        with pytest.raises(Refusal, match="no such file"):
            policy.open_path(place / "ws" / "absent", mode)
    with pytest.raises(Refusal, match="no such file"):
        policy.open_path(place / "ws" / "absent" / "file", "wb")
    assert sorted(os.listdir(place / "ws")) == ["file", "new"]  # noqa: PTH208


def test_a_created_file_gets_the_umask_and_no_child_inherits_it(
    place: Path, policy: IsolationPolicy, backend: str
) -> None:
    before = os.umask(0o027)
    try:
        with policy.open_path(place / "ws" / "new", "wb") as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o640
            assert not os.get_inheritable(file.fileno())
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", ["", "q", "rw", "rr", "r++", "rbt", "b", "+", "rU", "wx", "r b", "rb\n", "R"])
def test_a_malformed_mode_is_a_value_error_that_names_it(place: Path, policy: IsolationPolicy, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        policy.open_path(place / "ws" / "file", mode)
    assert (place / "ws" / "file").read_text() == "inside"


@pytest.mark.parametrize("mode", [None, 0, b"rb"])
def test_a_mode_that_is_no_text_is_a_type_error(place: Path, policy: IsolationPolicy, mode: Any) -> None:
    with pytest.raises(TypeError, match="mode"):
        policy.open_path(place / "ws" / "file", mode)


@pytest.mark.parametrize("text", ["r", "w", "a", "x"])
@pytest.mark.parametrize("more", ["", "b", "t", "+", "b+", "+b", "t+", "+t"])
def test_every_mode_of_open_is_accepted(place: Path, policy: IsolationPolicy, text: str, more: str) -> None:
    path = place / "ws" / ("new" if text == "x" else "file")
    with policy.open_path(path, text + more) as file:
        assert isinstance(file.read() if file.readable() else b"", bytes if "b" in more else (str, bytes))


def test_only_regular_files_are_opened_and_a_pipe_does_not_block(
    place: Path, policy: IsolationPolicy, backend: str
) -> None:
    os.mkfifo(place / "ws" / "pipe")
    (place / "ws" / "folder").mkdir()
    refuses_to_open = [place / "ws" / "pipe", place / "ws" / "folder", place / "ws"]
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else []  # noqa: PTH208
    for path in refuses_to_open:
        for mode in ("rb", "wb", "ab", "r+b"):
            with pytest.raises(Refusal):
                policy.open_path(path, mode)
    after = os.listdir("/proc/self/fd") if before else []  # noqa: PTH208
    assert len(after) == len(before), "a refusal leaves no descriptor open"
    whole = IsolationPolicy(filesystem_roots=["/"])
    with pytest.raises(Refusal, match="no regular file"):
        whole.open_path("/dev/null")


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "xb", "r+b", "w", "w+"])
@pytest.mark.parametrize("name", ["file", "new", "folder/secret", "folder/new"])
@pytest.mark.parametrize("leads_to", ["outside", "ws/elsewhere"])
def test_a_link_swapped_in_after_the_check_is_refused(
    place: Path,
    policy: IsolationPolicy,
    backend: str,
    name: str,
    mode: str,
    leads_to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that leads to another place inside: what was checked is not what would be opened."""
    for folder in ("folder", "elsewhere"):
        (place / "ws" / folder).mkdir()
        (place / "ws" / folder / "secret").write_text(folder)
    located = policy._locate(place / "ws" / name)
    first, target = place / "ws" / name.partition("/")[0], place / leads_to
    # Relative: openat2 refuses every absolute link beneath a directory, whatever else it is told.
    link = os.path.relpath(target, first.parent)
    if first.is_dir():
        shutil.rmtree(first)
        first.symlink_to(link)
    else:
        first.unlink(missing_ok=True)
        first.symlink_to(f"{link}/{'new' if name == 'new' else 'secret'}")
    monkeypatch.setattr(IsolationPolicy, "_locate", lambda _self, _path: located)
    before = snapshot(target)
    with pytest.raises(Refusal) as refusal:
        policy.open_path(name, mode)
    assert refusal.value.category == "filesystem"
    assert snapshot(target) == before


SWAP = """
import os, sys
folder, plain, link = sys.argv[1:4]
while True:
    os.rename(folder, plain); os.rename(link, folder)
    os.rename(folder, link); os.rename(plain, folder)
"""


@pytest.mark.parametrize("rounds", [500, pytest.param(25_000, marks=pytest.mark.soak)])  # times four: 2,000, 100,000
@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_no_race_leads_outside(place: Path, policy: IsolationPolicy, backend: str, mode: str, rounds: int) -> None:
    """Another process swaps a directory and a link to the outside as fast as it can, while files are opened."""
    folder = place / "ws" / "folder"
    folder.mkdir()
    (folder / "secret").write_text("inside")
    (place / "ws" / "link").symlink_to(place / "outside")
    arguments = [str(folder), str(place / "ws" / "plain"), str(place / "ws" / "link")]
    answers = {"opened": 0, "refused": 0, "link seen": 0}
    with subprocess.Popen([sys.executable, "-c", SWAP, *arguments]) as swapper:
        try:
            while answers["opened"] + answers["refused"] < rounds or min(answers["opened"], answers["link seen"]) < 60:
                assert answers["opened"] + answers["refused"] < 20 * rounds, f"no race: {answers}"
                with contextlib.suppress(OSError):
                    folder.readlink()
                    answers["link seen"] += 1
                try:
                    with policy.open_path(folder / "secret", mode) as file:
                        assert file.read() == b"inside" if mode == "rb" else file.write(b"inside")
                        answers["opened"] += 1
                except Refusal:
                    answers["refused"] += 1
        finally:
            swapper.kill()
    assert (place / "outside" / "secret").read_text() == "outside"
    assert os.listdir(place / "outside") == ["secret"]  # noqa: PTH208
    assert answers["opened"] >= 60, answers
    assert answers["refused"], "the race was never lost, so it was no race"


def test_openat2_is_tried_where_the_kernel_has_it() -> None:
    if sys.platform != "linux":
        pytest.skip("openat2 is a call of Linux")
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, 0)  # asked without the module, whose own answer is what is tested
    call = (ctypes.c_long(437), -1, b"/", ctypes.byref(how), ctypes.c_size_t(24))
    descriptor = ctypes.CDLL(None).syscall(*call)
    assert isolation._openat2_works() == (descriptor >= 0)
    if descriptor < 0:
        pytest.skip("this kernel has no openat2, or does not let this process call it")
    os.close(descriptor)
    base = os.open("/usr", isolation._directory_flags())
    try:
        with pytest.raises(OSError, match="cross-device") as error:
            isolation._openat2(base, "../etc/passwd", os.O_RDONLY)
        assert error.value.errno == errno.EXDEV
    finally:
        os.close(base)


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "", "ws", "outside"]), max_size=6).map("/".join)
PLACES = st.tuples(st.sampled_from(["ws", "outside"]), st.lists(NAMES, min_size=1, max_size=3)).map(
    lambda parts: "/".join([parts[0], *parts[1]])
)
TREES = st.lists(
    st.tuples(st.sampled_from(["folder", "file", "link", "absolute link"]), PLACES, STEPS), min_size=1, max_size=14
)


def grow(base: Path, tree: list[tuple[str, str, str]]) -> None:
    for name in ("ws", "outside"):
        (base / name).mkdir()
    for kind, where, target in tree:
        path = base / where
        with contextlib.suppress(OSError):
            if kind == "folder":
                path.mkdir(parents=True)
            elif kind == "file":
                path.write_text(where)
            else:
                path.symlink_to(f"{base}/{target}" if kind == "absolute link" else target or ".")


def snapshot(folder: Path) -> dict[str, str]:
    found = {}
    for top, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(top, name)
            found[str(path)] = (
                str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "/"
            )
    return found


@settings(max_examples=60)
@given(TREES, st.lists(st.one_of(STEPS.map("{{}}/{}".format), STEPS), min_size=1, max_size=6))
@example([("link", "ws/a", "../outside"), ("file", "outside/b", "")], ["{}/ws/a/b", "a/b", "a/new", "a/../ws/a"])
@example([("link", "ws/a", "a"), ("link", "ws/b", "../outside")], ["{}/ws/a/../b", "a/../b/c", "c/../b/c"])
@example([("absolute link", "ws/a", "outside/b"), ("absolute link", "outside/c", "ws/b")], ["a", "../outside/c"])
def test_no_tree_of_directories_links_and_dots_yields_a_path_outside(
    tree: list[tuple[str, str, str]], questions: list[str]
) -> None:
    """Judged by the kernel: what it reaches inside is allowed, what it reaches outside is refused and untouched."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        grow(base, tree)
        ws = base / "ws"
        policy = IsolationPolicy(filesystem_roots=[ws])
        with contextlib.chdir(ws):
            for question in (question.replace("{}", str(base)) for question in questions):
                try:
                    reached = Path(os.path.realpath(question, strict=True)) if question else None
                except OSError:
                    reached = None
                try:
                    allowed = policy.authorize_path(question)
                except Refusal:
                    assert reached is None or not reached.is_relative_to(ws), question
                else:
                    assert allowed.is_relative_to(ws)
                    assert os.path.realpath(allowed) == str(allowed)
                    assert reached in (None, allowed)
                outside = snapshot(base / "outside")
                for works in {False, isolation._openat2_works()}:
                    for mode in ("rb", "xb", "ab", "wb"):
                        opened_inside(policy, question, mode, ws, works=works)
                assert snapshot(base / "outside") == outside


def opened_inside(policy: IsolationPolicy, question: str, mode: str, ws: Path, *, works: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "_openat2_works", lambda: works)
        try:
            with policy.open_path(question, mode) as file:
                assert Path(os.path.realpath(file.name)).is_relative_to(ws)
                status = os.fstat(file.fileno())
                inodes = [path.lstat().st_ino for path in ws.rglob("*")]
                assert status.st_ino in inodes
                if file.writable():
                    file.write(b"written")
        except Refusal:
            pass


@given(st.text(max_size=30))
def test_any_text_is_answered(text: str) -> None:
    policy = IsolationPolicy(filesystem_roots=["/usr/lib"])
    for call in (policy.authorize_path, policy.open_path):
        with contextlib.suppress(Refusal):
            call(text)


# --- credentials and tools --------------------------------------------------------------------------------------------


def test_a_child_gets_the_allowed_credentials_that_exist_and_the_named_base(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "OTHER_TOKEN", "EMPTY", "LD_PRELOAD", "PYTHONPATH"):
        monkeypatch.setenv(name, f"value of {name}")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("MISSING", raising=False)
    policy = IsolationPolicy(credential_names=["TOKEN", "EMPTY", "MISSING"])
    assert policy.environment() == {**BASE_ENVIRONMENT, "TOKEN": "value of TOKEN", "EMPTY": ""}
    assert set(BASE_ENVIRONMENT) == {"HOME", "LANG", "PATH", "TMPDIR", "TZ"}


def test_the_base_is_fixed_and_a_listed_name_wins_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BASE_ENVIRONMENT:
        monkeypatch.setenv(name, "of this process")
    assert IsolationPolicy().environment() == BASE_ENVIRONMENT
    environment = IsolationPolicy(credential_names=["PATH"]).environment()
    assert environment == {**BASE_ENVIRONMENT, "PATH": "of this process"}
    environment["HOME"] = "changed"
    assert IsolationPolicy().environment()["HOME"] != "changed"


def test_a_credential_is_compared_letter_for_letter() -> None:
    policy = IsolationPolicy(credential_names=["INVENTORY_TOKEN"])
    assert policy.authorize_credential("INVENTORY_TOKEN") == "INVENTORY_TOKEN"
    for name in ("TOKEN", "inventory_token", "INVENTORY_TOKEN ", "", "INVENTORY_TOKEN=x"):
        with pytest.raises(Refusal) as refusal:
            policy.authorize_credential(name)
        assert refusal.value.category == "credentials"


def test_a_pasted_secret_is_not_repeated() -> None:
    secret = "sk-live-0123456789abcdef"
    with pytest.raises(Refusal) as refusal:
        IsolationPolicy().authorize_credential(secret)
    assert secret not in str(refusal.value)
    assert secret not in repr(refusal.value)
    with pytest.raises(TypeError) as error:
        IsolationPolicy(credential_names=secret)
    assert secret not in str(error.value)
    with pytest.raises(ValueError, match="credential_names") as malformed:
        IsolationPolicy(credential_names=[f"TOKEN={secret}"])
    assert secret not in str(malformed.value)


@pytest.mark.parametrize(
    ("allowed", "denied", "asked"),
    [
        ("Delete", "delete", "Delete"),
        ("delete", "DELETE", "delete"),
        ("file_rm", "\ufb01le_rm", "file_rm"),
        ("\ufb01le_rm", "file_rm", "\ufb01le_rm"),
        ("straße", "STRASSE", "straße"),
        ("read", " read ", "read"),
    ],
)
def test_deny_wins_in_whatever_form_the_names_are_written(allowed: str, denied: str, asked: str) -> None:
    assert IsolationPolicy(allowed_tools=[allowed]).authorize_tool(asked)
    with pytest.raises(Refusal, match="denies") as refusal:
        IsolationPolicy(allowed_tools=[allowed], denied_tools=[denied]).authorize_tool(asked)
    assert refusal.value.category == "tools"


def test_a_tool_is_allowed_in_every_form_of_its_listed_name() -> None:
    policy = IsolationPolicy(allowed_tools=["Read_Inventory"])
    for name in ("read_inventory", "READ_INVENTORY", " read_inventory ", "ｒｅａｄ_inventory"):  # noqa: RUF001
        assert policy.authorize_tool(name) == "read_inventory"
    for name in ("inventory", "", "read", "re\u00adad_inventory", "read_inventory\u200b", "rеad_inventory", "*"):  # noqa: RUF001
        with pytest.raises(Refusal, match="does not allow"):
            policy.authorize_tool(name)


@pytest.mark.parametrize("name", [None, 3, b"read"])
def test_a_name_that_is_no_text_is_a_type_error(name: Any) -> None:
    for call in (IsolationPolicy().authorize_tool, IsolationPolicy().authorize_credential):
        with pytest.raises(TypeError, match="name"):
            call(name)


def test_equal_policies_have_equal_digests_and_each_field_counts(place: Path) -> None:
    full: dict[str, Any] = {
        "filesystem_roots": [place / "ws"],
        "network_hosts": ["Example.com.", "*.example.com:443"],
        "credential_names": ["TOKEN"],
        "allowed_tools": ["read", "Write"],
        "denied_tools": ["delete"],
    }
    digest = IsolationPolicy(**full).digest()
    same = {**full, "network_hosts": ["*.EXAMPLE.com:443", "example.com"], "allowed_tools": ("write", "READ", "read")}
    assert IsolationPolicy(**same) == IsolationPolicy(**full)
    assert IsolationPolicy(**same).digest() == digest
    assert len(digest) == 64
    others = {field: IsolationPolicy(**{**full, field: []}).digest() for field in full}
    swapped = IsolationPolicy(**{**full, "allowed_tools": ["delete"], "denied_tools": ["read", "write"]})
    assert len({digest, IsolationPolicy().digest(), swapped.digest(), *others.values()}) == 8


# --- explaining -------------------------------------------------------------------------------------------------------


def report(**changes: Any) -> ProbeReport:
    experiments = tuple(Experiment(act, control=True, refused=True, detail="refused") for act in Act)
    fields = {"sandbox": "bubblewrap 1", "kernel": kernel_name(), "at": NOW, "experiments": experiments}
    return ProbeReport(**{**fields, **changes})


def process(probe: Any, now: Any = NOW) -> PlaneStatus:
    planes = IsolationPolicy().explain(probe, now=now)
    assert [status.plane for status in planes] == list(Plane)
    assert all(status.verdict is Verdict.ENFORCED for status in planes[1:]), "the other planes are always reported"
    return planes[0]


def test_the_planes_stand_in_order_and_the_process_is_unavailable_without_a_probe() -> None:
    planes = IsolationPolicy().explain()
    assert [f"{status.plane}={status.verdict}" for status in planes] == [
        "process=UNAVAILABLE",
        "filesystem=ENFORCED",
        "network=ENFORCED",
        "credentials=ENFORCED",
        "tools=ENFORCED",
    ]
    assert "no probe" in planes[0].detail
    assert "not an OS egress firewall" in planes[2].detail
    assert "hard links or bind mounts" in planes[1].detail
    assert "advisory" in planes[1].detail
    assert all("\n" not in status.detail for status in planes)


class Truthy:
    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # it equals everything


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Grown(ProbeReport):
    """A report that praises itself."""

    passed = True


def raising(error: BaseException) -> Callable[[], object]:
    def probe() -> object:
        raise error

    return probe


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (lambda: False, "returned bool"),
        (lambda: None, "returned NoneType"),
        (lambda: 1, "returned int"),
        (lambda: "UNAVAILABLE", "returned str"),
        (lambda: "ENFORCED", "returned str"),
        (lambda: subprocess.CompletedProcess([], 1), "returned CompletedProcess"),
        (lambda: subprocess.CompletedProcess([], 0), "returned CompletedProcess"),
        (Truthy, "returned Truthy"),
        (lambda: Grown("s", kernel_name(), NOW, ()), "returned Grown"),
        (lambda _argument: True, "raised TypeError"),
        (raising(FileNotFoundError(2, "No such file", "bwrap")), "raised FileNotFoundError.*bwrap"),
        (raising(SystemExit(1)), "raised SystemExit"),
        (raising(UnprintableError()), "raised UnprintableError"),
        (raising(Refusal("process", "x", "no sandbox", "install one")), "raised Refusal.*no sandbox"),
        (True, "neither a report nor callable, but bool"),
        ("ENFORCED", "neither a report nor callable, but str"),
        (Grown("s", kernel_name(), NOW, ()), "neither a report nor callable, but Grown"),
    ],
)
def test_what_is_not_exactly_a_proof_leaves_the_process_unavailable_with_the_reason(probe: object, why: str) -> None:
    status = process(probe)
    assert status.verdict is Verdict.UNAVAILABLE
    assert status.enforcement is Enforcement.NOBODY
    assert re.search(why, status.detail), status.detail
    assert "not of the calling process" in status.detail


def test_true_itself_is_the_callers_word_and_a_passing_report_is_the_kernels() -> None:
    word = process(lambda: True)
    assert (word.verdict, word.enforcement) == (Verdict.ENFORCED, "caller's word")
    for probe in (report(), report):
        proof = process(probe)
        assert (proof.verdict, proof.enforcement) == (Verdict.ENFORCED, "kernel")
        for named in ("bubblewrap 1", kernel_name(), "2026-01-05T08:00:00", "that sandbox, not of the calling process"):
            assert named in proof.detail


def failing(act: Act, **changes: Any) -> tuple[Experiment, ...]:
    return tuple(dataclasses.replace(e, **changes) if e.act is act else e for e in report().experiments)


@pytest.mark.parametrize("act", list(Act))
@pytest.mark.parametrize("changes", [{"control": False}, {"refused": False}])
def test_one_experiment_that_failed_is_no_proof_and_is_named(act: Act, changes: dict[str, bool]) -> None:
    """Also when only its control failed: an act that never works says nothing when it fails inside."""
    status = process(report(experiments=failing(act, **changes)))
    assert status.verdict is Verdict.UNAVAILABLE
    assert str(act) in status.detail


@pytest.mark.parametrize(
    "experiments",
    [
        (),
        report().experiments[1:],
        (*report().experiments, report().experiments[0]),
        (*report().experiments[1:], report().experiments[1]),
        None,
        (None,),
        (Truthy(),) * 4,
        tuple(dataclasses.replace(e, refused="no") for e in report().experiments),  # type: ignore[arg-type]
        tuple(dataclasses.replace(e, control=1) for e in report().experiments),  # type: ignore[arg-type]
    ],
)
def test_every_experiment_must_be_there_once_and_say_so_itself(experiments: Any) -> None:
    assert process(report(experiments=experiments)).verdict is Verdict.UNAVAILABLE


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (timedelta(0), Verdict.ENFORCED),
        (timedelta(hours=1), Verdict.ENFORCED),
        (timedelta(hours=1, microseconds=1), Verdict.UNAVAILABLE),
        (timedelta(microseconds=-1), Verdict.UNAVAILABLE),
        (timedelta(days=400), Verdict.UNAVAILABLE),
    ],
)
def test_a_report_is_good_for_one_hour_and_not_before_it_was_made(after: timedelta, verdict: Verdict) -> None:
    assert process(report(), NOW + after).verdict is verdict
    assert process(report(), (NOW + after).astimezone(timezone(timedelta(hours=9)))).verdict is verdict


def test_a_report_of_another_kernel_proves_nothing_here() -> None:
    status = process(report(kernel="Linux 2.4.0"))
    assert status.verdict is Verdict.UNAVAILABLE
    assert "another kernel" in status.detail


def test_explain_reads_the_clock_itself_and_answers_a_malformed_instant() -> None:
    assert IsolationPolicy().explain(report(at=datetime.now(UTC)))[0].verdict is Verdict.ENFORCED
    assert IsolationPolicy().explain(report())[0].verdict is Verdict.UNAVAILABLE
    for now in (datetime(2026, 1, 5, 8, 0), "now", 3):
        assert process(report(), now).verdict is Verdict.UNAVAILABLE
    with pytest.raises(ValueError, match="at"):
        report(at=datetime(2026, 1, 5, 8, 0))


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        IsolationPolicy().explain(raising(KeyboardInterrupt()))


def test_the_details_tell_deny_all_allow_some_and_unbounded_apart(place: Path) -> None:
    def details(**fields: Any) -> list[str]:
        return [status.detail.split(";")[0] for status in IsolationPolicy(**fields).explain()[1:]]

    assert details() == ["deny all: no root", "deny all: no host", "deny all: no name", "deny all: no tool"]
    assert details(
        filesystem_roots=[place / "ws"], network_hosts=["a", "b"], credential_names=["A"], allowed_tools=["x", "y"]
    ) == ["allow some: 1 root", "allow some: 2 hosts", "allow some: 1 name", "allow some: 2 tools"]
    assert details(filesystem_roots=["/", place])[0].startswith("unbounded: '/'")
    assert details(allowed_tools=["x", "y"], denied_tools=["X"])[3] == "allow some: 1 tool"
    assert details(allowed_tools=["x"], denied_tools=["x"])[3] == "deny all: no tool"


def test_each_plane_says_what_it_does_not_claim() -> None:
    """Word for word: a reader decides by these lines whether to trust a plane."""
    assert [status.detail.split("; ", 1)[1] for status in IsolationPolicy().explain()] == [
        "this speaks of argv run through that sandbox, not of the calling process",
        (
            "authorize_path alone is advisory; open_path follows no link once resolved (openat2, else an O_NOFOLLOW"
            " walk); neither sees hard links or bind mounts"
        ),
        "an allowlist for code that asks, not an OS egress firewall; addresses behind a name are not checked",
        "environment() hands on no other variable; code in this process can still read its own environment",
        "deny wins; names are compared folded, so look-alikes of another alphabet are other names",
    ]
    assert (
        IsolationPolicy(filesystem_roots=["/"])
        .explain()[1]
        .detail.startswith("unbounded: '/' is a root, so every path is inside; authorize_path")
    )
    scope = "; this speaks of argv run through that sandbox, not of the calling process"
    for probe, detail in (
        (None, "no probe was given, so no operating-system sandbox is known"),
        (3, "the probe is neither a report nor callable, but int"),
        (lambda: 3, "the probe returned int, which is neither True itself nor a report"),
        (raising(OSError("down")), "the probe raised OSError: down"),
        (raising(OSError()), "the probe raised OSError"),
        (lambda: True, "the probe returned True, and nothing recorded what it tried"),
        (
            report(),
            f"4 negative experiments were refused under bubblewrap 1 on {kernel_name()} at 2026-01-05T08:00:00.000000Z",
        ),
        (report(experiments=()), "the report did not pass: not every experiment was tried once"),
        (report(kernel="Linux 1"), "the report is of another kernel: 'Linux 1'"),
        (report(at=NOW - timedelta(2)), "the report is of 2026-01-03T08:00:00.000000Z, not of the last hour"),
        (report(experiments=3), "the report cannot be read: TypeError: "),
    ):
        found = process(probe).detail
        assert found == detail + scope or (detail.endswith(": ") and found.startswith(detail)), found
    assert process(report(), datetime(2026, 1, 5, 8)).detail.startswith("the report cannot be read: ValueError: 'now ")


def test_each_refusal_says_what_was_asked_why_and_what_helps(place: Path, policy: IsolationPolicy) -> None:
    """Word for word: the reader acts on this sentence."""
    (place / "ws" / "folder").mkdir()
    (place / "ws" / "loop").symlink_to("loop")
    listed = IsolationPolicy(
        network_hosts=["a.example"], credential_names=["A"], allowed_tools=["read", "drop"], denied_tools=["drop"]
    )
    inside = str(place / "ws")
    for call, value, sentence in (
        (
            policy.authorize_path,
            "/etc",
            "what it resolves to lies outside every root; use a path inside a root, or make a policy with another root",
        ),
        (policy.authorize_path, "", "it is empty; use a usable path inside a root"),
        (policy.authorize_path, "a\0b", "it contains a NUL character; use a usable path inside a root"),
        (policy.authorize_path, "\ud800", "no file can have such a name; use a usable path inside a root"),
        (
            policy.authorize_path,
            f"{inside}/loop",
            "more than 40 links follow each other; use a usable path inside a root",
        ),
        (policy.open_path, f"{inside}/folder", "it is no regular file; use a usable path inside a root"),
        (policy.open_path, f"{inside}/none", "no such file or directory; use a usable path inside a root"),
        (
            listed.authorize_network,
            "b.example",
            "no entry of the policy covers it; add it to network_hosts or ask for a listed host",
        ),
        (listed.authorize_network, "", "it is blank; ask for a host or host:port"),
        (listed.authorize_credential, "B", "the policy does not list it; add its name to credential_names"),
        (listed.authorize_tool, "write", "the policy does not allow it; add it to allowed_tools"),
        (listed.authorize_tool, "drop", "the policy denies it; remove it from denied_tools"),
        (
            lambda root: IsolationPolicy(filesystem_roots=[root]),
            f"{inside}/file",
            "a root must be a directory; name the directory that holds it",
        ),
    ):
        with pytest.raises(Refusal) as refusal:
            call(value)
        action = {"network": "Network access", "credentials": "Credential access", "tools": "Tool access"}
        begin = action.get(refusal.value.category, "Filesystem access")
        assert str(refusal.value) == f"{begin} refused for {shorten(value, limit=200)}: {sentence}."


def test_each_malformed_argument_is_named_with_what_was_expected(policy: IsolationPolicy) -> None:
    hidden = "a\u200b"
    for call, error, sentence in (
        (lambda: policy.authorize_path(3), TypeError, "path must be text or a path, not int: 3"),  # type: ignore[arg-type]
        (lambda: policy.open_path("x", 3), TypeError, "mode must be text, not int: 3"),  # type: ignore[arg-type]
        (
            lambda: policy.open_path("x", "q"),
            ValueError,
            "mode must be r, w, a or x, with + and b or t as for open: 'q'",
        ),
        (lambda: policy.authorize_network(3), TypeError, "host must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: policy.authorize_credential(3), TypeError, "name must be text, not int"),  # type: ignore[arg-type]
        (lambda: policy.authorize_tool(3), TypeError, "name must be text, not int: 3"),  # type: ignore[arg-type]
        (
            lambda: IsolationPolicy(filesystem_roots=[" "]),
            ValueError,
            "filesystem_roots must hold no empty path and no NUL character: ' '",
        ),
        (
            lambda: IsolationPolicy(network_hosts="a b"),
            TypeError,
            "network_hosts must be a set or a sequence, not str: 'a b'",
        ),
        (
            lambda: IsolationPolicy(credential_names="secret word"),
            TypeError,
            "credential_names must be a set or a sequence, not str: 'secr'... (11 characters)",
        ),
        (
            lambda: IsolationPolicy(network_hosts=[3]),
            TypeError,  # type: ignore[list-item]
            "network_hosts must hold text, not int: 3",
        ),
        (
            lambda: IsolationPolicy(network_hosts=["a b"]),
            ValueError,
            (
                "network_hosts cannot hold 'a b': "
                "it holds something other than letters, digits, inner hyphens and underscores"
            ),
        ),
        (
            lambda: IsolationPolicy(credential_names=[3]),
            TypeError,  # type: ignore[list-item]
            "credential_names must hold text, not int",
        ),
        (
            lambda: IsolationPolicy(credential_names=["secret word"]),
            ValueError,
            "credential_names must hold names of variables: 'secr'... (11 characters)",
        ),
        (lambda: IsolationPolicy(allowed_tools=[3]), TypeError, "allowed_tools must hold text, not int: 3"),  # type: ignore[list-item]
        (
            lambda: IsolationPolicy(denied_tools=[hidden]),
            ValueError,
            f"denied_tools must hold visible names: {hidden!r}",
        ),
    ):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == sentence


def test_the_module_starts_no_process_and_loads_no_foreign_library(tmp_path: Path) -> None:
    """It must run in a browser: what such an interpreter lacks is imported only when it is used."""
    code = (
        "import sys, json; before = set(sys.modules); import sovereign_agent.isolation, sovereign_agent.sandbox;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(isolation.__file__).parents[1])},
        check=True,
        cwd=tmp_path,
    )
    loaded = set(json.loads(ran.stdout))
    assert not loaded & {"ctypes", "subprocess", "threading", "multiprocessing", "socket", "selectors"}
