"""Tools: finding a tool is one question, being allowed to use it is another.

`discover` answers with a few tools out of many, best first, and says what it left out; it grants nothing. `authorize`
asks a policy about one tool of this catalogue and answers with a receipt. The package invokes no tool: the caller's
executor must demand the receipt. A receipt is a fact, not a secret: code in the same process could make one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import tool_index
from .errors import Category, Refusal, shorten, shown
from .isolation import IsolationPolicy
from .ledger import Ledger, record_refusal
from .text import canonical_name, is_plain_name, mixes_alphabets, skeleton, words

MAX_NAME = 128
"""Longest name of a tool, in characters."""
MAX_DESCRIPTION = 4096
"""Longest description, in characters: a longer one costs the prompt more than it tells."""
MAX_KEYWORDS = 64
"""Most keywords of one tool; each is at most 64 characters long."""
MAX_LIMIT = 10
"""Most tools that one discovery returns."""

_NAME, _KEYWORD, _DESCRIPTION = 1.0, 0.6, 0.25
_PLURAL = 0.8


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, as a prompt may show it. Checked when it is made.

    Parameters:
        name: Printable, at most 128 characters, without outer blanks, in letters of one alphabet.
        description: At most 4096 characters; may be empty.
        keywords: Other words a user may ask with, in any language: at most 64, each at most 64 characters.

    Raises:
        TypeError: A part is no text, or `keywords` is one text or no collection of texts.
        ValueError: A part is blank, too long, or holds what a reader cannot see or tell apart.
    """

    name: str
    description: str
    keywords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_text("name", self.name, MAX_NAME)
        if not is_plain_name(self.name) or self.name != self.name.strip():
            raise ValueError(f"name must be printable, not blank, without outer blanks: {shorten(self.name)}")
        if mixes_alphabets(self.name):
            raise ValueError(f"name must not mix alphabets that look alike: {shorten(ascii(self.name))}")
        _check_text("description", self.description, MAX_DESCRIPTION)
        if isinstance(self.keywords, str | bytes | Mapping) or not isinstance(self.keywords, Iterable):
            raise TypeError(f"keywords must be several texts, not {type(self.keywords).__name__}")
        object.__setattr__(self, "keywords", tuple(self.keywords))
        if len(self.keywords) > MAX_KEYWORDS:
            raise ValueError(f"keywords must be at most {MAX_KEYWORDS}: {len(self.keywords)}")
        for keyword in self.keywords:
            _check_text("keyword", keyword, 64)
            if not keyword.strip():
                raise ValueError(f"keyword must not be blank: {shown(keyword)}")

    def digest(self) -> str:
        """Return the SHA-256 of the definition, in hexadecimal: another text gives another digest."""
        return hashlib.sha256(json.dumps([self.name, self.description, self.keywords]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a search found. It grants nothing."""

    tools: tuple[Tool, ...]
    """Best first; at most `limit`."""
    total_matches: int
    truncated: bool
    """Whether matches were left out."""


@dataclass(frozen=True, slots=True)
class AuthorizedTool:
    """The receipt of an authorization, which an executor demands before it runs the tool."""

    name: str
    tool_digest: str
    """`Tool.digest` of the definition that was authorized: an executor can refuse one that has changed since."""
    policy_digest: str
    """Which policy allowed it."""


def strengths(tool: Tool) -> dict[str, float]:
    """Return how strongly each word stands for a tool, in (0, 1]; pure.

    A word counts where it stands best: 1 in the name, 0.6 in the keywords, 0.25 in the description, each times
    `0.64 + 0.36 / sqrt(n)` for a field of n different words. So repeating a word earns nothing, adding words weakens
    the rest, and for any one word the name stays above the keywords and these above the description.
    """
    found: dict[str, float] = {}
    for weight, text in ((_NAME, tool.name), (_KEYWORD, " ".join(tool.keywords)), (_DESCRIPTION, tool.description)):
        field = frozenset(words(text))
        for word in field:
            found[word] = max(found.get(word, 0.0), weight * (0.64 + 0.36 / math.sqrt(len(field))))
    return found


def rarity(tools: int, having: int) -> float:
    """Return the weight of a word that `having` of `tools` tools have, above 0; pure.

    The inverse document frequency of BM25 (Robertson and Zaragoza, 2009), with 1 added inside the logarithm so that a
    word that stands everywhere still counts a little.
    """
    return math.log(1 + (tools - having + 0.5) / (having + 0.5))


def forms(word: str) -> tuple[str, ...]:
    """Return a word and its possible English singulars and plurals; pure.

    They are guesses, so they count 0.8 of the word itself, and only forms that some tool has count at all. Words that
    are not plain ASCII letters, or shorter than three, have no other form: the rules of English are not theirs.
    """
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return (word,)
    others = [word + "s"]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        others.append(word + "es")
    if word.endswith("y"):
        others.append(word[:-1] + "ies")
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        others.append(word[:-1])
    if word.endswith(("ses", "xes", "zes", "ches", "shes")):
        others.append(word[:-2])
    if word.endswith("ies"):
        others.append(word[:-3] + "y")
    return (word, *others)


class ToolCatalog:
    """The tools of one agent: searched by `discover`, handed out by `authorize`.

    Parameters:
        tools: The tools; the catalogue keeps these very objects.

    Raises:
        TypeError: Something is no `Tool`.
        ValueError: Two names are the same once case and form are folded, or look the same in another alphabet.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        seen: dict[str, Tool] = {}
        if not isinstance(tools, Iterable):
            raise TypeError(f"tools must be several Tool objects, not {type(tools).__name__}: {shorten(tools)}")
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"tools must hold Tool objects, not {type(tool).__name__}: {shorten(tool)}")
            other = seen.setdefault(skeleton(tool.name), tool)
            if other is not tool or canonical_name(tool.name) in self._tools:
                raise ValueError(f"two tools share a name: {shorten(other.name)} and {shorten(tool.name)}")
            self._tools[canonical_name(tool.name)] = tool
        self._by_name = sorted(self._tools.values(), key=lambda tool: tool.name)  # a position in it stands for a tool
        self._by_sequence: dict[tuple[str, ...], list[int]] = {}
        by_word: dict[str, dict[int, float]] = {}
        for position, tool in enumerate(self._by_name):
            self._by_sequence.setdefault(words(tool.name), []).append(position)
            for word, strength in strengths(tool).items():
                by_word.setdefault(word, {})[position] = strength
        size = len(self._by_name)
        self._by_word = {word: tool_index.having(found, size) for word, found in by_word.items()}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in the order in which they were given."""
        return tuple(self._tools.values())

    def discover(self, query: str, limit: int = 5) -> Discovery:
        """Return the tools that match a query best. This grants nothing.

        A tool matches when it has a word of the query, or its English singular or plural. Its score is the sum over
        the query's words of rarity times strength. A tool whose name is the query (the same words in the same order)
        comes before all others; equal scores are ordered by name.

        Parameters:
            query: What is looked for, in any language.
            limit: Most tools to return, 1 to 10.

        Returns:
            The best tools, how many matched, and whether some were left out.

        Raises:
            TypeError: `query` is no text.
            ValueError: `limit` is no whole number from 1 to 10.
        """
        if not isinstance(query, str):
            raise TypeError(f"query must be text, not {type(query).__name__}: {shorten(query)}")
        if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:  # True is no number
            raise ValueError(f"limit must be a whole number from 1 to {MAX_LIMIT}: {shown(limit)}")
        sequence = words(query)
        terms = []
        for word in dict.fromkeys(sequence):
            having = self._having(word)
            terms.append((rarity(len(self._by_name), having.count), having))
        matches = tool_index.matches(terms, len(self._by_name))
        exact = self._by_sequence.get(sequence, []) if sequence else []
        candidates = {*exact, *tool_index.highest(terms, len(self._by_name), limit)}
        best = sorted(candidates, key=lambda at: (at not in exact, -tool_index.score(terms, at), at))[:limit]
        return Discovery(
            tools=tuple(self._by_name[position] for position in best),
            total_matches=matches,
            truncated=matches > limit,
        )

    def _having(self, word: str) -> tool_index.Having:
        """Return the tools that have a word or another form of it, with the word's strength there."""
        same, *others = (self._by_word.get(form, tool_index.NOWHERE) for form in forms(word))
        return tool_index.either(same, others, _PLURAL, len(self._by_name))

    def authorize(self, tool: Tool | str, policy: IsolationPolicy, *, ledger: Ledger | None = None) -> AuthorizedTool:
        """Ask a policy whether one tool of this catalogue may be used.

        Parameters:
            tool: A name, compared in canonical form, or the very object given to this catalogue: an equal copy is
                refused, since nothing tells where it came from.
            policy: Who decides.
            ledger: Where the answer is recorded, as `tool.authorized` or `refused`; nowhere when omitted.

        Returns:
            The receipt that the executor must demand.

        Raises:
            Refusal: `category="tools"`: not in this catalogue, not its object, or not allowed by the policy.
            TypeError: `tool`, `policy` or `ledger` is of another type.
        """
        if not isinstance(tool, Tool | str):
            raise TypeError(f"tool must be a Tool or a name, not {type(tool).__name__}: {shorten(tool)}")
        if not isinstance(policy, IsolationPolicy):
            raise TypeError(f"policy must be an IsolationPolicy, not {type(policy).__name__}: {shorten(policy)}")
        if ledger is not None and not isinstance(ledger, Ledger):
            raise TypeError(f"ledger must be a Ledger, not {type(ledger).__name__}: {shorten(ledger)}")
        try:
            own = self._resolve(tool)
            policy.authorize_tool(own.name)
        except Refusal as refusal:
            if ledger is not None:
                record_refusal(ledger, refusal)
            raise
        receipt = AuthorizedTool(name=own.name, tool_digest=own.digest(), policy_digest=policy.digest())
        if ledger is not None:
            with ledger.write() as tx:
                tx.event(
                    "tool.authorized",
                    receipt.name,
                    at=ledger.now(),
                    tool_digest=receipt.tool_digest,
                    policy_digest=receipt.policy_digest,
                )
        return receipt

    def _resolve(self, tool: Tool | str) -> Tool:
        """Return this catalogue's own object for a name or an object; refuse any other."""
        name = tool.name if isinstance(tool, Tool) else tool
        own = self._tools.get(canonical_name(name))
        if own is None:
            raise Refusal(Category.TOOLS, name, "this catalogue has no such tool", "discover a tool and use its name")
        if isinstance(tool, Tool) and tool is not own:
            raise Refusal(
                Category.TOOLS,
                name,
                "it is not the object that this catalogue was given",
                "use the Tool that discover returned, or its name",
            )
        return own


def _check_text(what: str, value: object, most: int) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {type(value).__name__}: {shorten(value)}")
    if len(value) > most:
        raise ValueError(f"{what} must be at most {most} characters: {len(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} must not hold lone surrogates: {shorten(ascii(value))}")
