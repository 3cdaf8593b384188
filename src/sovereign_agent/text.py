"""Words and names: one way to fold text, used by isolation, tools and memory alike.

`words` splits any script into comparable words; `canonical_name` decides when two names are the same name. Neither
translates, stems or corrects: "größe" and "groesse" stay different words, and so do look-alikes of two alphabets.
"""

from __future__ import annotations

import re
import unicodedata

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
    """Tell whether a name is printable, not blank, and free of invisible characters (controls, zero-width, bidi)."""
    return bool(name.strip()) and all(
        not unicodedata.category(character).startswith(("C", "Z")) or character == " " for character in name
    )


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in order, folded; the same rule for queries, tools and memories.

    Parameters:
        text: Any text.

    Returns:
        Words split at snake_case, camelCase and every character that is no letter, mark or digit, in any script. A run of
        a script written without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar) gives its overlapping pairs of characters; a run
        of one character gives that character.
    """
    found: list[str] = []
    for run in _runs(unicodedata.normalize("NFKC", text)):
        if _UNSPACED.fullmatch(run):
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
        if unicodedata.category(character)[0] not in "LMN":
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
    """Split `readHTTPHeader` into read, HTTP, Header; title case counts as upper case, marks follow their letter."""
    parts = [""]
    previous = ""
    for index, character in enumerate(run):
        if unicodedata.category(character)[0] == "M":
            parts[-1] += character
            continue
        upper = character.isupper() or character.istitle()
        following = run[index + 1 : index + 2]
        if upper and previous and (not previous.isupper() or following.islower()):
            parts.append("")
        parts[-1] += character
        previous = character
    return parts
