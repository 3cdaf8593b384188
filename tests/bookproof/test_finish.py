"""What a page's HTML still needs: scopes, captions, named permalinks, copied commands, diagrams in words."""

from __future__ import annotations

import re

from bookproof.diagram_text import diagram_text
from bookproof.finish import commands, finish

TABLE = (
    '<table>\n<thead><tr><th>a</th><th style="x">b</th></tr></thead>'
    "<tbody><tr><th>c</th><td>d</td></tr></tbody></table>"
)


def heading(text: str) -> str:
    return f'<h2 id="x">{text}<a class="headerlink" href="#x" title="Link to this section">&para;</a></h2>'


def test_each_header_cell_says_what_it_heads() -> None:
    html = finish(TABLE)
    assert html.count('<th scope="col"') == 2
    assert '<th scope="col" style="x">' in html
    assert html.count('<th scope="row"') == 1
    assert "<thead>" in html, "thead is no th"
    corner = finish(TABLE.replace("<th>a</th>", '<th class="y"></th>'))
    assert "<tr><td></td><th" in corner, "a corner heads nothing"


def test_a_scope_that_is_there_stays_alone() -> None:
    table = '<table class="own"><thead><tr><th scope="row">a</th></tr></thead></table>'
    assert finish(table) == table


def test_a_table_without_a_caption_is_named_after_what_stands_above_it() -> None:
    html = finish(
        heading("The <em>contract</em>") + TABLE + TABLE + '<div class="bookproof-example" id="example-recall">' + TABLE
    )
    captions = re.findall(r"<caption class=\"bookproof-caption\">(.*?)</caption>", html)
    assert captions == ["The contract", "The contract (2)", "The contract: printed by recall"]


def test_a_caption_of_the_authors_own_stays_alone() -> None:
    own = TABLE.replace("<table>\n", "<table><caption>own</caption>")
    assert "bookproof-caption" not in finish(own)


def test_a_section_of_a_docstring_names_its_tables() -> None:
    section = '<span class="doc-section-title">Parameters:</span>'
    assert '<caption class="bookproof-caption">claim: Parameters</caption>' in finish(
        heading("claim") + section + TABLE
    )


def test_a_permalink_is_named_for_its_heading() -> None:
    html = finish(heading("See &amp; <code>it</code>"))
    assert 'aria-label="Link to the section See &amp; it"' in html
    assert finish('<p><a class="headerlink" href="#x">&para;</a></p>').count("aria-label") == 0


def test_what_is_copied_from_a_console_is_its_commands() -> None:
    shown = "$ one --x\n> more\noutput\n> no prompt\n$ two\n"
    assert commands(shown) == "one --x\nmore\ntwo"
    assert commands(">>> f(\n... 1)\n2\n") == "f(\n1)"
    assert commands("no prompt\nat all\n") == "no prompt\nat all"


def test_a_console_listing_carries_what_is_copied_and_others_do_not() -> None:
    block = (
        '<div class="language-{} highlight"><pre><span></span><code><span class="gp">$ </span>a &lt;b&gt;\n'
        '<span class="go">out</span>\n</code></pre></div>'
    )
    assert '<code data-copy="a &lt;b&gt;">' in finish(block.format("console"))
    assert finish(block.format("text")) == block.format("text")


def test_a_sequence_diagram_is_told_message_by_message() -> None:
    source = """sequenceDiagram
        participant P0 as host-a
        participant L as ledger
        P0->>L: session.claimed s1<br/>incarnation 1
        L--xP0: REFUSED s1 <x>
        Note over P0,L: asleep
    """
    assert re.findall(r"<li>(.*?)</li>", diagram_text(source)) == [
        "host-a to ledger: session.claimed s1 incarnation 1",
        "ledger to host-a: REFUSED s1 &lt;x&gt;",
        "Note at host-a, ledger: asleep",
    ]


def test_an_entity_diagram_is_told_relation_by_relation() -> None:
    source = """erDiagram
        a ||--o{ b : "a_id"
        a |o--|{ c : "x"
        b {
            TEXT id PK
            TEXT a_id FK
        }
    """
    assert re.findall(r"<li>(.*?)</li>", diagram_text(source)) == [
        "one a to any number of b, by a_id",
        "at most one a to at least one c, by x",
        "b: TEXT id PK; TEXT a_id FK",
    ]


def test_a_diagram_that_a_list_cannot_tell_is_shown_as_its_source() -> None:
    for source in ("flowchart TD\n a --> b", "sequenceDiagram\n loop x\n a->>b: c\n end", ""):
        assert "<ol>" not in diagram_text(source)
        assert "<pre" in diagram_text(source)


def test_a_permalink_is_no_word_of_its_heading_in_whatever_order_its_attributes_stand() -> None:
    """The pages of the API write the address first."""
    html = '<h3 id="x">keep<a href="#x" class="headerlink" title="t">&para;</a></h3><table><tr><td>1</td></tr></table>'
    done = finish(html)
    assert ">keep</caption>" in done
    assert 'aria-label="Link to the section keep"' in done


def test_a_token_that_looks_like_any_text_gets_no_element_in_code_and_nothing_else_changes() -> None:
    code = '<code><span class="n">a</span><span class="o">=</span><span class="k">if</span>{}</code>'
    linked = '<span class="n"><a href="#x">x</a></span>'
    around = '<p><span class="n">a</span></p>'
    html = finish(around + code.format(linked), ("n", "o"))
    assert html == f'{around}<code>a=<span class="k">if</span>{linked}</code>'
    assert finish(around + code.format(linked)) == around + code.format(linked)
    assert finish('<code><span class="nb">a</span></code>', ("n", "b")) == '<code><span class="nb">a</span></code>'
