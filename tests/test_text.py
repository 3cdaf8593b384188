"""Words and names: every script gives words, and no name hides what it is."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sovereign_agent.text import canonical_name, fold, is_plain_name, mixes_alphabets, skeleton, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read_inventory", "read inventory"),
        ("readInventory", "read inventory"),
        ("Read the INVENTORY!", "read the inventory"),
        ("readHTTPHeader", "read http header"),
        ("listIDs", "list ids"),
        ("getUserIDs2", "get user i ds2"),
        ("http2Server", "http2 server"),
        ("größe GRÖSSE", "grösse grösse"),
        ("Straße straße", "strasse strasse"),
        ("Привет, мир", "привет мир"),
        ("tạo ảnh", "tạo ảnh"),
        ("生成图片", "生成 成图 图片"),
        ("生 成", "生 成"),
        ("図を生成する", "図を を生 生成 成す する"),
        ("คลังสินค้า", "คล ลั ัง งส สิ ิน นค ค้ ้า"),
        ("读取inventory库", "读取 inventory 库"),
        ("안녕 세계", "안녕 세계"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("图\u0301片", "图\u0301 \u0301片"),
        ("soft\u00adhyphen zero\u200dwidth", "softhyphen zerowidth"),
        ("❤\ufe0f \u0301", ""),
        ("...  ---", ""),
        ("", ""),
    ],
)
def test_words_of_every_script(text: str, expected: str) -> None:
    assert words(text) == tuple(expected.split())


@given(st.text())
def test_words_do_not_depend_on_the_form_in_which_the_text_was_typed(text: str) -> None:
    assert words(unicodedata.normalize("NFC", text)) == words(unicodedata.normalize("NFD", text)) == words(text)


def test_the_words_of_a_long_run_take_time_in_proportion_to_its_length() -> None:
    """Ten times the length, less than fifty times the time; a step that copies the rest of the run takes a hundred."""

    def taken(length: int) -> float:
        start = time.process_time()
        assert words("é" * length) == ("é" * length,)
        assert len(words("éA" * (length // 10))) == length // 10 + 1
        return time.process_time() - start

    assert taken(400_000) < 50 * taken(40_000)


@given(st.text())
def test_words_are_folded_and_hold_no_white_space(text: str) -> None:
    """So that they can be stored as one text, parted by spaces."""
    found = words(text)
    assert all(word and word == fold(word) for word in found)
    assert tuple(" ".join(found).split()) == found


@given(st.text(st.characters(max_codepoint=127)) | st.text("aAbBsS1_ "))
def test_ascii_text_is_parted_by_the_rule_of_all_text(text: str) -> None:
    """ASCII takes a short cut; a letter beyond it, standing alone at the end, takes the long way."""
    assert (*words(text), "é") == words(f"{text} é")


@given(st.lists(st.text("abcdefghij", min_size=1), min_size=1))
def test_snake_case_and_camel_case_give_the_same_words(parts: list[str]) -> None:
    camel = parts[0] + "".join(part.capitalize() for part in parts[1:])
    if all(len(part) > 1 for part in parts):  # "readAAPage" cannot be told from an acronym
        assert words("_".join(parts)) == words(camel) == tuple(parts)


@given(st.text())
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert canonical_name(canonical_name(text)) == canonical_name(text)


@pytest.mark.parametrize("text", ["\u01f0", "\u0390", "\u00df\u0301"])
def test_folded_text_is_normalised(text: str) -> None:
    """Case folding takes these letters apart, so normalising once before it is not enough."""
    assert unicodedata.is_normalized("NFKC", fold(text))


def test_one_name_has_one_canonical_form() -> None:
    assert canonical_name(" Read_Inventory ") == canonical_name("read_inventory")
    assert canonical_name("\uff52\uff45\uff41\uff44") == canonical_name("read")
    assert canonical_name("Jose\u0301") == canonical_name("JOSÉ")


@pytest.mark.parametrize(
    "name", ["", "  ", "a\u200bb", "a\u00adb", "a\u202eb", "a\tb", "a\nb", "a\ud800", "a\u3164", "a\ufe0f", "a\u00a0b"]
)
def test_a_name_with_invisible_characters_is_not_plain(name: str) -> None:
    assert not is_plain_name(name)


@pytest.mark.parametrize(
    "name", ["read_inventory", "srv.tool/read-2", "größe", "tạo_ảnh", "生成图片", "read inventory"]
)
def test_ordinary_names_are_plain_and_use_one_alphabet(name: str) -> None:
    assert is_plain_name(name)
    assert not mixes_alphabets(name)


@pytest.mark.parametrize("name", ["re\u0430d", "\u03bfpen", "delete_\u0441\u043e\u0440\u0443"])
def test_a_name_that_mixes_look_alike_alphabets_is_told(name: str) -> None:
    assert mixes_alphabets(name)


def test_han_beside_latin_is_ordinary_writing() -> None:
    assert not mixes_alphabets("读取_inventory")


def test_a_skeleton_shows_that_two_names_look_alike() -> None:
    assert skeleton("\u0441\u043e\u0440\u0443") == skeleton("Copy") == "copy"
    assert skeleton("чтение") != skeleton("запись")
