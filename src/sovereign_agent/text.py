"""Words and names: one way to fold text, used by isolation, tools and memory alike.

`words` splits any script into comparable words; `canonical_name` decides when two names are the same name. Neither
translates, stems or corrects: "größe" and "groesse" stay different words, and "JavaScript" is java, script. Look-alike
letters are told apart, never merged: `mixes_alphabets` and `skeleton` let a catalogue refuse the names that use them.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

_UNSPACED = re.compile(
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029"  # CJK radicals and marks
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d"  # Hiragana, Katakana
    "\u3100-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Bopomofo, Han
    "\U00020000-\U0003ffff"  # Han extensions
    "]+"
)
# Joiners, fillers, soft hyphens and variation selectors: they show nothing and part no words. The zero-width space
# (U+200B) is left out, since Thai and Khmer use it to part words.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e0fff]"
)
# The rule of `_camel` for ASCII, where most text is: the last of several capitals begins a word, unless an s ends it.
_ASCII = re.compile("[A-Z]+(?=[A-Z](?!s(?![A-Za-z0-9]))[a-z])|[A-Z]+[a-z0-9]*|[a-z0-9]+")
_ALIKE = frozenset({"LATIN", "GREEK", "CYRILLIC", "COPTIC", "ARMENIAN", "CHEROKEE", "LISU"})
_SHAPES = str.maketrans(
    "авеһнікмопрстухѕјԁԛԝӏѵ" + "αβεζηικμνορτυχ" + "\u0251\u0261\u0131",
    "abehhikmonpctyxsjdqwlv" + "abezhikmnoptyx" + "agi",
)


def fold(text: str) -> str:
    """Return text in the form in which it is compared: NFKC, case-folded, NFKC again.

    The second pass matters: case folding can leave text that is no longer normalised (Unicode Standard, section 3.13,
    definition D146).
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def canonical_name(name: str) -> str:
    """Return the form in which names of tools are compared: folded, without surrounding white space."""
    return fold(name).strip()


def is_plain_name(name: str) -> bool:
    """Tell whether a name is printable, not blank, and free of characters that show nothing."""
    return (
        bool(name.strip())
        and not _UNSEEN.search(name)
        and all(not unicodedata.category(character).startswith(("C", "Z")) or character == " " for character in name)
    )


def mixes_alphabets(name: str) -> bool:
    """Tell whether a name mixes alphabets whose letters look alike, such as Latin and Cyrillic.

    A mixture with any other script (Han, Kana, Thai, ...) is ordinary writing. The alphabet of a letter is the first
    word of its Unicode name.
    """
    letters = {unicodedata.name(c, "").split(" ")[0] for c in fold(name) if unicodedata.category(c)[0] == "L"}
    return len(letters & _ALIKE) > 1


def skeleton(name: str) -> str:
    """Return a canonical name with Cyrillic and Greek letters replaced by the Latin ones they look like.

    Two names with one skeleton can be mistaken for each other. The table is short and covers these alphabets only; it
    is not the confusables list of Unicode Technical Standard 39.
    """
    return canonical_name(name).translate(_SHAPES)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in order, folded; the same rule for queries, tools and memories.

    Parameters:
        text: Any text.

    Returns:
        Words split at snake_case, camelCase and every character that is no letter, mark or digit, in any script. A
        run of a script written without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar) gives its overlapping pairs of
        characters; a run of one character gives that character. Characters that show nothing are dropped first.
    """
    if text.isascii():
        return tuple(word.lower() for word in _ASCII.findall(text))
    found: list[str] = []
    for run in _runs(_UNSEEN.sub("", unicodedata.normalize("NFKC", text))):
        if _UNSPACED.match(run):
            found.extend([run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)])
        else:
            found.extend(filter(None, (fold(part) for part in _camel(run))))
    return tuple(found)


def _runs(text: str) -> list[str]:
    """Split into runs of letters, marks and digits, parted again where an unspaced script begins or ends."""
    runs: list[str] = []
    current = ""
    unspaced = False
    for character in text:
        kind = unicodedata.category(character)[0]
        if kind not in "LMN" or (kind == "M" and not current):  # a mark without a letter is no word
            runs.append(current)
            current = ""
            continue
        # A combining mark belongs to the letter before it, whatever its own block is.
        here = unspaced if current and unicodedata.combining(character) else bool(_UNSPACED.match(character))
        if current and here != unspaced:
            runs.append(current)
            current = ""
        unspaced = here
        current += character
    runs.append(current)
    return [run for run in runs if run]


def _camel(run: str) -> list[str]:
    """Split `readHTTPHeader` into read, HTTP, Header, and `listIDs` into list, IDs.

    Title case counts as upper case, and marks follow their letter.
    """
    starts = [0]
    previous = ""
    for index, character in enumerate(run):
        if unicodedata.category(character)[0] == "M":
            continue
        upper = character.isupper() or character.istitle()
        following = run[index + 1 : index + 3]
        if upper and previous and (not previous.isupper() or (following[:1].islower() and following != "s")):
            starts.append(index)
        previous = character
    return [run[start:end] for start, end in pairwise([*starts, len(run)])]
