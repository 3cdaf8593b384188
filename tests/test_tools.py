"""Tools: search answers in any language and is hard to stuff; only authorization grants, and only its own objects."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sovereign_agent import tool_index
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.isolation import IsolationPolicy
from sovereign_agent.ledger import Ledger
from sovereign_agent.text import words
from sovereign_agent.tools import AuthorizedTool, Discovery, Tool, ToolCatalog, forms, rarity, strengths

READ = Tool("read_inventory", "Read the stock of one item.", ("stock", "warehouse"))
DELETE = Tool("delete_inventory", "Delete the stock of one item.", ("stock", "remove"))
CATALOG = ToolCatalog([READ, DELETE])


def names(discovery: Discovery) -> list[str]:
    return [tool.name for tool in discovery.tools]


# Search


def test_a_discovery_says_how_many_matched_and_whether_some_were_left_out() -> None:
    everything = CATALOG.discover("stock")
    assert everything == Discovery((DELETE, READ), total_matches=2, truncated=False)
    assert CATALOG.discover("stock", limit=1) == Discovery((DELETE,), total_matches=2, truncated=True)
    assert CATALOG.discover("stock", limit=2) == everything
    assert CATALOG.discover("weather") == Discovery((), total_matches=0, truncated=False)


@pytest.mark.parametrize("query", ["", "   ", "?!", "\u200b"])
def test_a_query_without_words_matches_nothing(query: str) -> None:
    assert CATALOG.discover(query) == Discovery((), 0, truncated=False)


@pytest.mark.parametrize("limit", [0, 11, -1, 2.5, 5.0, True, None, "5"])
def test_a_limit_is_a_whole_number_from_one_to_ten(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit"):
        CATALOG.discover("stock", limit=limit)


def test_a_query_is_text() -> None:
    with pytest.raises(TypeError, match="query"):
        CATALOG.discover(None)  # type: ignore[arg-type]  # the refusal is the point


@pytest.mark.parametrize("query", ["read_inventory", "readInventory", "READ inventory", "read-inventory?"])
def test_an_exact_name_comes_first_however_it_is_written(query: str) -> None:
    """Also before a tool that has more of the same words in better places."""
    catalog = ToolCatalog([Tool("inventory_read_read", "read inventory", ("read", "inventory")), READ, DELETE])
    assert names(catalog.discover(query))[0] == "read_inventory"


def test_the_words_of_a_name_in_another_order_are_no_exact_name() -> None:
    catalog = ToolCatalog([Tool("copy_file", ""), Tool("file_copy", "")])
    assert names(catalog.discover("file copy")) == ["file_copy", "copy_file"]
    assert names(catalog.discover("copy file")) == ["copy_file", "file_copy"]


def test_a_word_counts_most_in_the_name_then_in_the_keywords_then_in_the_description() -> None:
    catalog = ToolCatalog([Tool("c", "x"), Tool("b", "", ("x",)), Tool("x_and_more", "")])
    assert names(catalog.discover("x")) == ["x_and_more", "b", "c"]


vocabulary = st.sampled_from(["alpha", "betas", "beta", "gamma", "delta", "a", "b", "ab", "x"])
texts = st.lists(vocabulary, max_size=30).map(" ".join)


@given(st.lists(texts.map(lambda text: text.replace("x", "y")), min_size=6, max_size=6))
def test_the_order_of_the_fields_holds_whatever_else_stands_there(others: list[str]) -> None:
    in_name = Tool(f"x_{others[0][:40]}".strip(), others[1])
    in_keyword = Tool("k", others[2], ("x", *others[3].split()))
    in_description = Tool("d", f"x {others[4]}", tuple(others[5].split()))
    catalog = ToolCatalog([in_description, in_keyword, in_name])
    assert catalog.discover("x").tools == (in_name, in_keyword, in_description)


def test_rare_words_weigh_more_than_words_that_many_tools_have() -> None:
    """Ten get_x tools do not hide the one tool that knows about the weather."""
    getters = [Tool(f"get_{thing}", "Get the thing for a user.") for thing in "abcdefghij"]
    catalog = ToolCatalog([*getters, Tool("forecast_lookup", "Weather forecast of a city.")])
    assert names(catalog.discover("get the weather for Paris"))[0] == "forecast_lookup"


@given(st.integers(1, 10_000), st.data())
def test_rarity_falls_with_the_number_of_tools_and_stays_above_zero(tools: int, data: st.DataObject) -> None:
    having = data.draw(st.integers(0, tools - 1))
    assert rarity(tools, having) > rarity(tools, having + 1) > 0


def test_repeating_a_word_earns_nothing() -> None:
    once, often = Tool("a", "stock"), Tool("b", "stock " * 200, ())
    assert strengths(once)["stock"] == strengths(often)["stock"]


def test_a_stuffed_tool_does_not_outrank_the_named_one() -> None:
    """Every word of the catalogue, in every field that takes them, and the query repeated."""
    everything = sorted({word for tool in (READ, DELETE) for word in strengths(tool)})
    evil = Tool("evil", "read inventory " * 100 + " ".join(everything), tuple(everything))
    catalog = ToolCatalog([READ, DELETE, evil])
    for query in ("read inventory", "read the inventory", "inventory read now please"):
        assert names(catalog.discover(query))[0] == "read_inventory"


def test_stuffing_a_field_weakens_every_word_in_it() -> None:
    lean, stuffed = Tool("a", "", ("stock",)), Tool("b", "", ("stock", *(f"word{n}" for n in range(60))))
    assert strengths(stuffed)["stock"] < strengths(lean)["stock"]


def test_equal_scores_are_ordered_by_name_whatever_the_order_of_the_catalogue() -> None:
    tools = [Tool(f"tool_{letter}", "same words") for letter in "hcbagfed"]
    for seed in range(5):
        random.Random(seed).shuffle(tools)
        assert names(ToolCatalog(tools).discover("words", limit=3)) == ["tool_a", "tool_b", "tool_c"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("tạo ảnh", ["image_generate"]),
        ("TA\u0323O A\u0309NH", ["image_generate"]),
        ("生成图片", ["image_generate"]),
        ("请帮我生成一张图片", ["image_generate"]),
        ("größe", ["mass_finder"]),
        ("GRÖSSE", ["mass_finder"]),
        ("погода", ["weather"]),
        ("gr e", ["decoy"]),
        ("t o nh", ["decoy"]),
    ],
)
def test_a_query_in_any_language_finds_its_tool_and_no_decoy(query: str, found: list[str]) -> None:
    catalog = ToolCatalog(
        [
            Tool("image_generate", "Make a picture.", ("tạo ảnh", "生成图片")),
            Tool("decoy", "t o nh and gr e"),
            Tool("mass_finder", "Findet die Größe eines Pakets."),
            Tool("weather", "Прогноз погоды", ("погода",)),
        ]
    )
    assert names(catalog.discover(query)) == found


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("file", "files"),
        ("box", "boxes"),
        ("search", "searches"),
        ("brush", "brushes"),
        ("waltz", "waltzes"),
        ("cache", "caches"),
        ("database", "databases"),
        ("class", "classes"),
        ("query", "queries"),
        ("key", "keys"),
    ],
)
def test_an_english_plural_finds_its_singular_and_the_reverse(one: str, many: str) -> None:
    for asked, written in ((one, many), (many, one)):
        catalog = ToolCatalog([Tool("other", "of"), Tool("t", written), Tool("u", asked)])
        assert names(catalog.discover(asked)) == ["u", "t"], "the word itself counts more than its other form"


@pytest.mark.parametrize("word", ["größe", "дом", "生成", "ab", "v2s", "s"])
def test_words_that_are_not_english_have_no_guessed_forms(word: str) -> None:
    assert forms(word) == (word,)


@pytest.mark.parametrize(("word", "other"), [("status", "statu"), ("class", "clas"), ("analysis", "analysi")])
def test_a_singular_that_ends_in_s_is_not_cut(word: str, other: str) -> None:
    assert other not in forms(word)


@given(st.lists(st.builds(Tool, st.from_regex(r"[a-d]{1,3}(_[a-d]{1,3})?", fullmatch=True), texts), max_size=12), texts)
def test_discovery_equals_its_definition(tools: list[Tool], query: str) -> None:
    """The index only saves time: scores, order and counts are those of the plain sum."""
    unique = list({tool.name: tool for tool in tools}.values())
    catalog = ToolCatalog(unique)
    asked = tuple(dict.fromkeys(words(query)))

    def strength(tool: Tool, word: str) -> float:
        own = strengths(tool)
        return max(own.get(form, 0.0) * (1 if form == word else 0.8) for form in forms(word))

    weight = {word: rarity(len(unique), sum(strength(tool, word) > 0 for tool in unique)) for word in asked}
    scored = [
        (words(tool.name) != words(query), -sum(weight[word] * strength(tool, word) for word in asked), tool.name)
        for tool in unique
        if any(strength(tool, word) for word in asked)
    ]
    found = catalog.discover(query, limit=10)
    assert names(found) == [name for *_, name in sorted(scored)][:10]
    assert (found.total_matches, found.truncated) == (len(scored), len(scored) > 10)


@st.composite
def terms_of(draw: st.DrawFn) -> tuple[list[tuple[float, dict[int, float]]], int]:
    """Rare and common words over many positions, with so few values that many scores are equal."""
    size = draw(st.integers(0, 4) | st.integers(32, 70))
    positions = st.integers(0, max(0, size - 1))
    some = st.dictionaries(positions, st.sampled_from([0.1, 0.25, 0.7, 1.0]), max_size=3 if size else 0)
    most = st.sampled_from([0.1, 0.25]).map(lambda strength: dict.fromkeys(range(size), strength))
    mixed = st.tuples(most, some).map(lambda both: {**both[0], **both[1]} if both[1] else both[0])
    every = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7]), min_size=size, max_size=size)
    uneven = every.map(lambda row: {position: strength for position, strength in enumerate(row) if strength})
    weights = st.sampled_from([0.1, 0.3, 1.0, 4.5])
    return draw(st.lists(st.tuples(weights, some | mixed | uneven), max_size=5)), size


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks of three positions, so that few positions make many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_index, "_BLOCK", 3)
        yield


@pytest.mark.usefixtures("small_blocks")
@given(terms_of(), st.integers(1, 3))
@example(([(1.0, {31: 1.0}), (1.0, dict.fromkeys(range(31), 1.0))], 32), 1)  # equal to the bound, and the earlier wins
@example(([(0.3, dict.fromkeys(range(31), 1.0)), (1.0, {31: 0.5}), (0.3, dict.fromkeys(range(31), 1.0))], 32), 1)
@example(([(4.5, {0: 1.0}), (0.1, dict.fromkeys(range(32), 0.1))], 32), 2)  # a rare one is found once
@example(([(4.5, {0: 1.0, 31: 1.0}), (0.1, dict.fromkeys(range(9), 0.1))], 32), 3)  # and counted once
def test_the_search_equals_the_plain_sums(made: tuple[list[tuple[float, dict[int, float]]], int], most: int) -> None:
    """The same positions in the same order, ties included, whether or not the rare words decided."""
    plain, size = made
    terms = [(weight, tool_index.having(found, size)) for weight, found in plain]
    scores = dict.fromkeys(range(size), 0.0)
    for weight, found in plain:
        for position in found:
            scores[position] += weight * found[position]
    wanted = sorted((position for position in scores if scores[position]), key=lambda at: (-scores[at], at))
    assert [tool_index.score(terms, position) for position in range(size)] == list(scores.values())
    assert tool_index.highest(terms, size, most) == wanted[:most]
    assert tool_index.matches(terms, size) == len(wanted)


@pytest.mark.usefixtures("small_blocks")
@given(terms_of(), st.sampled_from([0.8, 0.25]))
@example(([(1.0, {0: 0.25, 1: 0.1}), (1.0, {0: 0.7, 2: 0.7})], 32), 0.25)  # all rare
@example(([(1.0, {}), (1.0, dict.fromkeys(range(9), 0.7))], 32), 0.8)  # the other form alone, and common
def test_the_forms_of_a_word_are_joined_as_the_best_of_them(
    made: tuple[list[tuple[float, dict[int, float]]], int], factor: float
) -> None:
    """Rare and common forms alike: the word itself counts whole, another form its share, and the higher one decides."""
    found, size = [one for _, one in made[0]] or [{}], made[1]
    same, *others = found
    joined = tool_index.either(
        tool_index.having(same, size), [tool_index.having(other, size) for other in others], factor, size
    )
    wanted = [max(same.get(at, 0.0), *(factor * other.get(at, 0.0) for other in others), 0.0) for at in range(size)]
    assert [joined.at(position) for position in range(size)] == joined.row(size) == wanted
    assert joined.count == sum(map(bool, wanted))
    assert not joined.tops or joined.tops == tuple(max(wanted[at : at + 3]) for at in range(0, size, 3))


def test_a_catalogue_reads_its_tools_once_and_not_at_each_search(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = ToolCatalog([READ, DELETE])
    monkeypatch.setattr("sovereign_agent.tools.strengths", lambda tool: pytest.fail(f"read {tool} again"))
    assert catalog.discover("stock").total_matches == 2


# Tools and catalogues are checked when they are made


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a", None), TypeError),
        (("a", "d", "keyword"), TypeError),
        (("a", "d", b"keyword"), TypeError),
        (("a", "d", {"keyword": 1}), TypeError),
        (("a", "d", None), TypeError),
        (("a", "d", (1,)), TypeError),
        (("a", "d", ("",)), ValueError),
        (("a", "d", (" ",)), ValueError),
        (("a", "d", ("k" * 65,)), ValueError),
        (("a", "d", ("k",) * 65), ValueError),
        (("", "d"), ValueError),
        (("  ", "d"), ValueError),
        ((" a", "d"), ValueError),
        (("a\u200bb", "d"), ValueError),
        (("a\nb", "d"), ValueError),
        (("re\u0430d", "d"), ValueError),
        (("a" * 129, "d"), ValueError),
        (("a", "d" * 4097), ValueError),
        (("a", "\ud800"), ValueError),
    ],
)
def test_a_malformed_tool_is_refused_when_it_is_made(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Tool(*arguments)


def test_keywords_may_be_any_collection_of_texts() -> None:
    assert Tool("a", "", ["x", "y"]).keywords == ("x", "y")  # type: ignore[arg-type]  # kept as a tuple


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("read", "Read"),
        ("read", "\uff52\uff45\uff41\uff44"),
        ("JOSÉ", "jose\u0301"),
        ("copy", "\u0441\u043e\u0440\u0443"),
        ("same", "same"),
    ],
)
def test_two_tools_of_one_name_are_refused(one: str, two: str) -> None:
    with pytest.raises(ValueError, match="share a name"):
        ToolCatalog([Tool(one, "1"), Tool(two, "2")])


def test_one_object_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        ToolCatalog([READ, READ])


@pytest.mark.parametrize("other", ["read_inventory", None, ("a", "d")])
def test_a_catalogue_holds_tools_only(other: Any) -> None:
    with pytest.raises(TypeError, match="Tool objects"):
        ToolCatalog([other])


def test_a_catalogue_takes_an_iterator_and_keeps_the_order() -> None:
    def some() -> Iterator[Tool]:
        yield READ
        yield DELETE

    assert ToolCatalog(some()).tools == (READ, DELETE)


# Authorization


ALLOWED = IsolationPolicy(allowed_tools=["read_inventory", "delete_inventory"], denied_tools=["delete_inventory"])


def test_the_receipt_names_the_definition_and_the_policy() -> None:
    receipt = CATALOG.authorize(READ, ALLOWED)
    assert receipt == AuthorizedTool("read_inventory", READ.digest(), ALLOWED.digest())
    assert CATALOG.authorize("Read_Inventory", ALLOWED) == receipt


def test_another_definition_has_another_digest() -> None:
    assert len({Tool("a", "b").digest(), Tool("a", "b", ("c",)).digest(), Tool("a", "c").digest(), READ.digest()}) == 4


def test_a_denied_tool_can_be_the_best_discovery_and_is_refused_by_every_way_to_it() -> None:
    """From discovery, by a hand-made tool of the same name, and by a differently cased name."""
    best = CATALOG.discover("delete stock").tools[0]
    assert best is DELETE
    copy = Tool(DELETE.name, DELETE.description, DELETE.keywords)
    for way in (best, copy, "Delete_Inventory", " delete_inventory", "ＤＥＬＥＴＥ_inventory"):  # noqa: RUF001 - full width
        with pytest.raises(Refusal) as refused:
            CATALOG.authorize(way, ALLOWED)
        assert refused.value.category is Category.TOOLS


def test_an_equal_copy_of_an_allowed_tool_is_refused() -> None:
    """Nothing tells where a copy came from, and its description may be another's."""
    for copy in (
        Tool(READ.name, READ.description, READ.keywords),
        Tool(READ.name, "EVIL body"),
        Tool("READ_inventory", ""),
    ):
        with pytest.raises(Refusal, match="not the object"):
            CATALOG.authorize(copy, ALLOWED)


@pytest.mark.parametrize("name", ["", "unknown", "read inventory", "read_inventory\u200b", "re\u0430d_inventory"])
def test_a_name_outside_the_catalogue_is_refused_even_when_the_policy_allows_it(name: str) -> None:
    with pytest.raises(Refusal, match="no such tool"):
        CATALOG.authorize(name, IsolationPolicy(allowed_tools=["unknown", "read_inventory"]))


def test_an_empty_policy_allows_nothing() -> None:
    with pytest.raises(Refusal):
        CATALOG.authorize(READ, IsolationPolicy())


def test_what_is_no_tool_and_what_is_no_policy_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="tool"):
        CATALOG.authorize(None, ALLOWED)  # type: ignore[arg-type]  # the refusal is the point
    with pytest.raises(TypeError, match="policy"):
        CATALOG.authorize(READ, None)  # type: ignore[arg-type]  # the refusal is the point


def test_the_answer_is_recorded_when_a_ledger_is_given(ledger: Ledger) -> None:
    CATALOG.authorize(READ, ALLOWED, ledger=ledger)
    for way in (DELETE, Tool(DELETE.name, ""), "DELETE_inventory"):
        with pytest.raises(Refusal):
            CATALOG.authorize(way, ALLOWED, ledger=ledger)
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT kind, subject, detail FROM events WHERE kind IN ('tool.authorized', 'refused') ORDER BY seq"
        )
    assert [row["kind"] for row in rows] == ["tool.authorized", "refused", "refused", "refused"]
    assert rows[0]["subject"] == "read_inventory"
    assert json.loads(rows[0]["detail"]) == {"tool_digest": READ.digest(), "policy_digest": ALLOWED.digest()}


def test_a_refusal_inside_a_write_that_rolls_back_is_still_recorded(ledger: Ledger) -> None:
    with pytest.raises(Refusal), ledger.write():
        CATALOG.authorize(DELETE, ALLOWED, ledger=ledger)
    with ledger.read() as tx:
        assert tx.one("SELECT 1 FROM events WHERE kind = 'refused'") is not None


def test_each_refusal_of_a_tool_says_why_and_what_helps() -> None:
    """Word for word: an agent that is refused acts on this sentence."""
    copy = Tool(READ.name, READ.description, READ.keywords)
    for tool, name, sentence in (
        ("none", "none", "this catalogue has no such tool; discover a tool and use its name"),
        (
            copy,
            "read_inventory",
            "it is not the object that this catalogue was given; use the Tool that discover returned, or its name",
        ),
        (READ, "read_inventory", "the policy does not allow it; add it to allowed_tools"),
    ):
        with pytest.raises(Refusal) as refusal:
            CATALOG.authorize(tool, IsolationPolicy())
        assert str(refusal.value) == f"Tool access refused for {name}: {sentence}."


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: Tool(3, ""), TypeError, "name must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: Tool("n" * 129, ""), ValueError, "name must be at most 128 characters: 129"),
        (lambda: Tool("\ud800", ""), ValueError, f"name must not hold lone surrogates: {ascii(chr(0xD800))!r}"),
        (lambda: Tool(" a", ""), ValueError, "name must be printable, not blank, without outer blanks: ' a'"),
        (lambda: Tool("a\u0430", ""), ValueError, "name must not mix alphabets that look alike: \"'a\\\\u0430'\""),
        (lambda: Tool("a", 3), TypeError, "description must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: Tool("a", "d" * 4097), ValueError, "description must be at most 4096 characters: 4097"),
        (lambda: Tool("a", "", "word"), TypeError, "keywords must be several texts, not str"),  # type: ignore[arg-type]
        (lambda: Tool("a", "", 3), TypeError, "keywords must be several texts, not int"),  # type: ignore[arg-type]
        (lambda: Tool("a", "", ("k",) * 65), ValueError, "keywords must be at most 64: 65"),
        (lambda: Tool("a", "", (3,)), TypeError, "keyword must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: Tool("a", "", ("k" * 65,)), ValueError, "keyword must be at most 64 characters: 65"),
        (lambda: Tool("a", "", (" ",)), ValueError, "keyword must not be blank: ' '"),
        (lambda: ToolCatalog(3), TypeError, "tools must be several Tool objects, not int: 3"),  # type: ignore[arg-type]
        (lambda: ToolCatalog([3]), TypeError, "tools must hold Tool objects, not int: 3"),  # type: ignore[list-item]
        (lambda: ToolCatalog([READ, READ]), ValueError, "two tools share a name: read_inventory and read_inventory"),
        (lambda: CATALOG.discover(3), TypeError, "query must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: CATALOG.discover("a", 11), ValueError, "limit must be a whole number from 1 to 10: 11"),
        (lambda: CATALOG.authorize(3, IsolationPolicy()), TypeError, "tool must be a Tool or a name, not int: 3"),  # type: ignore[arg-type]
        (lambda: CATALOG.authorize("a", 3), TypeError, "policy must be an IsolationPolicy, not int: 3"),  # type: ignore[arg-type]
        (
            lambda: CATALOG.authorize("a", IsolationPolicy(), ledger=3),  # type: ignore[arg-type]
            TypeError,
            "ledger must be a Ledger, not int: 3",
        ),
    ],
)
def test_a_malformed_argument_is_named_with_what_was_expected(
    call: Callable[[], object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


def test_the_longest_name_description_and_keywords_are_taken() -> None:
    tool = Tool("n" * 128, "d" * 4096, ("k" * 64,) * 64)
    assert ToolCatalog([tool]).discover("k" * 64, 10).tools == (tool,)
