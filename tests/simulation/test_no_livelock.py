"""Nothing goes on for ever at one instant: a round of decisions comes to rest before time passes."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command
from scheduler.core.events import Event
from scheduler.core.rules import Backfill, RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits, RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, SimulationResult, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("k")
URGENT, ORDINARY = 90, 50
#: Commands by which one accelerator changes hands: one is asked to go and leaves, the other starts and is up.
EXCHANGE = 10
#: Every policy with parameters that make it as restless as it can be on jobs of a minute.
PARAMETERS: dict[str, dict[str, object]] = {
    "walras": {"stay": 0.0, "slowdown": 1.0, "margin": 0.0}, "max_min_fairness": {}, "isolated": {},
    "fifo": {"strict": False}, "las": {"quantum_s": 5.0}, "srtf": {"margin": 0.0}, "srsf": {"margin": 0.0}, "edf": {},
    "priority": {}, "tiresias": {"thresholds_s": [5.0, 20.0, 60.0], "promote": 1.0},
}  # fmt: skip
POLICIES = tuple(PARAMETERS)


class Busiest:
    """Counts what is commanded at each instant, and gives up where it never ends."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found = 0
        self._at = -inf
        self._here = 0

    def __call__(self, event: Event, commands: list[Command]) -> None:
        self._here = self._here + len(commands) if event.at == self._at else len(commands)
        self._at = event.at
        self.found = max(self.found, self._here)
        assert self._here <= self.most, f"{self._here} commands at {event.at}; the newest: {commands}"


def job(number: int, at: float, gang: int, steps: float, priority: int = ORDINARY, nodes: int = 1) -> SimulatedJob:
    request = JobRequest(
        JobId(number), KIND, demands=(Demand("a100", gang),), nodes=nodes, priority=priority, steps=steps,
        project=f"p{gang}",
    )  # fmt: skip
    return SimulatedJob(at, request, steps)


def run(jobs: list[SimulatedJob], scenario: Scenario) -> tuple[SimulationResult, int]:
    """The result, and the most commands given at one instant (bounded by what so many jobs can need)."""
    accelerators = sum(model.machines * model.pool.shape.accelerators for model in scenario.pools)
    # A place can change hands a few times at an instant (free costs), each for a handful of commands; not for ever.
    busiest = Busiest(40 * (len(jobs) + accelerators))
    return simulate(jobs, scenario, recorder=busiest), busiest.found


def scenario(policy: str, machines: int, size: int, costs: AttemptCosts, **rules: object) -> Scenario:
    pool = Pool(PoolId("a"), Shape("a", "a100", size, 64.0, 2**40))
    given_rules: dict[str, object] = {
        "round_s": 20.0, "resolve_min_s": 5.0, "min_runtime_s": 5.0, "profiling_s": 5.0, "restart_default_s": 2.0,
        **rules,
    }  # fmt: skip
    return Scenario(
        (PoolModel(pool, machines),),
        GroundTruth({SpeedKey(KIND, "a100"): 1.0}, {}, costs),
        PolicySpec(policy, PARAMETERS[policy]),
        RoundRules(**given_rules),  # type: ignore[arg-type]
        limits=RunLimits(until_at=20_000.0, max_events=50_000),
    )


@pytest.mark.parametrize("costs", [AttemptCosts(), AttemptCosts(2.0, 1.0)], ids=["free", "costly"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_due_reservation_and_urgent_single_jobs_do_not_chase_each_other(policy: str, costs: AttemptCosts) -> None:
    """A gang that has reserved its place, and a stream of short jobs of a higher class that want the same place."""
    jobs = [job(1, 0.0, 1, 60.0), job(2, 0.0, 1, 90.0), job(3, 1.0, 4, 100.0, nodes=2)]
    jobs += [job(4 + n, 5.0 + 7.0 * n, 1, 20.0, URGENT) for n in range(40)]
    result, busiest = run(jobs, scenario(policy, machines=2, size=2, costs=costs))
    assert result.outcome is RunOutcome.COMPLETE, result.outcome
    assert not result.violations
    assert busiest <= 4 * EXCHANGE + 2  # every accelerator changes hands once; a solve and a wake-up besides


@given(
    policy=st.sampled_from(POLICIES),
    machines=st.integers(1, 3),
    size=st.integers(1, 3),
    costs=st.sampled_from([AttemptCosts(), AttemptCosts(1.0), AttemptCosts(2.0, 1.0, 10.0)]),
    backfill=st.sampled_from([Backfill.EASY, Backfill.FREE, Backfill.NONE]),
    min_runtime_s=st.sampled_from([0.0, 5.0]),
    round_s=st.sampled_from([0.0, 20.0]),
    rows=st.lists(
        st.tuples(
            st.integers(0, 40), st.integers(1, 6), st.integers(1, 80), st.sampled_from([10, ORDINARY, URGENT]),
            st.booleans(),
        ),
        min_size=2,
        max_size=12,
    ),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_instant_comes_to_rest_and_every_job_ends(
    policy: str,
    machines: int,
    size: int,
    costs: AttemptCosts,
    backfill: Backfill,
    min_runtime_s: float,
    round_s: float,
    rows: list[tuple[int, int, int, int, bool]],
) -> None:
    """Whatever classes, gangs and rules meet on a small cluster."""
    jobs = []
    for number, (at, gang, steps, priority, spread) in enumerate(sorted(rows), 1):
        gang = min(gang, machines * size)
        nodes = machines if spread and gang % machines == 0 else 1
        if nodes == 1 and gang > size:
            nodes = -(-gang // size)
            gang = nodes * (gang // nodes)
        jobs.append(job(number, float(at), gang, float(steps), priority, nodes))
    rules = {"backfill": backfill, "min_runtime_s": min_runtime_s, "round_s": round_s}
    result, _ = run(jobs, scenario(policy, machines, size, costs, **rules))
    assert result.outcome is RunOutcome.COMPLETE, result.outcome
    assert not result.violations
