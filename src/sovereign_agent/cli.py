"""The command line: run the scenario, look into a ledger, archive what is over, prove a sandbox, simulate weeks.

Exit status 0 means done, 1 refused or violated, 2 wrong usage; an error is one line on standard error. `status` and
`events` open the ledger read-only and create nothing.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from .errors import Refusal, Unproved
from .ledger import Ledger

if TYPE_CHECKING:
    from .simulation import Report
    from .trace import Table

NAME = "sovereign-agent"
ROOT = click.Path(path_type=Path)
EXISTING = {"root": click.option("--root", type=ROOT, required=True, metavar="DIR", help="Directory of the ledger.")}


class _Instant(click.ParamType[datetime]):
    """An instant with its time zone, or a date, which means its first instant in UTC."""

    name = "instant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read the text of an option; called by click."""
        text = str(value)
        try:
            if len(text) == len("2026-01-05"):
                return datetime.combine(date.fromisoformat(text), time(0), UTC)
            instant = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither a date nor an ISO-8601 instant.", param, ctx)
        if instant.tzinfo is None:
            self.fail(f"{text!r} has no time zone; end it with Z for UTC.", param, ctx)
        return instant


class _Commands(click.Group):
    """The group of commands, whose help ends with the meaning of the exit status."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, then the exit status; called by click."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit status"):
            formatter.write_dl([("0", "done"), ("1", "refused, or an invariant violated"), ("2", "wrong usage")])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  sovereign-agent mechanisms --root /tmp/sovereign-agent-mechanisms",
)
@click.version_option(package_name="sovereign-agent")
def cli() -> None:
    """Six mechanisms for agents that run unattended, each with the claim it earns."""


@cli.command(
    epilog="\b\nExample:\n  sovereign-agent mechanisms --root /tmp/sovereign-agent-mechanisms\n"
    "  sovereign-agent mechanisms --only coordination --json"
)
@click.option(
    "--root",
    type=ROOT,
    default=None,
    metavar="DIR",
    help="Directory of the ledger, made where it is missing. A temporary one when omitted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--only",
    metavar="NAME",
    default=None,
    help="Run one: isolation, tools, automation, context, coordination or memory.",
)
def mechanisms(root: Path | None, only: str | None, *, as_json: bool) -> None:
    """Run all six once: a line for each, then what it claims.

    Below each line stands what it rests on (+) and what it does not claim (-).

    The scenario does not wait for a lease of 20 seconds to end, it says that it has ended: events of its session and
    its second host carry an instant 26 seconds ahead of the clock (with the default clock skew). So give it a directory
    of its own, and not the ledger of a live agent.
    """
    from .mechanisms import SCENARIO, run

    if only is not None and only not in SCENARIO:
        raise click.BadParameter(f"{only!r} is not one of {', '.join(SCENARIO)}.", param_hint="'--only'")
    if root is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="sovereign-agent-") as temporary:
            findings = run(temporary, only=only)
    else:
        findings = run(root, only=only)
    if as_json:
        click.echo(_json({"version": 1, "mechanisms": [dataclasses.asdict(finding) for finding in findings]}))
        return
    for finding in findings:
        click.echo(finding.line)
    for finding in findings:
        click.echo(f"\n{finding.mechanism}")
        for claim in finding.claims:
            click.echo(f"  + {claim}")
        for claim in finding.not_claimed:
            click.echo(f"  - not claimed: {claim}")


@cli.command(epilog="\b\nExample:\n  sovereign-agent status --root /tmp/sovereign-agent-mechanisms")
@EXISTING["root"]
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
def status(root: Path, *, as_json: bool) -> None:
    """Show watchers, runs, sessions, hosts, deliveries.

    A table that is wider than the terminal is shown row by row, one column to a line.
    """
    from .trace import status as read_status

    with Ledger.open(root, read_only=True) as ledger:
        tables = read_status(ledger)
    if as_json:
        click.echo(
            _json({table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables})
        )
        return
    _print_tables(tables)


def _print_tables(tables: Sequence[Table]) -> None:
    """Print each table as such where it fits the terminal, else each row as a list; an empty one is its title."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    unbounded = console.options.update(max_width=sys.maxsize)
    for table in tables:
        console.print(Text(f"{table.name} ({table.total})", style="bold"))
        rows = [["" if value is None else _printable(_to_seconds(value)) for value in row] for row in table.rows]
        grid = Grid(*table.columns, box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            grid.add_row(*map(Text, row))
        if rows and console.measure(grid, options=unbounded).maximum <= console.width:
            console.print(grid)
        else:
            width = max(map(len, table.columns))
            for row in rows:
                for number, (column, value) in enumerate(zip(table.columns, row, strict=True)):
                    if value:
                        console.print(Text(f"{'  ' if number else '- '}{column:<{width}}  {value}"), soft_wrap=True)
        if table.total > len(table.rows):
            console.print(f"the newest {len(table.rows)} of {table.total}")


def _to_seconds(value: object) -> str:
    """Return a value as text, an instant without its fraction of a second; `--json` has it whole."""
    return _FRACTION.sub("Z", str(value))


_FRACTION = re.compile(r"(?<=T\d\d:\d\d:\d\d)\.\d{6}Z$")


@cli.command(
    epilog="\b\nExample:\n  sovereign-agent events --root /tmp/sovereign-agent-mechanisms\n"
    "  sovereign-agent events --root /tmp/sovereign-agent-mechanisms --mermaid"
)
@EXISTING["root"]
@click.option("--mermaid", is_flag=True, help="Print a Mermaid sequence diagram.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--subject", metavar="ID", default=None, help="Only events of this id.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="At most so many, the newest."
)
def events(root: Path, subject: str | None, limit: int, *, mermaid: bool, as_json: bool) -> None:
    """Show every committed state change, oldest first."""
    from .clock import to_text
    from .trace import events as read_events
    from .trace import sequence_diagram

    if mermaid and as_json:
        raise click.UsageError("--mermaid and --json exclude each other.")
    with Ledger.open(root, read_only=True) as ledger:
        trace = read_events(ledger, subject=subject, limit=limit)
    if mermaid:
        click.echo(sequence_diagram(trace), nl=False)
        return
    for event in trace:
        if as_json:
            click.echo(json.dumps({**dataclasses.asdict(event), "at": to_text(event.at)}, sort_keys=True))
        else:
            detail = json.dumps(event.detail, sort_keys=True, ensure_ascii=False)
            line = f"{event.seq:>6}  {to_text(event.at)}  {event.kind:<24}  {event.subject}  {detail}"
            click.echo(_printable(line))


@cli.command(
    epilog="\b\nExample:\n  sovereign-agent archive --root /tmp/sovereign-agent-mechanisms --before 2026-01-05\n"
    "  sovereign-agent archive --root DIR --before 2026-01-05T08:00:00Z --to /backup/spring.db"
)
@EXISTING["root"]
@click.option(
    "--before",
    type=_Instant(),
    required=True,
    metavar="T",
    help="Archive what was over before this date (00:00 UTC) or instant with time zone.",
)
@click.option(
    "--to", type=ROOT, default=None, metavar="FILE", help="The file; beside the ledger, named for T, when omitted."
)
@click.option("--json", "as_json", is_flag=True, help="Print the archive as JSON.")
def archive(root: Path, before: datetime, to: Path | None, *, as_json: bool) -> None:
    """Move old events and closed rows to a second file.

    That they left is recorded as an event. The file is verified before anything is removed. After a crash, run the same
    command again.
    """
    from .archive import archive_before
    from .clock import to_text

    with Ledger.open(root, read_only=True):
        pass  # an archive of no ledger must not create one
    with Ledger.open(root) as ledger:
        try:
            done = archive_before(ledger, before, to=to)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
    if as_json:
        facts = None if done is None else {**dataclasses.asdict(done), "before": to_text(done.before)}
        click.echo(_json(facts))
    elif done is None:
        click.echo(f"nothing was over before {to_text(before)}")
    else:
        click.echo(f"archive {done.number}: {done.rows} rows that were over before {to_text(done.before)}")
        for table, rows in done.counts.items():
            if rows:
                click.echo(f"  {rows:>6}  {table}")
        click.echo(f"  file    {done.path}\n  sha256  {done.digest}")


@cli.command(epilog="\b\nExample:\n  sovereign-agent probe")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def probe(*, as_json: bool) -> None:
    """Prove the sandbox by trying to leave it.

    A child process tries what must be impossible there, and each result is printed. Exit status 0 only when every
    experiment was refused by the operating system.
    """
    from .sandbox import Sandbox, prove

    report = prove(Sandbox.detect())
    if as_json:
        click.echo(_json(dataclasses.asdict(report)))
    else:
        click.echo(f"sandbox: {report.sandbox}, kernel: {report.kernel}")
        for experiment in report.experiments:
            click.echo(f"  {'refused' if experiment.passed else 'NOT REFUSED'}  {experiment.act}: {experiment.detail}")
        click.echo(f"process: {'ENFORCED' if report.passed else 'UNAVAILABLE'} for argv run through this sandbox")
    if not report.passed:
        raise click.exceptions.Exit(1)


@cli.command(
    epilog="\b\nExample:\n  sovereign-agent simulate --seed 7\n"
    "  sovereign-agent simulate --seed 7 --days 2 --faults crash,pause,jump --json"
)
@click.option("--seed", type=int, required=True, metavar="N", help="Determines everything that happens.")
@click.option("--hosts", type=int, default=5, show_default=True, help="How many hosts.")
@click.option("--days", type=int, default=21, show_default=True, help="Simulated days, of 240 steps each.")
@click.option(
    "--faults", default="all", show_default=True, metavar="NAMES", help="all, none, or names separated by commas."
)
@click.option("--steps", type=int, default=None, metavar="N", help="Stop after so many steps.")
@click.option("--without", default="", metavar="KINDS", help="Kinds of steps to leave out, separated by commas.")
@click.option(
    "--no-shrink", is_flag=True, help="Report a violation as it was found, without looking for a shorter run."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(
    seed: int, hosts: int, days: int, faults: str, steps: int | None, without: str, *, no_shrink: bool, as_json: bool
) -> None:
    """Run weeks of several hosts on one ledger, in seconds.

    Time is simulated; package and ledger are real. The same seed gives the same events, byte for byte. After each step
    the invariants are checked. Where one does not hold, the run ends, a shorter run that still fails is looked for, and
    the exit status is 1.
    """
    from .simulation import Setup, fault_names, shrink
    from .simulation import simulate as run

    try:
        kinds = frozenset(filter(None, without.split(",")))
        setup = Setup(seed, hosts, days, fault_names(filter(None, faults.split(","))), steps, kinds)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    report = run(setup)
    shortest = report if report.failure is None or no_shrink else shrink(report).report
    if as_json:
        facts = _facts(report)
        if shortest.failure is not None:
            facts["shortest"] = _facts(shortest)
        click.echo(_json(facts))
    else:
        _print_report(report, shortest)
    if report.failure is not None:
        raise click.exceptions.Exit(1)


def _facts(report: Report) -> dict[str, object]:
    facts = dataclasses.asdict(report)
    setup = facts["setup"]
    return {
        **facts,
        "setup": {**setup, "faults": sorted(setup["faults"]), "without": sorted(setup["without"])},
        "command": report.setup.command,
    }


def _print_report(report: Report, shortest: Report) -> None:
    """Print what happened, how often each invariant was checked, and what did not hold."""
    setup = report.setup
    click.echo(f"seed {setup.seed}, {setup.hosts} hosts, {setup.days} days, {report.steps} steps")
    for name, number in report.counts.items():
        if not name.startswith("step."):
            click.echo(f"  {number:>7}  {name}")
    click.echo("invariants, and how often each was compared")
    for name, number in report.checked.items():
        click.echo(f"  {number:>7}  {name}")
    click.echo(f"events  {report.events_digest}\ntables  {report.tables_digest}")
    if report.failure is None:
        click.echo("no violation")
        return
    for title, found in (("VIOLATED", report), ("shortest run that violates it", shortest)):
        if found.failure is not None:
            click.echo(f"{title}: seed {found.setup.seed}, step {found.failure.step}, {found.failure.invariant}")
            click.echo(f"  {found.failure.detail}\n  {found.setup.command}")


def _printable(text: str) -> str:
    """Return a text in which another client's control characters are shown and do nothing to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, default=str)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of `sovereign-agent` and leave with its exit status.

    Parameters:
        arguments: What follows the command's name; `sys.argv` when omitted.

    Raises:
        SystemExit: Always: 0 done, 1 refused, 2 wrong usage.
    """
    gc.set_threshold(10_000)  # loading modules makes many objects and hardly any garbage
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(arguments, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        path = NAME if error.ctx is None else error.ctx.command_path
        _fail(f"{error.format_message()} See '{path} --help'.", error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (Refusal, Unproved) as error:
        _fail(str(error), 1)
    except click.Abort:
        _fail("interrupted", 130)
    except BrokenPipeError:  # nobody reads the rest; click leaves with 1 as well when it meets this itself
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    """Print one line on standard error, and leave."""
    click.echo(f"{NAME}: {' '.join(message.split())}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
