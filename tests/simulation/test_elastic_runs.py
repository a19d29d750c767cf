"""Elastic jobs: a policy chooses among their sizes, and what a change costs is a restart."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Revoke, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import Event, JobRestored, JobSubmitted, NodeJoined, PolicyChanged, PoolDeclared, Solved
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation, SimulationResult
from tests.simulation import test_random_runs
from tests.support.core_invariants import check_invariants
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState, Reason

KIND, POOL = Kind("k"), PoolId("p")
RULES = RoundRules(round_s=60.0, restart_default_s=20.0, min_runtime_s=60.0, resolve_min_s=30.0)
#: Twice the gang is 1.74 times as fast; a restart costs 10 s to start and 5 s to save.
TRUTH = GroundTruth({SpeedKey(KIND, "a100", n): n**0.8 for n in range(1, 17)}, default_costs=AttemptCosts(10.0, 5.0))


def a_job(
    number: int, steps: float, at: float = 0.0, *, sizes: tuple[int, ...] = (1, 2, 4, 8), asked: int = 4
) -> SimulatedJob:
    request = JobRequest(JobId(number), KIND, demands=(Demand("a100", asked),), steps=steps, sizes=sizes)
    return SimulatedJob(at, request, steps)


@dataclass
class Story:
    """A run on two machines of four accelerators, its starts and its stops."""

    policy: str
    jobs: Iterable[SimulatedJob]
    rules: RoundRules = RULES
    starts: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    stops: dict[int, list[Reason]] = field(default_factory=dict)

    def run(self) -> SimulationResult:
        pool = PoolModel(Pool(POOL, Shape("s", "a100", 4, 8.0, 2**33)), machines=2)
        core = test_random_runs.CheckedCore()
        scenario = Scenario((pool,), TRUTH, PolicySpec(self.policy), self.rules)
        result = Simulation(scenario, core=core).run(self.jobs, self._hear)
        check_invariants(core)
        assert not result.violations
        assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
        return result

    def _hear(self, event: Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                start = (event.at, command.placement.accelerators)
                self.starts.setdefault(command.job_id, []).append(start)
            elif isinstance(command, Revoke):
                self.stops.setdefault(command.job_id, []).append(command.reason)


@pytest.mark.parametrize("policy", ["elasticflow", "optimus", "pollux", "shockwave", "sia", "walras"])
def test_a_lone_job_grows_and_makes_room_for_others(policy: str) -> None:
    """It has the whole fleet in the end, and less while another is there."""
    story = Story(policy, [a_job(1, 8000.0), a_job(2, 1000.0, at=500.0)])
    story.run()
    sizes = [size for _, size in story.starts[1]]
    assert max(sizes) == sizes[-1] == 8
    assert story.starts[2]


@pytest.mark.parametrize("policy", ["walras", "max_min_fairness", "makespan"])
def test_a_lone_job_takes_the_largest_gang_and_makes_room_for_others(policy: str) -> None:
    """It shrinks for others and grows again; every change is a stop and a start."""
    story = Story(policy, [a_job(1, 6000.0), a_job(2, 1000.0, at=200.0)])
    result = story.run()
    sizes = [size for _, size in story.starts[1]]
    assert sizes[0] == 8
    assert sizes[1] < 8
    assert max(sizes[2:]) == 8
    assert len(story.stops[1]) == len(sizes) - 1
    first = next(job for job in result.jobs if job.job_id == 1)
    assert first.overhead_s == pytest.approx(10.0 * len(sizes) + 5.0 * (len(sizes) - 1))
    assert all(later[0] - earlier[0] >= 60.0 for earlier, later in pairwise(story.starts[1]))


def test_a_policy_that_does_not_choose_runs_an_elastic_job_as_it_asked() -> None:
    """An order has no word for sizes."""
    story = Story("fifo", [a_job(1, 1000.0), a_job(2, 1000.0)])
    story.run()
    assert list(story.starts.values()) == [[(0.0, 4)], [(0.0, 4)]]


def test_a_job_whose_gang_fits_nowhere_starts_smaller_and_grows() -> None:
    """What is free is used meanwhile; growing waits until it pays for the restart."""
    rigid = a_job(1, 4.0**0.8 * 2000.0, sizes=(), asked=4)
    two = a_job(2, 2.0**0.8 * 600.0, sizes=(), asked=2)
    story = Story("max_min_fairness", [rigid, two, a_job(3, 4000.0, at=1.0, sizes=(1, 2, 4), asked=4)])
    story.run()
    assert [size for _, size in story.starts[3]][:2] == [2, 4]
    assert story.starts[3][0][0] == 1.0
    assert story.stops[3][0] is Reason.POLICY_MOVED


@pytest.mark.parametrize(
    ("policy", "part"),
    [("walras", 0.8), *((policy, 1.0) for policy in ("elasticflow", "optimus", "pollux", "shockwave", "sia"))],
)
def test_elastic_jobs_are_through_sooner_than_the_same_jobs_when_rigid(policy: str, part: float) -> None:
    """On a load that comes and goes."""
    jobs = [a_job(number, 1500.0, at=400.0 * number) for number in range(1, 9)]
    rigid = [replace(job, request=replace(job.request, sizes=())) for job in jobs]
    jcts = [sum(job.jct_s for job in Story(policy, each).run().jobs) / len(jobs) for each in (jobs, rigid)]
    assert jcts[0] < part * jcts[1]


# ---------------------------------------------------------------------------------------------- the core by itself


def _core(*jobs: JobRequest, policy: str = "max_min_fairness") -> tuple[SchedulerCore, list[Command]]:
    core = SchedulerCore()
    core.handle(PolicyChanged(0.0, PolicySpec(policy), RULES))
    core.handle(PoolDeclared(0.0, Pool(POOL, Shape("s", "a100", 4, 8.0, 2**33))))
    for node in ("one", "two"):
        core.handle(NodeJoined(0.0, NodeId(node), POOL, ""))
    said: list[Command] = []
    for job in jobs:
        said.extend(core.handle(JobSubmitted(1.0, job)))
    return core, said


def test_a_problem_has_a_column_for_every_size_that_can_be_had() -> None:
    """On every pool, ascending; only the size that it has counts as running; gang is the smallest."""
    elastic, rigid = a_job(1, 100.0, sizes=(1, 2, 4, 8, 16)).request, a_job(2, 100.0, sizes=(), asked=2).request
    core, _ = _core(elastic, rigid)
    problem = build_problem(core.ledger)
    assert problem.columns.job.tolist() == [0, 0, 0, 0, 1]
    assert problem.columns.use_count.tolist() == [1.0, 2.0, 4.0, 8.0, 2.0]  # sixteen are more than there are
    assert problem.columns.running.sum() == sum(job.holds for job in core.ledger)
    assert problem.jobs.gang.tolist() == [1.0, 2.0]


def test_a_question_after_a_restart_knows_the_size_a_job_runs_with() -> None:
    """A job that is restored with two of the four accelerators it asked for runs as one of two."""
    core = _core()[0]
    request = a_job(1, 100.0).request
    placement = Placement(POOL, (NodeShare(NodeId("one"), (0, 1)),))
    restored = JobRestored(2.0, request, submitted_at=0.0, state=JobState.RUNNING, attempt=3, placement=placement)
    core.handle(replace(restored, leased_at=1.0, running_at=1.5))
    job = core.ledger.jobs[JobId(1)]
    assert core.ledger.is_resized(job)
    assert core.ledger.rate_of(job) == core.ledger.table.speed(KIND, "a100", 2, {}).steps_per_s
    assert build_problem(core.ledger).columns.running.tolist() == [False, True, False, False]
    check_invariants(core)


def test_a_new_policy_begins_with_what_jobs_asked_for() -> None:
    """What the old one chose is not a wish of the job."""
    core, said = _core(a_job(1, 1e6).request)
    ask = next(command for command in said if isinstance(command, Solve))
    said.extend(core.handle(Solved(1.0, ask.request_id, run_solve(ask))))
    job = core.ledger.jobs[JobId(1)]
    assert core.ledger.count_on(job, 0) == 8
    core.handle(PolicyChanged(2.0, PolicySpec("fifo"), RULES))
    assert core.ledger.count_on(job, 0) == 4
    assert [command for command in said if isinstance(command, Revoke)] == []  # it runs on as it is


def test_a_gang_that_fits_no_machine_starts_smaller() -> None:
    """Two jobs of three that may not be stopped leave one accelerator on each machine: a plan gives the third job both,
    and it has one.
    """
    rigid = [a_job(number, 4000.0, sizes=(), asked=3) for number in (1, 2)]
    rigid = [replace(job, request=replace(job.request, preemptible=False)) for job in rigid]
    story = Story("walras", [*rigid, a_job(3, 4000.0, at=100.0)])
    story.run()
    assert story.starts[3][0] == (pytest.approx(100.0, abs=35.0), 1)
