"""Verdicts: what a run of pytest shows, judged from its reports alone.

A test is `PASSED` only if every case of it ran its call phase and every phase of every case passed; a mutation is
`KILLED` only by a judgement of the test. Pure functions over `testrun.Run`; nothing here runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from bookproof.testrun import Report, Run

_WRONG_KINDS = ("ImportError", "SyntaxError", "NameError", "AttributeError")
_NO_RUN = (3, 4)  # pytest's exit codes for an internal error and for options that it does not know


class TestVerdict(StrEnum):
    """What a run showed about one cited test; with several cases, the worst of them."""

    __test__ = False  # pytest would collect the class for its name

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    """Failed, as the test itself expects."""
    XPASSED = "xpassed"
    """Passed, against the test's own expectation."""
    DESELECTED = "deselected"
    """Left out by the project's own options."""
    ERROR = "error"
    """A fixture failed, or the file could not be collected."""
    NOT_COLLECTED = "not collected"
    """pytest does not know it."""
    NOT_RUN = "not run"
    """Known, and without a verdict for the reason given."""


class MutationVerdict(StrEnum):
    """What a mutation showed about its test."""

    KILLED = "killed"
    """The test passed before and failed after, by its own judgement."""
    SURVIVED = "survived"
    """The test passed on the changed code too."""
    BROKEN = "broken"
    """The test did not pass on the changed code, but in a way that proves nothing."""
    INVALID = "invalid"
    """The mutation cannot be applied, or its test does not pass on the untouched code."""
    TIMEOUT = "timeout"
    """The test did not end on the changed code."""


_WORST_FIRST = (
    TestVerdict.ERROR,
    TestVerdict.FAILED,
    TestVerdict.XPASSED,
    TestVerdict.XFAILED,
    TestVerdict.SKIPPED,
    TestVerdict.NOT_RUN,
    TestVerdict.DESELECTED,
)


@dataclass(frozen=True, slots=True)
class TestResult:
    """One cited test in one run."""

    __test__ = False

    test: str
    """The node id, as cited."""
    verdict: TestVerdict
    reason: str = ""
    """Why it is not `PASSED`; empty where it is."""
    cases: int = 0
    """How many cases it stands for."""


def covers(test: str, case: str) -> bool:
    """Tell whether citing `test` (a test, a case, a class or a file) speaks of this case."""
    return case == test or case.startswith((test + "[", test + "::"))


def judge_test(run: Run, test: str) -> TestResult:
    """Return what a run shows about one test.

    Parameters:
        run: What happened.
        test: Node id of a test, a parametrised case, a class or a file.
    """
    cases = [case for case, _, _ in run.collected if covers(test, case)]
    if not cases:
        verdict, reason = _uncollected(run, test)
        return TestResult(test, verdict, reason)
    judged = [_judge_case(run, case) for case in cases]
    for wanted in _WORST_FIRST:
        reasons = [reason for verdict, reason in judged if verdict is wanted]
        if reasons:
            return TestResult(test, wanted, reasons[0], len(cases))
    return TestResult(test, TestVerdict.PASSED, "", len(cases))


def _judge_case(run: Run, case: str) -> tuple[TestVerdict, str]:
    if case in run.deselected:
        return TestVerdict.DESELECTED, f"{case} is deselected by the project's options"
    reports = [report for report in run.reports if report.case == case]
    for report in reports:
        said = first_line(report.text) or report.reason
        if report.xfail:
            failed = report.outcome == "skipped"
            return (TestVerdict.XFAILED if failed else TestVerdict.XPASSED), said
        if report.outcome == "failed":
            return (TestVerdict.FAILED if report.when == "call" else TestVerdict.ERROR), f"{report.when}: {said}"
        if report.outcome == "skipped":
            return TestVerdict.SKIPPED, report.reason
    if {"call", "teardown"} <= {report.when for report in reports}:
        return TestVerdict.PASSED, ""
    return TestVerdict.NOT_RUN, _why_the_run_ended(run) or f"{case} did not run"


def _uncollected(run: Run, test: str) -> tuple[TestVerdict, str]:
    for node, text in run.broken.items():
        if covers(node, test):
            return TestVerdict.ERROR, f"{node} could not be collected: {first_line(text)}"
    for node, text in run.skipped_files.items():
        if covers(node, test):
            return TestVerdict.SKIPPED, text
    ended = _why_the_run_ended(run)
    if ended:
        return TestVerdict.NOT_RUN, ended
    refused = why_pytest_refused(run)
    if refused and "not found" not in refused:
        return TestVerdict.NOT_RUN, refused
    return TestVerdict.NOT_COLLECTED, f"there is no test {test}"


def why_pytest_refused(run: Run) -> str:
    """Return why pytest did not even collect; empty where it did."""
    if run.exit_code not in _NO_RUN:
        return ""
    return "pytest could not run: " + last_line(
        "\n".join(line for line in run.output.splitlines() if "error" in line.lower()) or run.output
    )


def _why_the_run_ended(run: Run) -> str:
    if run.timed_out:
        return "the time ran out" + (f" during {run.running}" if run.running else "")
    if run.exit_code is None:
        return "the process ended" + (f" during {run.running}" if run.running else f": {last_line(run.output)}")
    return ""


def why_not_passed(run: Run, test: str) -> str:
    """Return why a run does not count as a pass of the test; empty where it does.

    Parameters:
        run: What happened, in a process that ran this test only.
        test: The node id.
    """
    result = judge_test(run, test)
    if result.verdict is not TestVerdict.PASSED:
        return result.reason if result.verdict is TestVerdict.NOT_COLLECTED else f"{result.verdict}: {result.reason}"
    return next(_foreign(run), "")


def _foreign(run: Run) -> Iterator[str]:
    for name, place in run.foreign.items():
        yield f"{name} was loaded from {place}, not from the copy"


def judge_mutation(run: Run, test: str) -> tuple[MutationVerdict, str, Report | None]:
    """Return what a run on changed code shows: the verdict, the reason unless it was killed, the failing report.

    Parameters:
        run: What happened, in a process that ran this test only.
        test: The node id; it passes on the untouched code.
    """
    failed = [report for report in run.reports if report.outcome == "failed"]
    for report in failed:
        wrong = _proves_nothing(report)
        if wrong:
            return MutationVerdict.BROKEN, f"{report.case} {wrong}: {first_line(report.text)}", report
    for foreign in _foreign(run):
        return MutationVerdict.INVALID, foreign, None
    for name, text in run.unimportable.items():
        return MutationVerdict.BROKEN, f"{name} can no longer be imported: {text}", None
    if run.timed_out:
        return MutationVerdict.TIMEOUT, _why_the_run_ended(run), None
    if failed and run.exit_code is not None:
        return MutationVerdict.KILLED, "", failed[0]
    reason = why_not_passed(run, test)
    if reason:
        return MutationVerdict.BROKEN, reason, None
    return MutationVerdict.SURVIVED, f"{test} passes on the changed code too", None


def _proves_nothing(report: Report) -> str:
    """Return why a failure says nothing about the test's own judgement; empty where it does say something."""
    if report.when != "call":
        return f"failed in its {report.when}, not in its call"
    kind = next((kind for kind in _WRONG_KINDS if kind in report.errors), "")
    return f"failed through {kind}" if kind else "is expected to fail" if report.xfail else ""


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    return first_line("\n".join(reversed(text.splitlines())))


def normalise(text: str, places: Mapping[str, str]) -> str:
    """Replace what differs from run to run: temporary paths, addresses, random ids, and times of about now.

    Parameters:
        text: What a test printed.
        places: Path to what stands for it; a path that contains another comes first.
    """
    for place, name in places.items():
        text = text.replace(place, name)
    text = re.sub(r"(?<=\bat )0x[0-9a-f]{6,16}\b", "<address>", text)
    text = re.sub(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "<uuid>", text)
    today = datetime.now(UTC).date()
    # Only a clock's answer changes from build to build; a time that the test itself names stays readable.
    for day in (today - timedelta(days=1), today, today + timedelta(days=1)):
        text = re.sub(rf"{day}[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>", text)
    return text
