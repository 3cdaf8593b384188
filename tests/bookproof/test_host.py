"""Host facts are tried, all of them, and belong to the key of everything that is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookproof.cache import base_key
from bookproof.host import known_facts, missing_facts
from bookproof.options import Settings

BUILT_IN = {"fork", "git", "linux", "openat2", "userns"}


def test_every_known_fact_is_told_whether_or_not_anyone_asks() -> None:
    facts = known_facts({"moon": "false", "sun": "true"})
    assert list(facts) == sorted({*BUILT_IN, "moon", "sun"})
    assert (facts["moon"], facts["sun"]) == (False, True)


def test_what_is_missing_is_a_reason_and_what_is_unknown_an_error() -> None:
    assert missing_facts(("moon", "sun"), {"moon": "false", "sun": "true"}) == ("this host has no moon",)
    with pytest.raises(ValueError, match=r"unknown host fact 'mars': known are fork, git, linux, openat2, userns"):
        missing_facts(("mars",), {})


def test_a_fact_can_be_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKPROOF_HOST_LACKS", "git,openat2")
    facts = known_facts({})
    assert not facts["git"]
    assert not facts["openat2"]


def test_what_was_remembered_on_another_host_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tmp_path)
    here = base_key(settings, ("src",), "")
    assert base_key(settings, ("src",), "") == here
    monkeypatch.setenv("BOOKPROOF_HOST_LACKS", "git")
    assert base_key(settings, ("src",), "") != here


@pytest.mark.parametrize("name", ["src/pack.py", "tests/test_pack.py", "pyproject.toml"])
def test_every_file_that_a_result_may_depend_on_is_in_the_key(tmp_path: Path, name: str) -> None:
    settings = Settings(tmp_path)
    before = base_key(settings, ("src", "tests"), "")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert base_key(settings, ("src", "tests"), "") != before
