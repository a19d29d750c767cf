"""Promises of the round mechanism, each as a run of the real core and the real policy in virtual time."""

from dataclasses import replace

import pytest
from fake_fleet import cluster, job, pool
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.commands import Command, JobTransitioned, Revoke, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.solve_requests import integral_gang_bound, run_solve
from scheduler.core.events import Event, Proposal
from scheduler.core.explain.share_standing import realised_fraction
from scheduler.core.rules import Backfill, RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits, RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, SchedulerWiring, Simulation, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import ANY_ACCELERATOR, Demand, JobId, JobRequest, Kind
from walras.states import JobState

KIND = Kind("k")
RESTART_S = 10.0
RULES = RoundRules(round_s=60, resolve_min_s=60, min_runtime_s=60, profiling_share=0)


def scenario(machines: int, size: int, until_at: float = 1e9) -> Scenario:
    """One pool of identical machines, speeds known, restarts of 10 s."""
    model = PoolModel(pool("a", size), machines)
    truth = GroundTruth({SpeedKey(KIND, "a"): 1.0}, {KIND: AttemptCosts(RESTART_S - 2.0, 2.0)})
    return Scenario(
        (model,), truth, PolicySpec("max_min_fairness"), RULES, WorldParameters(), limits=RunLimits(until_at=until_at)
    )


def test_answers_are_applied_at_nearly_the_possible_rate() -> None:
    """With arrivals every 0.3 solve times for an hour, answers are applied at >= 0.9 of one per solve time."""
    solve_s = 6.0
    fleet = cluster("max_min_fairness", rules=RoundRules(resolve_min_s=0, profiling_share=0), machines="aaaa")
    answered, answer_at, next_at, number = 0, float("inf"), 0.0, 0
    while next_at < 3600.0:
        if answer_at <= next_at:
            fleet.at = answer_at
            fleet.answer({})
            answered += 1
            answer_at = float("inf")
        else:
            fleet.at = next_at
            number += 1
            fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a")))
            if number > 12 and JobId(number - 12) in fleet.attempts:
                fleet.end(JobId(number - 12))
            next_at += 0.3 * solve_s
        if fleet.solves and answer_at == float("inf"):
            answer_at = fleet.at + solve_s
    assert answered >= 0.9 * 3600.0 / solve_s


def test_gang_in_a_stream_of_single_jobs_starts_within_its_bound() -> None:
    """A gang of 8 among single jobs that never leave a place free starts within the bound of the round mechanism.

    Eight accelerators; n single jobs of 300 s are active while the gang waits. Max-min shares count accelerators, so
    the gang is owed 8/(n + 1) accelerator-seconds per second. It may displace the eight that run once it is owed
    h * 8 * (restart + restart) more than each of them. A single job that is owed more than h * (restart + restart) is
    let in at the next round, so those that run are owed no more than that and a round. Then an incumbent may have its
    minimum run to finish, a round has to end, and the eight have to checkpoint.
    """
    stream = [SimulatedJob(max(0.0, 42.0 * (i - 16)), job(i + 1, "a", steps=300.0), 300.0) for i in range(90)]
    gang = SimulatedJob(1000.0, job(1000, "a", 8, steps=300.0), 300.0)
    active, most_active, started_at = 0, 0, float("inf")

    def watch(event: ev.Event, commands: list[Command]) -> None:
        nonlocal active, most_active, started_at
        active += isinstance(event, ev.JobSubmitted)
        active -= sum(isinstance(c, JobTransitioned) and c.state.is_final for c in commands)
        if 1000.0 <= event.at < started_at:
            most_active = max(most_active, active)
            if any(isinstance(c, Start) and c.job_id == 1000 for c in commands):
                started_at = event.at

    workload = sorted([*stream, gang], key=lambda planned: planned.at)
    result = simulate(workload, scenario(machines=1, size=8), recorder=watch)
    exchange_s = RULES.hysteresis * 2 * RESTART_S
    owed_s = 8 * exchange_s + exchange_s + RULES.round_s
    bound_s = owed_s * most_active / 8 + RULES.min_runtime_s + RULES.round_s + RESTART_S
    assert not result.unfinished
    assert most_active > 8  # nobody left a place free
    assert started_at - 1000.0 <= bound_s


def test_preemptions_under_a_constant_workload_settle() -> None:
    """Constant jobs and machines: at most one preemption per job and min_runtime, and restarts cost <= 1/(1 + h)."""
    jobs = [SimulatedJob(0.0, job(i, "a", steps=1e6), 1e6) for i in range(1, 13)]
    revokes = 0
    ended: list[JobState] = []

    def watch(_: ev.Event, commands: list[Command]) -> None:
        nonlocal revokes
        revokes += sum(isinstance(c, Revoke) for c in commands)
        ended.extend(c.state for c in commands if isinstance(c, JobTransitioned) and c.state.is_final)

    hours = 10
    result = Simulation(scenario(machines=8, size=1, until_at=hours * 3600.0)).run(jobs, watch)
    assert not ended
    delivered_s = sum(meter.held_s for meter in result.pools)
    overhead_s = revokes * RESTART_S
    assert overhead_s <= delivered_s / (1 + RULES.hysteresis)
    assert revokes <= delivered_s / RULES.min_runtime_s
    # Everybody got its two thirds of a machine, within what the mechanism may still owe.
    ran = [measure.running_s for measure in result.unfinished]
    assert min(ran) >= 0.8 * max(ran)


def test_a_workload_that_fits_is_never_preempted() -> None:
    """With a place for everybody nothing moves."""
    jobs = [SimulatedJob(5.0 * i, job(i, "a", steps=5000.0), 5000.0) for i in range(1, 9)]
    revokes: list[Revoke] = []

    def watch(_: ev.Event, commands: list[Command]) -> None:
        revokes.extend(c for c in commands if isinstance(c, Revoke))

    result = simulate(jobs, scenario(machines=8, size=1), recorder=watch)
    assert len(result.jobs) == 8
    assert not revokes


def test_jobs_that_cannot_checkpoint_take_turns_once_and_then_run_to_their_end() -> None:
    """A job whose work is lost when it is stopped is stopped at most once by its equals: all of them finish."""
    jobs = [SimulatedJob(0.0, job(i, "a", steps=600.0), 600.0) for i in range(1, 5)]
    base = scenario(machines=1, size=1, until_at=1e5)
    truth = GroundTruth(base.truth.speeds, {KIND: AttemptCosts(RESTART_S, None)})
    result = simulate(jobs, replace(base, truth=truth))
    assert len(result.jobs) == 4
    assert max(measure.preemptions for measure in result.jobs) <= 1


def run(gangs: list[int], accelerators: int, until_s: float) -> SchedulerCore:
    """Endless jobs on one machine under max-min fairness, rounds of 60 s, free restarts."""
    return run_asking(gangs, accelerators, until_s)[0]


def run_asking(gangs: list[int], accelerators: int, until_s: float) -> tuple[SchedulerCore, list[Solve]]:
    """The same, with the questions to the policy."""
    asked: list[Solve] = []

    def answered(command: Solve) -> Proposal:
        asked.append(command)
        return run_solve(command)

    jobs = [
        SimulatedJob(0.0, JobRequest(JobId(row + 1), KIND, demands=(Demand("a100", gang),), steps=1e9), 1e9)
        for row, gang in enumerate(gangs)
    ]
    scenario = Scenario(
        (PoolModel(Pool(PoolId("a"), Shape("a", "a100", accelerators, 64.0, 2**40)), 1),),
        GroundTruth({SpeedKey(KIND, "a100"): 1.0}, {}, AttemptCosts(0.0)),
        PolicySpec("max_min_fairness"),
        RoundRules(round_s=60.0, restart_default_s=0.0, min_runtime_s=0.0),
        limits=RunLimits(until_s),
        wiring=SchedulerWiring(solver=answered),
    )
    core = SchedulerCore()
    Simulation(scenario, core=core).run(jobs)
    return core, asked


def test_two_gangs_of_three_on_four_accelerators_realise_three_quarters():
    """The solve is exact and every accelerator is spoken for, but one gang runs at a time: more cannot be had."""
    core, asked = run_asking([3, 3], 4, 3 * 3600.0)
    proposal = core.ledger.policy.proposal
    assert proposal.gap < 1e-6
    assert proposal.counts == (3, 3)
    assert sum(count * share for count, share in zip(proposal.counts, proposal.shares, strict=True)) == pytest.approx(4)
    assert realised_fraction(core.ledger) == pytest.approx(0.75, abs=0.03)
    assert integral_gang_bound(asked[-1]) == pytest.approx(0.75 * proposal.bound)


def test_gangs_that_fill_the_machine_realise_what_is_promised():
    """Two gangs of two on four accelerators run all the time."""
    assert realised_fraction(run([2, 2], 4, 3600.0).ledger) == pytest.approx(1.0, abs=1e-6)


def test_a_gang_that_has_reserved_the_incumbents_machine_still_takes_its_turn():
    """Both endless gangs run for about half of the time: a reservation is no reason to wait for what never ends."""
    core = run([3, 3], 4, 3 * 3600.0)
    assert all(core.ledger.columns.attained_s[job.slot] > 0.4 * 3 * 3 * 3600.0 for job in core.ledger)


def test_nothing_promised_nothing_realised():
    """Without jobs there is nothing to be a part of."""
    assert realised_fraction(run([], 4, 60.0).ledger) is None


@pytest.mark.parametrize("policy", ["isolated", "max_min_fairness"])
def test_jobs_that_take_turns_and_move_cause_no_solves(policy: str) -> None:
    """Jobs that move come back for places that they claimed: a solve for an arrival or an end, not for each turn."""
    kind, jobs, rules = Kind("k"), 9, RoundRules(round_s=30, resolve_min_s=5, min_runtime_s=20, restart_default_s=2)
    pools = tuple(PoolModel(Pool(PoolId(name), Shape(name, name, 2, 64.0, 2**40)), 1) for name in ("a100", "v100"))
    truth = GroundTruth({SpeedKey(kind, "a100"): 2.0, SpeedKey(kind, "v100"): 1.0}, {}, AttemptCosts(1.0, 1.0))
    rows = [
        SimulatedJob(0.0, JobRequest(JobId(number), kind, demands=(Demand(ANY_ACCELERATOR, 1),), steps=1000.0), 1000.0)
        for number in range(1, jobs + 1)
    ]
    solves, revoked = 0, 0

    def count(_: Event, commands: list[Command]) -> None:
        nonlocal solves, revoked
        solves += sum(isinstance(command, Solve) for command in commands)
        revoked += sum(isinstance(command, Revoke) for command in commands)

    result = simulate(rows, Scenario(pools, truth, PolicySpec(policy), rules), recorder=count)
    assert result.outcome is RunOutcome.COMPLETE
    assert revoked > 5 * jobs, "they take turns"
    assert solves <= 2 * jobs + 3


def head_starts_at(rows: list[tuple[int, int]], size: int, start_s: float, backfill: Backfill, head: int) -> float:
    """When the head's ranks were up."""
    jobs = [
        SimulatedJob(
            float(at),
            JobRequest(JobId(at + 1), KIND, demands=(Demand("a100", gang),), steps=float(steps)),
            float(steps),
        )
        for at, (gang, steps) in enumerate(rows)
    ]
    scenario = Scenario(
        (PoolModel(Pool(PoolId("a"), Shape("a", "a100", size, 64.0, 2**40)), 1),),
        GroundTruth({SpeedKey(KIND, "a100"): 1.0}, {}, AttemptCosts(start_s)),
        PolicySpec("fifo", {"strict": False}),
        RoundRules(backfill=backfill),
    )
    result = simulate(jobs, scenario)
    assert result.outcome is RunOutcome.COMPLETE
    return next(job.first_run_at for job in result.jobs if job.job_id == head)


@given(
    size=st.integers(2, 5),
    start_s=st.sampled_from([0.0, 3.0]),
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60)), min_size=3, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_backfill_never_delays_the_first_that_has_to_wait(
    size: int, start_s: float, rows: list[tuple[int, int]]
) -> None:
    """The first job that cannot start at once starts under EASY no later than if nobody might pass it."""
    rows = [(min(gang, size), steps) for gang, steps in rows]
    for head in range(1, len(rows) + 1):
        plain = head_starts_at(rows, size, start_s, Backfill.NONE, head)
        if plain > head - 1 + start_s:  # it arrives at second head - 1
            assert head_starts_at(rows, size, start_s, Backfill.EASY, head) <= plain + 1e-6
            return
