"""Knobs: the numbers and choices of a block that a reader may turn, declared in the block itself.

A knob is an assignment at the left margin whose comment says its range: `lease = 20  # 5 to 60 by 5: in seconds`, or
`mode = "once"  # "once" or "skip": after downtime`. It promises that what the build runs is the block as it stands, so
that a knob's first position is the published one. It turns nothing: the reader's browser writes another value into the
same line.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(
    rf"^(?P<name>[a-z_]\w*) = (?P<value>{_NUMBER})  # (?P<low>{_NUMBER}) to (?P<high>{_NUMBER}) by (?P<step>{_NUMBER})"
    r"(?:: (?P<label>.+))?$",
    re.MULTILINE,
)
_CHOICE = re.compile(
    r'^(?P<name>[a-z_]\w*) = (?P<value>"[^"\s]*")  # (?P<choices>"[^"\s]*"(?: or "[^"\s]*")+)(?:: (?P<label>.+))?$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Knob:
    """One value that a reader may change."""

    name: str
    """The variable."""
    value: str
    """What stands in the block, as Python writes it."""
    label: str
    """What it is, for the reader."""
    low: str = ""
    """Least value of a number, as written; empty for a choice."""
    high: str = ""
    step: str = ""
    choices: tuple[str, ...] = ()
    """What a choice may be, as Python writes it; empty for a number."""

    def as_json(self) -> dict[str, Any]:
        """Return the knob for the lab's script."""
        return asdict(self)


def knobs(code: str) -> tuple[Knob, ...]:
    """Return the knobs of a block, in the order of its lines."""
    found: list[tuple[int, Knob]] = []
    for match in _RANGE.finditer(code):
        name, label = match["name"], match["label"] or match["name"]
        found.append((match.start(), Knob(name, match["value"], label, match["low"], match["high"], match["step"])))
    for match in _CHOICE.finditer(code):
        choices = tuple(re.findall(r'"[^"]*"', match["choices"]))
        knob = Knob(match["name"], match["value"], match["label"] or match["name"], choices=choices)
        found.append((match.start(), knob))
    return tuple(knob for _, knob in sorted(found, key=lambda one: one[0]))


def turn(code: str, name: str, value: str) -> str:
    """Return the block with another value in a knob's line.

    Parameters:
        code: The block.
        name: The knob's variable.
        value: What is to stand there, as Python writes it.
    """
    return re.sub(
        rf"^({re.escape(name)} = )\S+(?=  #)", lambda match: match[1] + value, code, count=1, flags=re.MULTILINE
    )


def check_knobs(code: str) -> list[str]:
    """Return what is wrong with the knobs of a block that is to have some."""
    found = knobs(code)
    if not found:
        return ["no knob was found: write `name = 20  # 5 to 60 by 5: what it is` at the left margin"]
    complaints = []
    for knob in found:
        if knob.choices and knob.value not in knob.choices:
            complaints.append(f"knob {knob.name} stands at {knob.value}, which is none of its choices")
        elif not knob.choices:
            low, value, high, step = (float(text) for text in (knob.low, knob.value, knob.high, knob.step))
            steps = (value - low) / step if step > 0 else 0.5
            if not low <= value <= high or abs(steps - round(steps)) > 1e-6:
                complaints.append(f"knob {knob.name} stands at {knob.value}, which its range does not reach")
    return complaints
