"""Shares are fluid, gangs are whole: what really ran is told beside the solve's gap."""

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.solve_requests import integral_gang_bound, run_solve
from scheduler.core.events import Proposal
from scheduler.core.explain.share_standing import realised_fraction
from scheduler.core.rules import RoundRules
from simulator.engine import RunLimits
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, SchedulerWiring, Simulation
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("k")


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
