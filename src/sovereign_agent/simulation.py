"""Simulation: weeks of several hosts on one real ledger, in seconds, with faults, the same for the same seed.

Time is simulated, the package and the ledger are real. A step is a function of the seed and its number, so leaving out
a fault or a kind of step changes no draw of another step, and a violation can be cut down to a short run that still
fails. It shows what it checks (see `invariants`) under what it simulates (see `simulated_world`), and no more: one
machine, one process, one statement at a time, and an SQLite that keeps what it committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from .errors import Refusal, shown
from .ids import SeededIds
from .invariants import Invariant
from .ledger import Ledger
from .simulated_checker import Checker
from .simulated_work import STEPS, WEIGHTS, begin, define, told
from .simulated_world import MAX_SKEW_SECONDS, START, Crash, Fault, Host, Mark, World, hash_of

STEPS_A_DAY = 240
"""One step every six minutes, by any of the hosts."""
MAX_DAYS = 366
MAX_HOSTS = 26
FULL_CHECK_EVERY = 200
"""Steps after which everything is checked instead of what has changed."""
_MOST_REPLAYS = 60


@dataclass(frozen=True, slots=True)
class Setup:
    """What determines a run, down to the last byte.

    Raises:
        TypeError: A number is no whole number.
        ValueError: A number is out of range, or a fault or a kind of step has no such name.
    """

    seed: int
    hosts: int = 5
    days: int = 21
    faults: frozenset[Fault] = frozenset(Fault)
    steps: int | None = None
    """Stop after so many steps; all of the days when omitted."""
    without: frozenset[str] = frozenset()
    """Kinds of steps that are left out."""

    def __post_init__(self) -> None:
        bounds = {"seed": (0, 2**63), "hosts": (1, MAX_HOSTS), "days": (1, MAX_DAYS)}
        if self.steps is not None:
            bounds["steps"] = (0, MAX_DAYS * STEPS_A_DAY)
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {shown(value)}")
            if not least <= value <= most:
                raise ValueError(f"{name} must lie between {least} and {most}: {shown(value)}")
        object.__setattr__(self, "faults", fault_names(self.faults))
        unknown = sorted(set(self.without) - set(WEIGHTS))
        if unknown:
            raise ValueError(f"without must name kinds of steps ({', '.join(WEIGHTS)}): {', '.join(unknown)}")

    @property
    def planned(self) -> int:
        """How many steps the run has."""
        whole = self.days * STEPS_A_DAY
        return whole if self.steps is None else min(self.steps, whole)

    @property
    def command(self) -> str:
        """The command that runs it again."""
        parts = [f"sovereign-agent simulate --seed {self.seed} --hosts {self.hosts} --days {self.days}"]
        names = ",".join(fault for fault in Fault if fault in self.faults)
        parts.append(f"--faults {'all' if self.faults == frozenset(Fault) else names or 'none'}")
        if self.steps is not None:
            parts.append(f"--steps {self.steps}")
        if self.without:
            parts.append(f"--without {','.join(kind for kind in WEIGHTS if kind in self.without)}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Failure:
    """An invariant that did not hold, and when that was found."""

    invariant: Invariant
    detail: str
    step: int
    """How many steps had been made."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to."""

    setup: Setup
    steps: int
    """Steps made."""
    events_digest: str
    """SHA-256 of the events."""
    tables_digest: str
    """SHA-256 of every row of every table."""
    counts: dict[str, int]
    """How often what happened."""
    checked: dict[str, int]
    """How often each invariant was compared with something."""
    marks: tuple[Mark, ...]
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A short run that still breaks the same invariant."""

    report: Report
    replays: int
    """How many runs it took to find it."""


def fault_names(faults: Iterable[str]) -> frozenset[Fault]:
    """Return faults by their names; `all` and `none` mean what they say.

    Raises:
        ValueError: There is no such fault.
    """
    found: set[Fault] = set()
    for name in faults:
        if name == "all":
            found |= set(Fault)
        elif name != "none":
            if name not in list(Fault):
                raise ValueError(f"faults must be all, none, or of {', '.join(Fault)}: {shown(name)}")
            found.add(Fault(name))
    return frozenset(found)


def simulate(setup: Setup, *, root: Path | None = None) -> Report:
    """Run it.

    Parameters:
        setup: Seed, hosts, days and faults.
        root: An empty directory, in which the ledger stays; a temporary one when omitted.

    Returns:
        What happened, and the first violation, at which the run ends.

    Raises:
        Refusal: `category="ledger"`: the directory cannot hold a ledger.
    """
    if root is None:
        with TemporaryDirectory(prefix="sovereign-agent-simulation-", ignore_cleanup_errors=True) as folder:
            return simulate(setup, root=Path(folder))
    with Ledger.open(
        root,
        clock=lambda: START,
        ids=SeededIds(setup.seed),
        actor="operator",
        max_clock_skew_seconds=MAX_SKEW_SECONDS,
    ) as ledger:
        define(ledger)
    checker = Checker(root)
    draw = Random(hash_of(setup.seed, "hosts"))  # noqa: S311 - repeatable on purpose
    skews = [draw.uniform(-MAX_SKEW_SECONDS / 2, MAX_SKEW_SECONDS / 2) for _ in range(setup.hosts)]
    if Fault.SKEW not in setup.faults:
        skews = [0.0] * setup.hosts
    hosts = [Host(f"host-{chr(97 + number)}", timedelta(seconds=skew)) for number, skew in enumerate(skews)]
    world = World(root, setup.seed, setup.faults, hosts, checker)
    world.advance = lambda: _step(world, setup)
    try:
        while world.advance():
            pass
        checker.check_all()
        found = checker.violation
        return Report(
            setup,
            world.step,
            *checker.digests(),
            dict(sorted(world.counts.items())),
            {str(name): checker.checked[name] for name in Invariant},
            tuple(world.marks),
            None if found is None else Failure(found.invariant, found.detail, world.step),
        )
    finally:
        world.close()
        checker.close()


def shrink(report: Report) -> Shrunk:
    """Cut a failing run down: the shortest prefix that still fails, without faults and steps that it does not need.

    Parameters:
        report: A run that failed.

    Returns:
        The shortest run found that breaks the same invariant.

    Raises:
        ValueError: The run did not fail.
    """
    if report.failure is None:
        raise ValueError("the report must be of a run that failed")
    search = _Search(report, report.failure.invariant)
    setup = search.shortest_prefix(replace(report.setup, steps=report.failure.step))
    for fault in Fault:
        if fault in setup.faults:
            setup = search.better(setup, replace(setup, faults=setup.faults - {fault}))
    for kind in WEIGHTS:
        setup = search.better(setup, replace(setup, without=setup.without | {kind}))
    search.shortest_prefix(setup)
    return Shrunk(search.best, search.replays)


@dataclass(slots=True)
class _Search:
    """A search for a short run that breaks one invariant."""

    best: Report
    wanted: Invariant
    replays: int = 0

    def fails(self, setup: Setup) -> bool:
        self.replays += 1
        report = simulate(setup)
        found = report.failure is not None and report.failure.invariant is self.wanted
        if found:
            self.best = report
        return found

    def better(self, setup: Setup, smaller: Setup) -> Setup:
        """Return the smaller one if it still fails."""
        return smaller if self.replays < _MOST_REPLAYS and self.fails(smaller) else setup

    def shortest_prefix(self, setup: Setup) -> Setup:
        """Return the shortest prefix that fails, by bisection: the one before it passes."""
        passes, broken = 0, setup.planned
        if not self.fails(replace(setup, steps=broken)):
            raise AssertionError("the same run, run again, differs")
        while broken - passes > 1 and self.replays < _MOST_REPLAYS:
            middle = (passes + broken) // 2
            if self.fails(replace(setup, steps=middle)):
                broken = middle
            else:
                passes = middle
        return replace(setup, steps=broken)


# One step

_KINDS = tuple(WEIGHTS)
_CUMULATIVE = tuple(accumulate(WEIGHTS.values()))


def _step(world: World, setup: Setup) -> bool:
    """Make the next step; False when there is none, or something is violated."""
    number = world.step
    if number >= setup.planned or world.checker.violation is not None:
        return False
    world.step += 1
    rng = Random(f"{setup.seed}/{number}")  # noqa: S311 - repeatable on purpose
    at = START + timedelta(seconds=(number + rng.random()) * 86_400 / STEPS_A_DAY)
    world.now = max(world.now, at)
    host = world.hosts[rng.randrange(len(world.hosts))]
    kind = rng.choices(_KINDS, cum_weights=_CUMULATIVE)[0]
    if kind in setup.without:
        return True
    if host.busy or host.asleep_until > world.now:
        world.count("asleep or busy")
        return True
    outer, world.trouble = world.trouble, False
    host.busy = True
    try:
        _inject(world, host, rng)
        _work(world, host, kind, rng)
    finally:
        host.busy = False
        world.calm(host)
        world.trouble = outer
    if world.step % FULL_CHECK_EVERY == 0:
        world.checker.check_all()
    else:
        world.checker.after_step()
    return True


def _work(world: World, host: Host, kind: str, rng: Random) -> None:
    """Do the work of one step; a host that ends there starts again later."""
    try:
        begin(world, host)
        if host.asleep_until <= world.now and host.ledger is not None:
            STEPS[kind](world, host, host.ledger, rng)
            world.count(f"step.{kind}")
    except Crash:
        hours = rng.uniform(0, 6)
        world.end(host)
        host.lease = None
        host.asleep_until = world.now + timedelta(hours=hours)
        world.fault(host, "crash", until=host.asleep_until)
    except Refusal as refusal:
        told(world, refusal)
    except Exception as error:
        world.checker.told_error(error)


def _inject(world: World, host: Host, rng: Random) -> None:
    """Let one thing or another go wrong in this step."""
    statements, waits, after = rng.randint(1, 40), rng.randint(1, 8), rng.random() < 0.5
    hours, ahead = rng.uniform(1, 14), rng.uniform(-48, 48)
    if world.happens(rng, Fault.CRASH, 0.03):
        host.watched, host.fuse, host.after = True, statements, after
    if world.happens(rng, Fault.PAUSE, 0.008):
        host.asleep_until = world.now + timedelta(hours=hours)
        world.fault(host, "pause", until=host.asleep_until)
    if world.happens(rng, Fault.JUMP, 0.003):
        host.jump, host.jumps_until = timedelta(hours=ahead), world.now + timedelta(hours=hours)
        world.fault(host, "clock jump", until=host.jumps_until)
    if world.happens(rng, Fault.RESTART, 0.006):
        host.lease = None  # begin() registers it again; what it held in memory stays
        world.fault(host, "restart")
    if world.happens(rng, Fault.DISK, 0.02):
        world.fill_disk(host)
        world.fault(host, "disk full")
    if world.happens(rng, Fault.LOCK, 0.02):
        world.lock_after(host, waits)
        world.fault(host, "locked")
