"""What is tolerated of lag: who waits falls behind those who run by no more than was said, and starts become few."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fake_fleet import cluster, job, pool
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.commands import Command, Start
from scheduler.core.ordering.share_ordering import ShareOrdering
from scheduler.core.rules import RoundRules
from scheduler.core.state.job_columns import JobColumns
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation
from walras.job_request import JobId, Kind
from walras.states import JobState

KIND = Kind("k")
RESTART_S = 10.0
#: A job that others stopped more often may be kept in its place.
STOPS_MAX = 6
#: Rounds that one may wait besides: a place is asked for at a round's end, what is owed is reckoned at such ends, and
#: an incumbent, or another job with more to claim, may have just come.
ROUNDS = 4


def rules_of(part: float) -> RoundRules:
    return RoundRules(round_s=60, resolve_min_s=60, min_runtime_s=60, profiling_share=0, tolerated_lag=part)


def scenario(machines: int, rules: RoundRules, until_at: float) -> Scenario:
    """One pool of machines of one accelerator, speeds known, restarts of 10 s."""
    truth = GroundTruth({SpeedKey(KIND, "a"): 1.0}, {KIND: AttemptCosts(RESTART_S - 2.0, 2.0)})
    return Scenario(
        (PoolModel(pool("a", 1), machines),), truth, PolicySpec("max_min_fairness"), rules, WorldParameters(),
        limits=RunLimits(until_at=until_at),
    )  # fmt: skip


def exceeded_s(ledger: Ledger, rules: RoundRules) -> float:
    """By how much the worst lag of a waiting job behind one that runs is above its bound; accelerator-seconds."""
    columns, worst = ledger.columns, -np.inf
    ran_s = rules.min_runtime_s + ROUNDS * rules.round_s
    running = [each for each in ledger if _displaceable(ledger, each) and ledger.now - each.running_at >= ran_s]
    for waiting in (each for each in ledger if each.waits):
        slot = waiting.slot
        tolerated_s = min(rules.tolerated_lag * columns.attained_s[slot], rules.owed_limit_s / 2)
        bound_s = tolerated_s + rules.hysteresis * 2 * RESTART_S + ROUNDS * rules.round_s + 1.0
        for there in running:
            worst = max(worst, columns.owed[slot, 0] - columns.owed[there.slot, 0] - bound_s)
    return float(worst)


def _displaceable(ledger: Ledger, record: JobRecord) -> bool:
    may_be_kept = record.attempt > STOPS_MAX and ledger.policy.rules.tolerated_lag > 0
    return record.state is JobState.RUNNING and record.revoked is None and not may_be_kept


@settings(max_examples=12, deadline=None)
@given(
    jobs=st.integers(2, 9), machines=st.integers(1, 4), part=st.sampled_from([0.0, 0.01, 0.05, 0.2, 1.0]),
    gap_s=st.sampled_from([0.0, 700.0]),
)  # fmt: skip
def test_nobody_who_waits_lags_by_more_than_is_tolerated(jobs: int, machines: int, part: float, gap_s: float) -> None:
    """At every instant of five hours: tolerated lag, the cost of the exchange and four rounds, and no more.

    Behind a job that was stopped more than six times one may lag for longer, but not where turns are strict.
    """
    rules = rules_of(part)
    simulation = Simulation(scenario(machines, rules, until_at=18_000.0))
    worst = -np.inf

    def watch(_: ev.Event, __: list[Command]) -> None:
        nonlocal worst
        worst = max(worst, exceeded_s(simulation.core.ledger, rules))

    work = [SimulatedJob(number * gap_s, job(number + 1, "a", steps=1e6), 1e6) for number in range(jobs)]
    simulation.run(work, watch)
    assert worst <= 0.0


def starts_of(part: float, hours: int) -> dict[int, int]:
    """Starts by job: six long jobs that share two accelerators."""
    starts: dict[int, int] = {}

    def watch(_: ev.Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                starts[command.job_id] = starts.get(command.job_id, 0) + 1

    jobs = [SimulatedJob(0.0, job(number, "a", steps=1e6), 1e6) for number in range(1, 7)]
    rules = RoundRules(
        round_s=60, resolve_min_s=60, min_runtime_s=60, profiling_share=0, tolerated_lag=part, owed_limit_rounds=1e4
    )
    Simulation(scenario(2, rules, hours * 3600.0)).run(jobs, watch)
    return starts


def test_starts_are_logarithmic_in_the_length_of_a_job() -> None:
    """Turns grow with what was received: as many starts again in twice the time."""
    tolerant = [max(starts_of(0.2, hours).values()) for hours in (4, 8, 16)]
    added = [later - earlier for earlier, later in pairwise(tolerant)]
    assert max(added) <= 6  # each start is of a fifth more than was received: log(2) / log(1.2) = 3.8, and rounds
    strict = [max(starts_of(0.0, hours).values()) for hours in (4, 8)]
    assert strict[1] - strict[0] > 5 * max(added)  # one start in so many rounds, for ever


# ------------------------------------------------------------------------------------------------ who outweighs whom

seconds = st.floats(0.0, 1e5, allow_nan=False)


def ledger_of(owed: list[float], received: list[float], running: int) -> Ledger:
    """Equals, each entitled to a part of one pool; the first `running` of them have its accelerators."""
    fleet = cluster("max_min_fairness", rules=RoundRules(profiling_share=0), machines="c" * running)
    for number in range(len(owed)):
        fleet.tell(ev.JobSubmitted(0.0, job(number + 1, "c")))
        if JobId(number + 1) in fleet.attempts:
            fleet.tell(ev.AttemptStarted(0.0, JobId(number + 1), fleet.attempts[JobId(number + 1)].number))
    ledger = fleet.core.ledger
    ledger.now = 1000.0
    for record, owed_s, received_s in zip(ledger, owed, received, strict=True):
        ledger.columns.owed[record.slot, :] = owed_s
        ledger.columns.attained_s[record.slot] = received_s
        ledger.columns.settled_at[record.slot] = ledger.now
        ledger.columns.entitled[record.slot, :] = 0.5
    return ledger


def displaced(ledger: Ledger, part: float, pool_row: int) -> dict[JobId, set[JobId]]:
    """By waiting job: those that it outweighs."""
    discipline = ShareOrdering(ledger, RoundRules(tolerated_lag=part))
    there = discipline.incumbents(pool_row, 100)
    return {each.job_id: {weak.job_id for weak in there.weaker_than(each)} for each in ledger if each.waits}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3600.0, 3600.0), seconds), min_size=3, max_size=8), st.floats(0, 1), st.floats(0, 1)
)
def test_more_tolerance_never_lets_anybody_take_another_place(
    rows: list[tuple[float, float]], one: float, other: float
) -> None:
    """Whom a job may displace with a larger tolerated part, it may displace with less; with 0 received, as with 0."""
    owed, received = [row[0] for row in rows], [row[1] for row in rows]
    ledger = ledger_of(owed, received, running=2)
    row = next(state.row for state in ledger.fleet.pools if state.capacity)
    strict, tolerant = displaced(ledger, min(one, other), row), displaced(ledger, max(one, other), row)
    assert all(tolerant[job_id] <= strict[job_id] for job_id in strict)
    ledger.columns.attained_s[:] = 0.0
    assert displaced(ledger, 1.0, row) == displaced(ledger, 0.0, row)


@pytest.mark.parametrize("advantage_s", [239.0, 240.0, 241.0])
def test_with_a_part_of_nothing_only_the_exchange_counts(advantage_s: float) -> None:
    """Part 0: owed against owed, whatever either has received; hysteresis 2 and two restarts of 60 s."""
    ledger = ledger_of([0.0, 0.0, advantage_s], [7e4, 100.0, 9e4], running=2)
    row = next(state.row for state in ledger.fleet.pools if state.capacity)
    assert displaced(ledger, 0.0, row)[JobId(3)] == ({JobId(1), JobId(2)} if advantage_s >= 240.0 else set())
    assert displaced(ledger, 0.01, row)[JobId(3)] == set()  # 900 s are tolerated after 25 hours


# ------------------------------------------------------------------------------------------------ lines


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3600.0, 3600.0), seconds, st.integers(1, 3)), min_size=3, max_size=40),
    st.floats(0, 1),
)
def test_lines_are_the_keys_of_those_who_wait(rows: list[tuple[float, float, int]], part: float) -> None:
    """What a round sorts in columns is what each job by itself would be put in line with, in order."""
    ledger = ledger_of([row[0] for row in rows], [row[1] for row in rows], running=2)
    for record, (*_, turn) in zip(ledger, rows, strict=True):
        if turn == 1 and record.waits:
            ledger.columns.entitled[record.slot, :] = 0.0
        record.request = replace(record.request, priority=(10, 50, 90)[turn - 1])
        ledger.columns.priority_class[record.slot] = record.request.priority_class
    discipline, lines = ShareOrdering(ledger, RoundRules(tolerated_lag=part)), JobQueues(ledger)
    lines.clear()
    discipline.fill_queues(lines)
    expected: dict[int, list[tuple[QueueKey, JobId]]] = {}
    for record in (each for each in ledger if each.waits):
        for pool_row, key in discipline.keys(record):
            expected.setdefault(pool_row, []).append((key, record.job_id))
    found = {row: [entry for _, line in lines.of(row) for entry in line.first(99)] for row in expected}
    assert found == {row: sorted(entries) for row, entries in expected.items()}


@given(st.lists(st.integers(1, 9), max_size=12), st.sets(st.integers(0, 11)))
def test_slots_are_those_of_active_jobs(wanted: list[int], gone: set[int]) -> None:
    """-1 for a job that is none any more, though its row still holds its number."""
    columns = JobColumns()
    slots = {number: columns.new_slot() for number in (7, 2, 9, 4)}
    for number, slot in slots.items():
        columns.job_id[slot], columns.active[slot] = number, number not in gone
    expected = [slots[number] if number in slots and number not in gone else -1 for number in wanted]
    assert columns.slots_of(np.array(wanted, np.int64)).tolist() == expected


@given(st.floats(0.0, 1e4), st.floats(1.0, 1e3), st.booleans())
def test_what_is_settled_twice_at_one_instant_is_settled_once(passed_s: float, limit_s: float, first: bool) -> None:
    """A round's end, the problem and the answer all settle: nothing is added or forgotten again, the limit holds."""
    ledger, once = (ledger_of([500.0, -500.0, 90.0], [1e3, 0.0, 5.0], running=2) for _ in range(2))
    at = ledger.now + passed_s
    ledger.columns.settle_all(at, limit_s if first else np.inf)
    ledger.columns.settle_all(at, limit_s)
    once.columns.settle_all(at, limit_s)
    assert np.array_equal(ledger.columns.owed, once.columns.owed)
    assert np.array_equal(ledger.columns.attained_s, once.columns.attained_s)
    if first:
        assert np.array_equal(ledger.columns.delivered, once.columns.delivered)
