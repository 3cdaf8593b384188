"""What simulated hosts do: one function for each kind of step, with the callables that the package calls back.

Each kind does what a real agent loop does with this package, and passes on to the checker what it was told. A step is
what happens between two looks of the checker. Its draws come from a generator of its own, so that leaving out other
steps changes none of them. How often a kind occurs stands in one table, `WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random

from . import automation, context, coordination, delivery, heartbeat, memory, pulse
from .errors import Category, Refusal
from .fence import SessionClaim
from .isolation import IsolationPolicy
from .ledger import Ledger
from .simulated_witness import Decision
from .simulated_world import Fault, Faulty, Host, World
from .tools import Tool, ToolCatalog

WEIGHTS = {
    "work": 20,
    "tick": 18,
    "claim": 9,
    "diary": 9,
    "send": 8,
    "compact": 6,
    "finish": 5,
    "signal": 5,
    "pulse": 5,
    "recall": 4,
    "remember": 3,
    "beat": 2,
    "renew": 2,
    "tool": 2,
    "edit": 2,
    "release": 1,
    "purge": 1,
}
"""How often a step is of which kind, in relation to the others."""

HOST_TTL = 4 * 3600
CLAIM_TTL = 3 * 3600
RUN_LEASE = 2 * 3600
SEND_LEASE = 3600
SESSION_EVERY = 3 * 3600
"""A new session begins every so many seconds; the latest eight are worked on."""
SIGNAL_EVERY = 4 * 3600
_ACTORS = ("ada", "bob", "cyd")
_WORDS = ("bolts", "nuts", "gears", "belts", "pumps", "valves", "low", "late", "spare", "broken", "ordered", "checked")


@dataclass(frozen=True, slots=True)
class Watcher:
    """The definition of one watcher."""

    name: str
    interval: int
    catch_up: str = "once"
    retry: int | None = None
    grace: int = 1800


WATCHERS = (
    Watcher("stock", 3600, retry=900),
    Watcher("audit", 6 * 3600, "skip"),
    Watcher("mail", 3 * 3600),
    Watcher("sweep", 2 * 3600, "skip", retry=0),
)

CATALOG = ToolCatalog(
    [
        Tool("read_inventory", "Read how much is in stock.", ("stock",)),
        Tool("order_parts", "Order spare parts.", ("stock", "buy")),
        Tool("Delete_Inventory", "Delete an article from stock.", ("stock",)),
        Tool("wipe_disk", "Delete everything.", ()),
    ]
)
POLICY = IsolationPolicy(
    allowed_tools={"read_inventory", "order_parts", "delete_inventory"}, denied_tools={"delete_inventory"}
)
_ALLOWED = frozenset({"read_inventory", "order_parts"})


def define(ledger: Ledger) -> None:
    """Create what every host expects to find: the watchers."""
    for watcher in WATCHERS:
        automation.create_automation(
            ledger,
            watcher.name,
            interval_seconds=watcher.interval,
            payload=watcher.name,
            max_failures=5,
            catch_up=watcher.catch_up,
            grace_seconds=watcher.grace,
            lease_seconds=RUN_LEASE,
            retry_seconds=watcher.retry,
        )


def begin(world: World, host: Host) -> None:
    """Start a host that does not run, or keep the lease of one that does."""
    ledger = host.ledger or world.start(host)
    if host.lease is not None and host.lease.expires_at - world.clock(host) > timedelta(seconds=HOST_TTL / 2):
        return
    if host.lease is not None:
        try:
            host.lease = coordination.renew_host(ledger, host.name, boot=host.lease.boot, ttl_seconds=HOST_TTL)
        except Refusal as refusal:
            told(world, refusal)
            if refusal.category is Category.LEDGER:
                return
        else:
            return
    host.lease = coordination.register_host(ledger, host.name, ttl_seconds=HOST_TTL)
    world.count("boot")


def told(world: World, refusal: Refusal) -> None:
    """Pass a refusal on to the checker, and count it."""
    world.count(f"refused.{refusal.category}")
    world.checker.told_refusal(refusal, trouble=world.trouble)


# Sessions


def _session(world: World, rng: Random) -> str:
    newest = int((world.days * 86_400) // SESSION_EVERY)
    return f"session-{max(0, newest - rng.randrange(8)):03d}"


def _held(host: Host, rng: Random) -> SessionClaim | None:
    """Return a claim that the host believes to hold: mostly the newest, sometimes one that may be stale."""
    late = rng.random() < 0.25
    pick = rng.random()
    if not host.claims:
        return None
    return host.claims[int(pick * len(host.claims))] if late else host.claims[-1]


@contextmanager
def _presenting(host: Host, held: SessionClaim, rng: Random) -> Iterator[None]:
    """Let a host that learns that its claim is stale drop it, most of the time."""
    drop = rng.random() < 0.8
    try:
        yield
    except Refusal as refusal:
        if drop and refusal.category is Category.SESSION:
            _drop(host, held)
        raise


def _drop(host: Host, held: SessionClaim) -> None:
    host.claims = [old for old in host.claims if _key(old) != _key(held)]


def _key(held: SessionClaim) -> tuple[str, int]:
    return held.session_id, held.incarnation


def claim(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Claim a session."""
    session_id = _session(world, rng)
    before = world.checker.holder(session_id)
    got = coordination.claim_session(ledger, session_id, host.name, ttl_seconds=CLAIM_TTL)
    host.claims = [*host.claims[-7:], got]
    world.count("claim")
    lease = world.now + timedelta(seconds=CLAIM_TTL)
    if before not in ("", host.name):
        world.count("takeover")
        world.mark(host, "takeover", session_id)
    world.mark(host, "claim", session_id, until=lease)


def work(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Renew a claim and append some rows under it."""
    held = _held(host, rng)
    if held is None:
        claim(world, host, ledger, rng)
        return
    extend = rng.random() < 0.4
    with _presenting(host, held, rng):
        if extend:
            held = _renew(world, host, ledger, held)
        _converse(world, ledger, held.session_id, rng, held)


def _renew(world: World, host: Host, ledger: Ledger, held: SessionClaim) -> SessionClaim:
    renewed = coordination.renew_session(ledger, held, ttl_seconds=CLAIM_TTL)
    world.mark(host, "renewal", held.session_id, until=world.now + timedelta(seconds=CLAIM_TTL))
    return renewed


def diary(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Append to the one transcript that grows all the time, without a claim."""
    _converse(world, ledger, "diary", rng, None)
    del host


def _converse(world: World, ledger: Ledger, session_id: str, rng: Random, held: SessionClaim | None) -> None:
    """Append a question now and then, a call with its results, an answer; each may be the last."""

    def append(role: str, content: str, **more: object) -> None:
        seq = context.append_message(ledger, session_id, role, content, claim=held, **more)  # type: ignore[arg-type]
        world.checker.told_appended(session_id, seq, content)
        world.count("row")

    if rng.random() < 0.15:
        append("user", _text(rng))
    calls = [f"call-{world.step}-{number}" for number in range(rng.randrange(3))]
    append("assistant", _text(rng), tool_calls=calls)
    rng.shuffle(calls)
    for call in calls:
        if rng.random() < 0.9:
            append("tool", _text(rng), tool_call_id=call)


def _text(rng: Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(2, 8)))


def finish(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Finish a session, alone or together with a memory; sometimes twice, and sometimes with another result."""
    held = _held(host, rng)
    together = rng.random() < 0.3
    again = world.happens(rng, Fault.REPEAT, 0.4)
    other = world.happens(rng, Fault.REPEAT, 0.1)
    if held is None:
        return
    result = f"{held.session_id} by {host.name}, incarnation {held.incarnation}"
    if not _finish(world, host, ledger, held, result, together=together):
        if rng.random() < 0.8:
            _drop(host, held)
    else:
        world.checker.told_finished(held, result)
        if world.checker.is_finished(held.session_id):
            world.count("finish told again")
        else:
            world.count("finish")
            world.mark(host, "finish", held.session_id)
        if again:
            refusal = None
            try:
                coordination.finish_session(ledger, held, result)
            except Refusal as error:
                refusal = error
                told(world, error)
            if refusal is None or not (world.trouble and refusal.category is Category.LEDGER):
                world.checker.told_again(held, refusal)
        if other:
            _finish(world, host, ledger, held, f"{result}, or not", together=False)
        _drop(host, held)
        if again:  # it will present it once more, later
            host.claims.insert(0, held)


def _finish(world: World, host: Host, ledger: Ledger, held: SessionClaim, result: str, *, together: bool) -> bool:
    try:
        if together:
            with coordination.fenced(ledger, held):
                memory.remember(ledger, f"note-{held.session_id}", f"{held.session_id} is done")
                coordination.finish_session(ledger, held, result)
        else:
            coordination.finish_session(ledger, held, result)
    except Refusal as refusal:
        told(world, refusal)
        if refusal.category is Category.SESSION:
            world.count("finish refused")
            world.mark(host, "finish refused", held.session_id)
            noted = getattr(refusal, "__notes__", None)
            if not noted and not together:  # together, the fence refuses before there is a result
                world.checker.told_refused(held, result)
        return False
    return True


def release(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Give a session up."""
    held = _held(host, rng)
    if held is not None:
        with _presenting(host, held, rng):
            coordination.release_session(ledger, held)
        _drop(host, held)
        world.count("release")
        world.mark(host, "release", held.session_id)


def renew(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Renew the newest claim, whether it still is one or not."""
    held = _held(host, rng)
    if held is not None:
        with _presenting(host, held, rng):
            _renew(world, host, ledger, held)
        world.count("renewal")


def purge(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Remove the rows of claims that are over and unfinished, as an operator may."""
    del host, rng
    if Fault.PURGE not in world.faults:
        return
    over = "ended IS NOT NULL AND ended <> 'FINISHED'"
    with ledger.write() as tx:
        found = tx.all(f"SELECT session_id FROM session_claims WHERE {over}")  # noqa: S608 - our own words
        world.checker.purging([row["session_id"] for row in found])
        tx.run(f"DELETE FROM session_claims WHERE {over}")  # noqa: S608
    for _ in found:
        world.count("purged")


# Watchers


def tick(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Run what is due."""
    handlers = {
        watcher.name: automation.Handler(
            partial(_condition, world, host, watcher.name, rng), partial(_payload, world, host, rng)
        )
        for watcher in WATCHERS
    }
    results: tuple[automation.AutomationResult, ...]
    if rng.random() < 0.3:
        name = rng.choice(WATCHERS).name
        results = (automation.run_due(ledger, name, handlers[name].condition, handlers[name].payload),)
    else:
        results = automation.run_all_due(ledger, handlers)
    for result in results:
        world.count(f"watcher {result.status}")


def _condition(world: World, host: Host, name: str, rng: Random, state: dict[str, object]) -> automation.WatchDecision:
    fire = rng.random() < 0.45
    other = rng.random() < 0.1
    if world.happens(rng, Fault.WATCHER, 0.03):
        world.fault(host, "condition raised")
        raise Faulty("the shelf does not answer")
    if world.happens(rng, Fault.WATCHER, 0.01):
        return None  # type: ignore[return-value]
    number = int(str(state.get("n", 0)))
    # The message depends on the state alone, so that a retry offers the same run again; sometimes it does not.
    message = f"{name} level {number}{' at once' if other else ''}" if fire else "all is well"
    version = world.checker.version_of(name)
    host.decision = world.checker.decided(Decision(name, fire, message, version))
    if world.happens(rng, Fault.WATCHER, 0.03):
        world.meanwhile(rng.randint(1, 6))
    following: dict[str, object] = {"n": number + 1, "decision": host.decision}
    if world.happens(rng, Fault.WATCHER, 0.01):
        following["n"] = float("nan")
    return automation.WatchDecision(fire, message, following)


def _payload(world: World, host: Host, rng: Random, run_id: str, message: str) -> None:
    decision = world.checker.decisions[host.decision]
    decision.attempt = (run_id, world.checker.offered(run_id))
    early, late = world.happens(rng, Fault.WATCHER, 0.08), world.happens(rng, Fault.WATCHER, 0.05)
    slow, killed = world.happens(rng, Fault.WATCHER, 0.12), world.happens(rng, Fault.CRASH, 0.03)
    length = rng.randint(2, 45)
    if early:
        world.fault(host, "payload raised")
        raise Faulty("the supplier does not answer")
    if slow:
        world.fault(host, "payload took long")
        world.meanwhile(length // 2)
        try:
            automation.renew_run(ledger_of(host), run_id)
        except Refusal as refusal:  # taken over: a careful payload stops here, this one goes on
            told(world, refusal)
        world.meanwhile(length - length // 2)
    if killed:
        host.kill()
    world.checker.effect(run_id, decision.automation_id, message)
    if rng.random() < 0.6:
        _enqueue(world, host, f"mail-{run_id}", {"run": run_id})
    if late:
        world.fault(host, "payload raised")
        raise Faulty("after the effect")


def _enqueue(world: World, host: Host, delivery_id: str, content: dict[str, object]) -> None:
    try:
        delivery.enqueue(ledger_of(host), delivery_id, content, max_attempts=6)
        world.count("enqueued")
    except Refusal as refusal:
        told(world, refusal)
        raise Faulty("could not enqueue") from None


def ledger_of(host: Host) -> Ledger:
    """Return the ledger of a running host."""
    assert host.ledger is not None  # noqa: S101 - its callables run only while it does
    return host.ledger


def edit(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Change a definition as an operator would: mostly switch on again what has switched itself off."""
    del host
    off = [found.automation_id for found in automation.list_automations(ledger) if not found.enabled]
    name = rng.choice(WATCHERS).name
    choice = rng.random()
    world.count("edit")
    if off and choice < 0.7:
        automation.enable(ledger, off[0])
    elif choice < 0.4:
        automation.update(ledger, name, max_failures=rng.randint(3, 6))
    elif choice < 0.6:
        automation.update(ledger, name, condition_state={"n": rng.randrange(100)})
    elif choice < 0.75:
        automation.disable(ledger, name)
    elif choice < 0.85:
        automation.update(ledger, "sweep", interval_seconds=rng.choice([3600, 7200, 10800]))
    else:
        ahead = timedelta(seconds=rng.randint(-3600, 8 * 3600))
        automation.update(ledger, "sweep", next_run_at=ledger.now() + ahead)


# Signals, deliveries, beats


def signal(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Record a signal; a sender may repeat it, and a faulty one changes it."""
    del host
    newest = int((world.days * 86_400) // SIGNAL_EVERY)
    back = rng.randrange(6) if world.happens(rng, Fault.REPEAT, 0.5) else 0
    number = max(0, newest - back)
    level = number % 7 + (1 if world.happens(rng, Fault.REPEAT, 0.1) else 0)
    if pulse.record_signal(ledger, f"signal-{number:03d}", "shelf", {"level": level}):
        world.count("signal")


def run_pulse(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Make one pass over the signals."""

    def gate(found: pulse.Signal) -> bool:
        if world.happens(rng, Fault.WATCHER, 0.05):
            raise Faulty("the gate is stuck")
        if world.happens(rng, Fault.WATCHER, 0.05):
            world.meanwhile(rng.randint(1, 5))
        return found.payload["level"] != 3

    def payload(run_id: str, found: pulse.Signal) -> None:
        world.checker.signal_offered(found.signal_id)
        early, slow = world.happens(rng, Fault.WATCHER, 0.15), world.happens(rng, Fault.WATCHER, 0.15)
        length, killed = rng.randint(2, 35), world.happens(rng, Fault.CRASH, 0.05)
        if early:
            raise Faulty("no answer")
        if slow:
            world.fault(host, "payload took long")
            world.meanwhile(length)
        if killed:
            host.kill()
        world.checker.signal_effect(run_id, found.signal_id)

    for result in pulse.run_pulse(ledger, gate, payload, retry_seconds=1200, lease_seconds=RUN_LEASE):
        world.count(f"pulse {result.status}")


def send(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Attempt deliveries that are due, or report one whose outcome was not reported yet."""
    if host.attempts and rng.random() < 0.5:
        delivery_id = next(iter(host.attempts))
        attempt = host.attempts.pop(delivery_id)
        if rng.random() < 0.5:
            delivery.record_delivery_success(ledger, delivery_id, attempt_id=attempt.attempt_id)
        else:
            delivery.record_delivery_failure(ledger, delivery_id, "late: no answer", attempt_id=attempt.attempt_id)
        world.count("reported late")
        return
    for found in delivery.due(ledger)[:2]:
        attempt = delivery.begin_attempt(ledger, found.delivery_id, lease_seconds=SEND_LEASE)
        fails, lost = world.happens(rng, Fault.DELIVERY, 0.3), world.happens(rng, Fault.DELIVERY, 0.15)
        permanent, told_once = rng.random() < 0.03, rng.random() < 0.9
        if lost:
            host.attempts[found.delivery_id] = attempt
        elif fails:
            delivery.record_delivery_failure(
                ledger, found.delivery_id, "no answer", attempt_id=attempt.attempt_id, permanent=permanent
            )
            world.count("delivery failed")
        else:
            for _ in range(1 if told_once else 2):
                delivery.record_delivery_success(ledger, found.delivery_id, attempt_id=attempt.attempt_id)
            world.count("delivered")


def beat(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Send a heartbeat."""
    del world, rng
    heartbeat.beat(ledger, host.name)


# Context and memory


def compact(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Compact one transcript with a summarizer that cannot be relied on."""
    session_id = "diary" if rng.random() < 0.5 else _session(world, rng)
    _compact(world, host, ledger, session_id, rng)


def _compact(world: World, host: Host, ledger: Ledger, session_id: str, rng: Random) -> None:
    def summarizer(prior: str, exchange: tuple[context.ContextItem, ...]) -> str:
        if world.happens(rng, Fault.SUMMARIZER, 0.08):
            world.fault(host, "summarizer raised")
            raise Faulty("no model")
        if world.happens(rng, Fault.SUMMARIZER, 0.08):
            world.fault(host, "empty summary")
            return rng.choice(["", " \n"])
        if world.happens(rng, Fault.SUMMARIZER, 0.15):
            _contend(world, host, session_id, rng)
            world.meanwhile(rng.randint(1, 6))
        return f"{len(prior.split())} words before, and {len(exchange)} rows up to {exchange[-1].seq}"

    try:
        stored = context.compact_one(ledger, session_id, summarizer, max_rows=rng.randint(2, 12))
    except Faulty:
        return
    if stored:
        world.count("marker")


def _contend(world: World, host: Host, session_id: str, rng: Random) -> None:
    """Let another host compact the same transcript while this one waits for its summary."""
    others = [other for other in world.hosts if other.ledger is not None and not other.busy and other is not host]
    if not others or world.depth:
        return
    other = others[rng.randrange(len(others))]
    if other.asleep_until > world.now:
        return
    world.unlock()
    world.checker.after_step()
    other.busy = True
    world.depth += 1
    try:
        _compact(world, other, ledger_of(other), session_id, rng)
    except Refusal as refusal:
        told(world, refusal)
    finally:
        world.depth -= 1
        other.busy = False
    world.checker.after_step()


def remember(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Store a memory, replace one, or forget one."""
    del host
    number = world.step if not world.happens(rng, Fault.REPEAT, 0.1) else max(0, world.step - 50)
    choice, actor, text, old = rng.random(), rng.choice((*_ACTORS, "")), _text(rng), rng.random()
    vector, model = _vector(world, rng), _model(world)
    if world.happens(rng, Fault.EMBEDDER, 0.15):
        vector = [float("nan") if rng.random() < 0.5 else float("inf"), *vector[1:]]
    known = world.checker.current_memories()
    try:
        if choice < 0.75 or not known:
            visibility = f"actor:{actor}" if actor else "public"
            memory.remember(
                ledger, f"memory-{number}", text, visibility=visibility, embedding=vector, embedding_model=model
            )
        elif choice < 0.88:
            name = known[int(old * len(known))]
            if name == f"memory-{number}":  # nothing is replaced by itself
                return
            memory.supersede(ledger, name, f"memory-{number}", text, embedding=vector, embedding_model=model)
        else:
            memory.forget(ledger, known[int(old * len(known))])
        world.count("memory")
    except ValueError as error:
        if "finite" not in str(error):
            raise
        world.count("vector refused")


def recall(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Recall what one actor may see."""
    actor, asked, vector = rng.choice(_ACTORS), _text(rng), _vector(world, rng)
    model = rng.choice([_model(world), "model-1"])
    watched, host.watched = host.watched, True
    host.statements.clear()
    hits = memory.recall(ledger, asked, actor_id=actor, query_embedding=vector, embedding_model=model)
    host.watched = watched
    world.checker.recalled(actor, host.statements, hits)
    world.checker.compared(hits, model, len(vector))
    world.count("recall")


def _model(world: World) -> str:
    """Return the name of the embedding model, which is replaced on the third day, and then has another length."""
    return "model-1" if world.days < 1.5 else "model-2"


def _vector(world: World, rng: Random) -> list[float]:
    numbers = [rng.uniform(-1, 1) for _ in range(6)]
    return numbers[:4] if world.days < 1.5 else numbers


# Tools


def tool(world: World, host: Host, ledger: Ledger, rng: Random) -> None:
    """Find a tool and ask for it, as an agent does; a confused one asks in other ways."""
    del host
    found = rng.choice(CATALOG.discover(rng.choice(["stock", "delete", "order spare parts"])).tools)
    asked: Tool | str = found
    genuine = True
    if world.happens(rng, Fault.COUNTERFEIT, 0.3):
        asked = found.name.upper()
    elif world.happens(rng, Fault.COUNTERFEIT, 0.3):
        asked, genuine = Tool(found.name, found.description, found.keywords), False
    receipt = CATALOG.authorize(asked, POLICY, ledger=ledger)
    world.checker.authorized(receipt.name, allowed=receipt.name in _ALLOWED, genuine=genuine)
    world.count("authorized")


STEPS: dict[str, Callable[[World, Host, Ledger, Random], None]] = {
    "work": work,
    "tick": tick,
    "claim": claim,
    "diary": diary,
    "send": send,
    "compact": compact,
    "finish": finish,
    "signal": signal,
    "pulse": run_pulse,
    "recall": recall,
    "remember": remember,
    "beat": beat,
    "renew": renew,
    "tool": tool,
    "edit": edit,
    "release": release,
    "purge": purge,
}
"""What each kind of step does."""
