"""The pure parts: the scan of a page, the options of a fence, committed outputs, normalisation, console scripts."""

from __future__ import annotations

import markdown
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookproof import outputs
from bookproof.claims import claims
from bookproof.examples import ADDRESSES, OPTIONAL_RULES, console_script, hint, normalise, path_rules
from bookproof.options import Settings, parse
from bookproof.page import ExampleRecord, Failure, bad_snippets, directives, outside_fences, scan

# The scan


def test_fences_in_a_longer_fence_are_its_text() -> None:
    fences = scan('````markdown\n```python exec="on"\npass\n```\n````\n\n~~~bash\n```\n~~~\n')
    assert [(fence.line, fence.language, fence.body) for fence in fences] == [
        (1, "markdown", '```python exec="on"\npass\n```'),
        (7, "bash", "```"),
    ]


def test_the_front_matter_is_counted_and_not_read() -> None:
    fences = scan("---\ntitle: |\n  ```python\n---\n```bash\ntrue\n```\n")
    assert [(fence.line, fence.language) for fence in fences] == [(5, "bash")]


def test_three_backticks_in_a_sentence_open_nothing() -> None:
    assert scan("```x``` is code\n\ntext") == ()


@given(st.lists(st.sampled_from(["", "> ", "    ", "  > "]), max_size=3), st.sampled_from(["```", "````", "~~~"]))
def test_the_body_has_no_prefix(prefixes: list[str], fence: str) -> None:
    prefix = "".join(prefixes)
    lines = [f'{fence}python exec="on"', "if x:", "    y = 1", "", "z", fence]
    (found,) = scan("\n".join((prefix + line).rstrip() if not line else prefix + line for line in lines))
    assert found.body == "if x:\n    y = 1\n\nz"
    assert found.options == (("exec", "on"),)
    assert found.problem == ""


CONTAINERS = ["", "    ", "> "]
HEADERS = ['python exec="on"', "python", "bash exec='on' id=\"x\"", "text", "", "py"]
BODIES = ["x", "x\n\n  y", "```", "~~~", "", "# not a heading"]


def ends_where_it_should(block: tuple[str, str, str, str]) -> bool:
    _, fence, _, body = block
    return not body.startswith(fence)


BLOCKS = st.tuples(*map(st.sampled_from, (CONTAINERS, ["```", "````", "~~~"], HEADERS, BODIES)))


@given(st.lists(BLOCKS.filter(ends_where_it_should), max_size=4))
def test_the_scan_sees_the_fences_that_superfences_takes_and_no_others(
    blocks: list[tuple[str, str, str, str]],
) -> None:
    """The scan is independent, so it is held against the tool that it watches.

    Where stray fences make them disagree the page is red, since each fence is accounted for on both sides.
    """
    taken: list[tuple[str, str]] = []

    def collect(source: str, language: str, *_arguments: object, **_options: object) -> str:
        taken.append((language, source.strip("\n")))
        return "<p></p>"

    text = "\n\n".join(
        "\n".join(prefix + line for line in (f"{fence}{header}", *body.split("\n"), fence))
        for prefix, fence, header, body in blocks
    )
    fences = [
        {"name": name, "class": "", "format": collect, "validator": lambda *_a: True} for name in ("python", "bash")
    ]
    markdown.Markdown(
        extensions=["pymdownx.superfences"], extension_configs={"pymdownx.superfences": {"custom_fences": fences}}
    ).convert(text)
    seen = [(one.language, one.body.strip("\n")) for one in scan(text) if not one.problem]
    assert sorted(taken) == sorted(one for one in seen if one[0] in {"python", "bash"})


def test_the_lines_of_prose_keep_their_numbers() -> None:
    source = "---\na: 1\n---\none\n```bash\ntrue\n```\ntwo\n"
    assert outside_fences(source) == ["", "", "", "one", "", "", "", "two"]


def test_a_directive_in_code_is_text() -> None:
    source = "<!-- bookproof: evidence -->\n`<!-- bookproof: evidence -->`\n```text\n<!-- bookproof: x -->\n```\n"
    assert directives(source) == ((1, "evidence", ""),)


@pytest.mark.parametrize("line", ['--8<-- "a.md"', "--8<-- 'a b.md'", "--8<--", '  -8<- "a.md"', ';--8<-- "a.md"'])
def test_a_proper_snippet_line_is_no_fault(line: str) -> None:
    assert bad_snippets(line) == ()


@pytest.mark.parametrize("line", ["--8<-- a.md", '--8<-- "a.md" ', '--8<-- "a.md" b', '--8<-- "a.md', "--8<-- 'a.md\""])
def test_a_snippet_line_that_would_be_printed_is_found(line: str) -> None:
    assert bad_snippets(f"x\n{line}") == ((2, line.strip()),)


# Options


@given(
    st.sampled_from(["python", "bash", "console"]),
    st.dictionaries(st.text("abcdefghij", min_size=1), st.text(max_size=3)),
)
def test_no_unknown_option_passes(language: str, written: dict[str, str]) -> None:
    known = {"exec", "id", "why", "host", "lab", "tabs"}
    _, complaints = parse(language, tuple(written.items()), Settings())
    for key in written.keys() - known:
        assert any(f"unknown option {key}" in complaint for complaint in complaints)


def test_a_block_that_opted_out_keeps_its_reason() -> None:
    options, complaints = parse("py", (("exec", "off"), ("why", "no network")), Settings())
    assert not complaints
    assert not options.execute
    assert options.why == "no network"


def test_options_are_typed() -> None:
    written = {
        "exec": "on",
        "timeout": "2.5",
        "host": "userns, openat2",
        "normalise": "times",
        "lab": "lab",
        "id": "sum",
        "tabs": "A|B",
    }
    options, complaints = parse("python", tuple(written.items()), Settings())
    assert not complaints
    assert options.timeout_seconds == 2.5
    assert options.host == ("userns", "openat2")
    assert options.normalise == ("times",)
    assert options.lab
    assert options.tabs == ("A", "B")


# Outputs

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=40)


@given(
    st.dictionaries(
        st.text("abc-1", min_size=1, max_size=4), texts | st.sampled_from(["", "\n", "\n\n", "=== x\n", "a\n\n"])
    )
)
def test_writing_and_reading_outputs_are_inverse(given_outputs: dict[str, str]) -> None:
    found = outputs.read(outputs.write(given_outputs))
    assert {name: entry.output for name, entry in found.items()} == given_outputs


def test_a_difference_names_page_line_file_and_diff() -> None:
    example = ExampleRecord("sum", 7, "python", "", "3\n", "passed")
    (failure,) = outputs.compare("docs/x.md", "tests/outputs/x.txt", "=== sum\n    2\n", [example])
    assert str(failure).startswith("docs/x.md:7: the output of example sum changed\n--- tests/outputs/x.txt:1\n")
    assert "\n-2\n+3" in str(failure)


def test_an_example_that_did_not_run_is_neither_compared_nor_gone() -> None:
    example = ExampleRecord("sum", 7, "python", "", "", "absent")
    assert outputs.compare("docs/x.md", "x.txt", "=== sum\n    2\n", [example]) == []


def test_a_figure_that_changed_is_told_by_its_elements() -> None:
    figure = "<svg>" + "".join(f'<rect x="{x}" y="0" width="8"/>' for x in range(40)) + "</svg>\n"
    example = ExampleRecord("figure", 3, "python", "", figure.replace('x="7"', 'x="99"'), "passed")
    committed = outputs.write({"figure": figure})
    (failure,) = outputs.compare("docs/x.md", "x.txt", committed, [example])
    assert '-<rect x="7" y="0" width="8"/>\n+<rect x="99" y="0" width="8"/>' in failure.text
    assert len(failure.text) < 500


# Normalisation


def test_the_longest_folder_is_replaced_first_and_only_whole_names() -> None:
    rules = path_rules({"<project>": "/p", "<work>": "/p/work"})
    assert normalise("/p/work/a /p/b /pq", rules) == ("<work>/a <project>/b /pq", ("paths",))


def test_addresses_are_replaced_and_digests_are_not() -> None:
    assert normalise("<A at 0x7f00deadbeef> 0xdeadbeef", (ADDRESSES,))[0] == "<A at <address>> 0xdeadbeef"


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        (
            "times",
            "at 2026-01-05T08:00:00.123456+00:00, 2026-01-05 08:00Z and 08:00:01",
            "at <time>, <time> and <time>",
        ),
        ("durations", "in 0.31 s, 12ms, 5 seconds; 3 sheep", "in <duration>, <duration>, <duration>; 3 sheep"),
        ("ids", "0123456789abcdef 12345 3f2504e0-4f89-41d3-9a0c-0305e82c3301", "<id> 12345 <id>"),
        ("pids", "pid 123, PID=7", "pid <pid>, PID=<pid>"),
    ],
)
def test_a_named_rule_takes_out_what_its_name_says(rule: str, text: str, expected: str) -> None:
    assert normalise(text, (OPTIONAL_RULES[rule],)) == (expected, (rule,))


def test_the_rule_that_would_help_is_named() -> None:
    assert hint("in 1 s", "in 2 s") == ' (normalise="durations" would make both equal)'
    assert hint("a", "b") == ""


# Console blocks


def test_a_console_block_becomes_a_script_with_the_same_lines() -> None:
    script, complaints = console_script("$ echo a\n\n$ cat <<X\n> b\n> X\n$ echo 'c'")
    assert not complaints
    assert len(script.split("\n")) == 6
    assert script.split("\n")[5].endswith("; echo 'c'")


def test_a_line_of_output_in_a_console_block_is_a_complaint() -> None:
    assert console_script("$ echo a\na")[1] == [
        "line 2 of the block is neither `$ command` nor `> continuation`: output is computed"
    ]


# Claims and failures


def test_claims_have_the_line_where_they_are_made() -> None:
    source = "---\nsymbols:\n  - a.b\n  - a.b.c\nmutation: m\n---\n{test}`t.py::x`\n\n```text\n{test}`t.py::y`\n```\n"
    found, failures = claims("docs/x.md", source, {"symbols": ["a.b", "a.b.c"], "mutation": "m"})
    assert [(claim.kind, claim.name, claim.line) for claim in found] == [
        ("symbol", "a.b", 3),
        ("symbol", "a.b.c", 4),
        ("mutation", "m", 5),
        ("test", "t.py::x", 7),
    ]
    assert not failures


def test_an_annotation_is_one_line() -> None:
    assert Failure("docs/x.md", 3, "50%\nmore").annotation() == (
        "::error file=docs/x.md,line=3,title=bookproof::50%25%0Amore"
    )
