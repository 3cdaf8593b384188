"""Run: the examples of one page in a clone, without building the site.

It promises what the build promises of an example: a process for the page, the blocks above it run first, the same
environment, a failure told at its line. It remembers nothing, compares nothing with committed outputs, and shows
nothing but what the blocks printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bookproof.ahead import plans
from bookproof.examples import Runner
from bookproof.options import Settings
from bookproof.page import Failure


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one block."""

    id: str
    output: str = ""
    skipped: str = ""
    """Why it was not run; empty for one that was."""
    failure: Failure | None = None


def read_settings(config_file: Path) -> Settings:
    """Return the settings of the site that a configuration file describes.

    Parameters:
        config_file: `mkdocs.yml`, or one like it.
    """
    from mkdocs.config import load_config

    from bookproof.plugin import site_settings

    config = load_config(str(config_file))
    plugin = config.plugins.get("bookproof")
    return site_settings(dict(plugin.config) if plugin is not None else {}, config)


def run_page(settings: Settings, page: str, example: str = "") -> Iterator[Ran]:
    """Run the blocks of a page in order, up to one of them or all; yield what is asked for as it comes.

    Parameters:
        settings: The site's.
        page: Repository-relative path of the page.
        example: Id of the one block to show; empty: all of them.

    Raises:
        ValueError: There is no such page, or no such block on it; the text names those that there are.
    """
    file = settings.root / page
    if not file.is_file():
        raise ValueError(f"{page} is no page; name it as docs/x.md")
    planned = list(plans(file.read_text("utf-8"), settings))
    names = [one.example.id for one in planned]
    if example and example not in names:
        raise ValueError(f"{page} has no example {example!r}; it has {', '.join(names) or 'none'}")
    runner = Runner(settings)
    try:
        runner.open_page(page)
        for one in planned:
            name = one.example.id
            why = one.example.options.why or ", ".join((*one.complaints, *one.absent))
            skipped = bool(why) or not one.example.options.execute
            outcome = None if skipped else runner.run(one.example)
            failed = outcome is not None and bool(outcome.failure)
            if outcome is not None and (failed or example in {"", name}):
                line = outcome.line or one.example.line
                yield Ran(name, outcome.output, "", Failure(page, line, outcome.failure) if failed else None)
            elif skipped and example in {"", name}:
                yield Ran(name, skipped=why or "switched off")
            if name == example or failed:
                return
    finally:
        runner.close()
