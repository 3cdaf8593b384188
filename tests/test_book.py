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
def test_a_lesson_shows_at_least_three_failing_cases_with_their_messages(name: str) -> None:
    assert len(re.findall(r'^```python exec="on".* raises="\w+"', text(name), flags=re.MULTILINE)) >= 3


@pytest.mark.parametrize("name", SIX)
def test_a_lesson_draws_its_diagram_from_the_events_of_its_run(name: str) -> None:
    assert 'result="mermaid"' in text(name)
    assert "events(" in text(name)
    assert 'result="html"' in text(name), "and a picture of its own"


@pytest.mark.parametrize("name", SIX)
def test_every_question_of_a_lesson_stands_on_the_page_of_questions(name: str) -> None:
    asked = text(name).split("## Explain it back\n")[1].strip()
    assert len(questions(asked)) >= 4
    assert asked.replace("](#example-", f"]({name}.md#example-") in text("explain"), "the answers are the same"


@pytest.mark.parametrize("name", SIX)
def test_every_answer_points_at_its_proof(name: str) -> None:
    part = text(name).split("## Explain it back\n")[1]
    answers = re.split(r'^\?\?\? question ".+"$', part, flags=re.MULTILINE)[1:]
    assert [answer for answer in answers if "](#example-" not in answer] == []


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


STRONG = re.compile(r"\b(never|always|must|cannot|only|exactly|at most|at least)\b", re.IGNORECASE)


def prose(page: str) -> str:
    """Return a page without its front matter and fences, with as many lines as before."""
    page = re.sub(r"\A---\n.*?\n---\n", lambda match: "\n" * match[0].count("\n"), page, flags=re.DOTALL)
    return re.sub(r"^ *```.*?^ *```$", lambda m: "\n" * m[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)


def sentences(page: str) -> list[str]:
    """Return the sentences, list items and table cells of a page, each on one line."""
    found = re.split(r"(?<=[.!?:])\s+|\n\n|\n- |\n\d\. |\|", prose(page))
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]


def test_a_strong_sentence_names_its_test_or_stands_among_those_without_one() -> None:
    listed = sentences((ROOT / "docs" / "evidence" / "claims.md").read_text().split("|---|---|---|")[1])
    unproved = [
        f"{path.name}: {sentence}"
        for path in sorted(LESSONS.glob("*.md"))
        for sentence in sentences(path.read_text())
        if STRONG.search(sentence) and "{test}`" not in sentence
    ]
    assert [claim for claim in unproved if claim.split(": ", 1)[1] not in listed] == []
    strong = [sentence for sentence in listed if STRONG.search(sentence)]
    assert {claim.split(": ", 1)[1] for claim in unproved} >= set(strong), "a listed claim is gone from its lesson"


def test_the_search_for_strong_sentences_sees_them() -> None:
    page = "---\ntitle: never\n---\n\nIt is only a test.\n\n```python\n# never\n```\n\n- It must hold.\n\n"
    page += "| a | at most two |\n"
    assert [sentence for sentence in sentences(page) if STRONG.search(sentence)] == [
        "It is only a test.",
        "- It must hold.",
        "at most two",
    ]


def published() -> list[Path]:
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if "api" not in path.parts]


def fences(page: str) -> list[tuple[int, str, str]]:
    """Return (line, language, rest of the header) of each outermost fence."""
    found, closing = [], ""
    for number, line in enumerate(page.splitlines(), start=1):
        match = re.match(r" *(`{3,}|~{3,})\s*([\w-]*)(.*)$", line)
        if not match:
            continue
        if closing:
            closing = "" if match[1].startswith(closing) and not (match[2] or match[3].strip()) else closing
        else:
            closing = match[1]
            found.append((number, match[2], match[3]))
    return found


def test_no_fence_shows_what_was_not_run() -> None:
    """Output that somebody typed looks like output that was computed; configuration files may stand as they are."""
    allowed = {"python", "bash", "console", "mermaid", "toml", "yaml", "ini", "dockerfile", "markdown"}
    shown = [
        f"{path.relative_to(ROOT)}:{line}: {language or 'no language'}"
        for path in published()
        for line, language, _ in fences(path.read_text())
        if language not in allowed
    ]
    assert shown == []


UNIT = r"%|ms\b|s\b|seconds?\b|minutes?\b|hours?\b|days?\b|weeks?\b|[KMG]i?B\b|bytes\b"
NUMBER = re.compile(rf"(?<![\w.#-])\d[\d.,]*\s?({UNIT})")


def test_a_measured_number_in_the_prose_is_computed_or_linked() -> None:
    typed = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in published()
        if "reference" not in path.parts
        for number, line in enumerate(prose(path.read_text()).splitlines(), start=1)
        for found in NUMBER.finditer(re.sub(r"\[[^\]]*\]\([^)]*\)|\{\w+\}`[^`]*`|`[^`]*`", "", line))
    ]
    assert typed == []


def urls() -> dict[str, Path]:
    """Return the address of each page, and its source."""
    found = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        found["./" if name == "index" else f"{name}/".removesuffix("/index/").rstrip("/") + "/"] = path
    return found


def test_every_address_that_readers_may_have_kept_still_leads_to_a_page() -> None:
    """A page that moves leaves its address to a redirect; a new page is listed, since its address is kept as well."""
    listed = (ROOT / "tests" / "urls.txt").read_text().split()
    assert listed == sorted(set(listed))
    gone = set(listed) - set(urls())
    assert gone == set(), "moved: leave a redirect (mkdocs-redirects), and let this test know of it"
    assert set(urls()) - set(listed) == set(), "new: add them to tests/urls.txt"
