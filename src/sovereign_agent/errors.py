"""Refusals: the one exception of every fail-closed decision, with its reason and its remedy.

A `Refusal` says that a right, a state or a lease is missing. It never says that an argument was malformed: that is a
`ValueError` or a `TypeError` which names the argument and the value. A refused subject that may be a secret is
shortened before it reaches the message, so that a pasted credential does not end up in a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

_PLAIN = re.compile(r"[\w.:/@*-]+")
_SHOWN = 64
_PATH_SHOWN = 200
_QUOTED = 200
_SECRET_SHOWN = 4


class Category(StrEnum):
    """What was refused; the value stands in events and in the command line's output."""

    LEDGER = "ledger"
    FILESYSTEM = "filesystem"
    NETWORK = "network"
    CREDENTIALS = "credentials"
    TOOLS = "tools"
    PROCESS = "process"
    AUTOMATION = "automation"
    SIGNAL = "signal"
    CONTEXT = "context"
    SESSION = "session"
    DELIVERY = "delivery"
    MEMORY = "memory"


_ACTION = {
    Category.LEDGER: "Ledger access",
    Category.FILESYSTEM: "Filesystem access",
    Category.NETWORK: "Network access",
    Category.CREDENTIALS: "Credential access",
    Category.TOOLS: "Tool access",
    Category.PROCESS: "Process isolation",
    Category.AUTOMATION: "Automation",
    Category.SIGNAL: "Signal",
    Category.CONTEXT: "Context",
    Category.SESSION: "Session claim",
    Category.DELIVERY: "Delivery",
    Category.MEMORY: "Memory",
}


class Refusal(Exception):  # noqa: N818 - a refusal is a decision, and its name is part of the public contract
    """A fail-closed decision. `str()` is one sentence: what was refused, for what, why, and what helps.

    Parameters:
        category: What was refused; a `Category` or its value.
        subject: The path, name, id or host that was asked for; printed through `shorten`.
        why: The reason, without a final full stop.
        remedy: What the caller can do, without a final full stop.
        secret: The subject may be a credential: show its first characters and its length only.

    Raises:
        ValueError: `category` is none.
    """

    category: Category
    subject: str
    """Already shortened: safe to log."""
    why: str
    remedy: str
    recorded: bool = False
    """Whether a ledger has been asked to keep this refusal as an event."""

    def __init__(
        self, category: Category | str, subject: object, why: str, remedy: str, *, secret: bool = False
    ) -> None:
        if category not in list(Category):
            raise ValueError(f"category must be one of {', '.join(Category)}: {shown(category)}")
        self.category = Category(category)
        is_path = self.category in {Category.LEDGER, Category.FILESYSTEM}
        self.subject = shorten(subject, secret=secret, limit=_PATH_SHOWN if is_path else _SHOWN)
        self.why = why
        self.remedy = remedy
        super().__init__(self.category, self.subject, why, remedy)

    def __str__(self) -> str:
        return f"{_ACTION[self.category]} refused for {self.subject}: {self.why}; {self.remedy}."

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (str(self.category), self.subject, self.why, self.remedy)


class Unproved(Exception):  # noqa: N818 - an observation that failed, not an error of a caller
    """The scenario did not observe what one of its lines would claim, so the line is not printed."""


def _rebuild(category: str, subject: str, why: str, remedy: str) -> Refusal:
    refusal = Refusal(category, "", why, remedy)
    refusal.subject = subject
    return refusal


def shown(value: object) -> str:
    """Return a value as an error message quotes it: its `repr`, cut to 200 characters. Never raises."""
    text = _text(value, repr)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}... ({len(text)} characters)"


def _text(value: object, form: Callable[[object], str]) -> str:
    """Return `str` or `repr` of a value, also where that raises: too deep, a number too long, a faulty class."""
    try:
        return form(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def shorten(subject: object, *, secret: bool = False, limit: int = _SHOWN) -> str:
    """Return a subject as it may be printed: on one line, cut where it is long, a possible secret cut to 4.

    Parameters:
        subject: Anything; text is quoted only where it is not plain (blank, spaces, control characters).
        secret: Show only the first 4 characters and the length, unless the text is an ordinary upper-case name.
        limit: Characters of anything else.

    Returns:
        Printable ASCII-safe text without line breaks.
    """
    text = subject if isinstance(subject, str) else _text(subject, str)
    if secret and not re.fullmatch(r"[A-Z][A-Z0-9_]{0,39}", text):
        return f"{text[:_SECRET_SHOWN]!a}... ({len(text)} characters)"
    if len(text) > limit:
        return f"{text[:limit]!a}... ({len(text)} characters)"
    if _PLAIN.fullmatch(text) and text.isascii():
        return text
    return repr(text) if text.isprintable() else ascii(text)
