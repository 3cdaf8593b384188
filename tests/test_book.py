"""The book: every lesson has every part, in order, and the pages that gather parts of lessons hold all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LESSONS = ROOT / "docs" / "lessons"
SIX = ("isolation", "watchers", "context", "sessions", "tools", "memory")
PARTS = (
    "What goes wrong without it",
    "The contract",
    "Run it",
    "See it",
    "Break it",
    "Try it",
    "What this does not claim",
    "Production map",
    "Explain it back",
)
MUTATIONS = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text())["mutation"]


def text(name: str) -> str:
    return (LESSONS / f"{name}.md").read_text()


def questions(page: str) -> list[str]:
    return re.findall(r'^\?\?\? question "(.+)"$', page, flags=re.MULTILINE)


@pytest.mark.parametrize("name", SIX)
def test_a_lesson_has_every_part_in_order(name: str) -> None:
    headings = re.findall(r"^## (.+)$", text(name), flags=re.MULTILINE)
    assert [heading for heading in headings if heading in PARTS] == list(PARTS)
    assert "**The question: " in text(name).split("## ")[0]


@pytest.mark.parametrize("name", SIX)
def test_a_lesson_opens_with_a_public_incident(name: str) -> None:
    part = text(name).split("## What goes wrong without it\n")[1].split("\n## ")[0]
    assert re.search(r"\[[^\]]*#\d+\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", part)


@pytest.mark.parametrize("name", SIX)
def test_a_lesson_shows_at_least_three_refused_or_failing_cases(name: str) -> None:
    page = text(name)
    outputs = (ROOT / "tests" / "outputs" / "lessons" / f"{name}.txt").read_text()
    failing = len(re.findall(r'raises="\w+"', page))
    failing += outputs.count("refused") + outputs.count("FAILED") + outputs.count("UNAVAILABLE")
    assert failing >= 3


@pytest.mark.parametrize("name", SIX)
def test_a_lesson_draws_its_diagram_from_the_events_of_its_run(name: str) -> None:
    assert 'result="mermaid"' in text(name)
    assert "events(" in text(name)
    assert 'result="html"' in text(name), "and a picture of its own"


@pytest.mark.parametrize("name", SIX)
def test_every_question_of_a_lesson_stands_on_the_page_of_questions(name: str) -> None:
    asked = questions(text(name))
    assert len(asked) >= 4
    assert set(asked) <= set(questions(text("explain")))


@pytest.mark.parametrize("name", SIX)
def test_every_answer_points_at_its_proof(name: str) -> None:
    part = text(name).split("## Explain it back\n")[1]
    answers = re.split(r'^\?\?\? question ".+"$', part, flags=re.MULTILINE)[1:]
    assert sum("](#example-" in answer for answer in answers) >= len(answers) - 1


def test_every_mutation_stands_on_the_page_of_mutations() -> None:
    shown = re.findall(r"<!-- bookproof: mutation ([\w-]+) -->", text("break"))
    assert shown == [mutation["id"] for mutation in MUTATIONS]


def test_there_are_three_mutations_for_each_mechanism_beside_the_first() -> None:
    mechanisms = [mutation["mechanism"] for mutation in MUTATIONS]
    assert len(set(mechanisms)) == 6
    assert all(mechanisms.count(mechanism) >= 4 for mechanism in mechanisms)
    assert all(mutation["test"].startswith("tests/test_advanced_mechanisms.py::") for mutation in MUTATIONS)


def test_every_page_has_a_title_and_a_description_for_readers_and_search() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for folder in ("lessons", "how-to", "explanation", "evidence")
        for path in sorted((ROOT / "docs" / folder).glob("*.md"))
        if path.name != "index.md" and not re.match(r"---\n(?s:.*?)\bdescription: .+?\n(?s:.*?)---\n", path.read_text())
    ]
    assert missing == []
