"""Every job that waits has one reason in words, and what is suggested does what it says: over generated states."""

import re
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Prepare, Revoke, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import (
    AttemptEnded,
    AttemptStarted,
    EndCause,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
    Prepared,
    Solved,
    Woke,
)
from scheduler.core.explain.feasibility import Remedy, possible_remedies, without_failing
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.core.rules import RoundRules
from scheduler.core.state.ledger import JobRecord
from scheduler.forecast.core_copy import CoreSnapshot, snapshot_at_once
from scheduler.forecast.what_if import ChangeQuestion, change_events, verified_changes
from walras.cluster import Pool, PoolId, Shape
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState

_POLICIES = ("fifo", "srtf", "las", "max_min_fairness", "walras")


def _core(policy: str, chance: Random) -> SchedulerCore:
    """Some machines of two types, and more jobs than they hold."""
    core, at = SchedulerCore(), 0.0
    tell = _Teller(core)
    tell(PolicyChanged(at, PolicySpec(policy), RoundRules(round_s=60.0, resolve_min_s=1.0)))
    for name in ("a", "b"):
        size = chance.choice((1, 2, 4, 8))
        tell(PoolDeclared(at, Pool(PoolId(name), Shape(f"{name}x", name, size, 64.0, 1 << 40))))
        for number in range(chance.randint(1, 4)):
            tell(NodeJoined(at, f"{name}{number}", PoolId(name)))  # type: ignore[arg-type]
    for number in range(1, chance.randint(8, 25)):
        at += chance.expovariate(1 / 30.0)
        types = chance.sample(("a", "b"), chance.randint(1, 2))
        demands = tuple(Demand(each, chance.choice((1, 1, 2, 4, 8))) for each in types)
        steps = chance.lognormvariate(7.0, 1.5) if chance.random() < 0.7 else None
        job = JobRequest(
            job_id=JobId(number), kind=Kind(chance.choice("xyz")), demands=demands, steps=steps, project="p",
            user=chance.choice(("ada", "bob")), priority=chance.choice((20, 50, 50, 80)), held=chance.random() < 0.05,
            preemptible=chance.random() < 0.8, not_before_at=at + 900.0 if chance.random() < 0.05 else 0.0,
            depends_on=(JobId(number - 1),) if number > 1 and chance.random() < 0.05 else (),
        )  # fmt: skip
        tell(JobSubmitted(at, job))
    return core


class _Teller:
    """Carries out what the core asks for at once."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def __call__(self, event: object) -> None:
        for command in self._core.handle(event):  # type: ignore[arg-type]
            at = self._core.ledger.now
            if isinstance(command, Start):
                self(AttemptStarted(at, command.job_id, command.attempt))
            elif isinstance(command, Prepare):
                for part in command.placement.parts:
                    self(Prepared(at, command.job_id, command.attempt, part.node_id, "x", 1))
            elif isinstance(command, Revoke):
                self(AttemptEnded(at, command.job_id, command.attempt, EndCause.EXITED, exit_code=EXIT_CHECKPOINTED))
            elif isinstance(command, Solve):
                self(Solved(at, command.request_id, run_solve(command)))


def _states(
    many: int, first: int = 0, policies: tuple[str, ...] = _POLICIES
) -> Iterator[tuple[SchedulerCore, CoreSnapshot]]:
    for seed in range(first, first + many):
        core = _core(policies[seed % len(policies)], Random(seed))
        yield core, snapshot_at_once(core, core.ledger.now)


def _check_reasons(core: SchedulerCore) -> int:
    """Every job that does not run has a sentence, which names jobs that are there, or a constraint."""
    waiting = 0
    for job in core.ledger:
        said = dominant_reason(core, job.job_id)
        assert bool(said) == (job.state not in (JobState.RUNNING, JobState.STARTING)), (job, said)
        assert "accelerator-seconds" not in said
        assert not re.search(r"worth|price|share \d", said), said
        lists = re.findall(r"jobs? ([\d, and]+)", re.sub(r"and \d+ more", "", said))
        named = {JobId(int(each)) for numbers in lists for each in re.findall(r"\d+", numbers)}
        assert named <= set(core.ledger.jobs), said
        assert job.job_id not in named, said
        if job.state is JobState.PENDING and ("go" in said or "hold" in said):
            assert named, said
        waiting += bool(said)
    return waiting


def test_each_waiting_job_is_told_its_place_in_the_order_of_the_queue_once() -> None:
    """There is one order, which listings show; a job that waits for something else than a place is told none."""
    for core, _ in _states(20):
        order = {job_id: [str(ahead)] for ahead, job_id in enumerate(core.cycle.queues.in_order(len(core.ledger.jobs)))}
        for job in core.ledger:
            said = "; ".join(each.detail for each in pending_reasons(core, job.job_id))
            told = order.get(job.job_id, []) if ": needs " in said else []
            assert re.findall(r"(\d+) ahead", said) == told, said


def test_no_waiting_job_is_without_a_reason_that_names_somebody() -> None:
    assert sum(_check_reasons(core) for core, _ in _states(20)) > 60


def _follow(core: SchedulerCore, job: JobRecord, remedy: Remedy) -> bool:
    """Whether the job itself, not a copy, starts within a round once a person has done it."""
    tell, at, anew = _Teller(core), core.ledger.now, JobId(max(core.ledger.jobs) + 1)
    for event in change_events(job.request, remedy, at, anew):
        tell(event)
    tell(Woke(at + 60.0))
    followed = core.ledger.jobs.get(anew if remedy.demands else job.job_id)
    return followed is not None and followed.holds


def _suggested(states: Iterable[tuple[SchedulerCore, CoreSnapshot]]) -> tuple[int, int, int]:
    """How much looked as if it would help, was told, and started the job as said: one change for each state."""
    looked = told = kept = 0
    for core, snapshot in states:
        before = {job.job_id: (job.state, job.attempt) for job in core.ledger}
        for job in [job for job in core.ledger if job.state is JobState.PENDING]:
            looks = {each.text: each for each in possible_remedies(core, job)}
            looked += len(looks)
            changes = verified_changes(ChangeQuestion(snapshot, job.job_id, tuple(looks.values())))
            assert {job.job_id: (job.state, job.attempt) for job in core.ledger} == before
            if changes:
                told += 1
                kept += _follow(core, job, looks[changes[0]])
                break
    return looked, told, kept


def test_what_is_suggested_starts_the_job_as_said() -> None:
    looked, told, kept = _suggested(_states(14))
    assert looked > told >= 5
    assert kept == told


@pytest.mark.slow
def test_of_many_suggestions_at_least_nineteen_in_twenty_are_kept() -> None:
    """Not under max-min fairness, where jobs take turns and a drawn future is not the real one: 92 % with it."""
    without_turns = tuple(each for each in _POLICIES if each != "max_min_fairness")
    looked, told, kept = _suggested(_states(200, 1000, without_turns))
    assert looked > told >= 60
    assert kept >= 0.95 * told


def test_what_does_not_help_is_left_out_of_the_fix() -> None:
    fix = "one that helps; or one that does not; or ask an operator"
    looks = {"one that helps", "one that does not"}
    assert without_failing(fix, looks, {"one that helps"}) == "one that helps; or ask an operator"
    assert without_failing(fix, looks, ()) == "ask an operator"
    assert without_failing("", looks, ()) == ""
