"""Jobs that state a menu of plans: accelerators of several types with a speed each, chosen by price."""

from dataclasses import dataclass, field

import pytest

from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.policy import PolicySpec
from optimizer.registry import make
from scheduler.core.commands import Command, Solve, Start
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.reports.baselines import JobBaselines
from simulator.simulation import Scenario, Simulation, SimulationResult
from tests.simulation import test_random_runs
from tests.support.core_invariants import check_invariants
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, GangPlan, JobId, JobRequest, Kind
from walras.states import JobState

RULES = RoundRules(round_s=60.0, restart_default_s=20.0, min_runtime_s=60.0, resolve_min_s=0.0)
SMALL = Kind("small")
TRUTH = GroundTruth(
    {SpeedKey(SMALL, "a100", 4): 4.0, SpeedKey(SMALL, "v100", 4): 1.0}, default_costs=AttemptCosts(10.0, 5.0)
)


def plan(steps_per_s: float, **counts: int) -> GangPlan:
    return GangPlan(tuple(Demand(name, counts[name]) for name in sorted(counts)), steps_per_s)


#: Eight A100 alone, eight with eight V100, or the V100 with half of the A100.
MENU = (plan(8.0, a100=8), plan(11.0, a100=8, v100=8), plan(7.0, a100=4, v100=8))


def model(number: int, steps: float, at: float = 0.0, plans: tuple[GangPlan, ...] = MENU) -> SimulatedJob:
    alone = [each.uses[0] for each in plans if len(each.uses) == 1]
    demands = tuple({use.accelerator: use for use in reversed(alone)}.values())
    request = JobRequest(JobId(number), Kind("model"), demands=demands, steps=steps, plans=plans)
    return SimulatedJob(at, request, steps)


def small(number: int, steps: float, at: float = 0.0) -> SimulatedJob:
    demands = (Demand("a100", 4), Demand("v100", 4))
    return SimulatedJob(at, JobRequest(JobId(number), SMALL, demands=demands, steps=steps), steps)


@dataclass
class Story:
    """A run on eight A100 and eight V100, four to a machine."""

    policy: str = "walras"
    starts: dict[int, list[tuple[float, dict[str, int]]]] = field(default_factory=dict)
    solves: list[Solve] = field(default_factory=list)

    def run(self, *jobs: SimulatedJob) -> SimulationResult:
        pools = [
            PoolModel(Pool(PoolId(name), Shape(name, name, 4, 8.0, 2**33, speed)), machines=2)
            for name, speed in (("a100", 4.0), ("v100", 1.0))
        ]
        core = test_random_runs.CheckedCore()
        scenario = Scenario(tuple(pools), TRUTH, PolicySpec(self.policy), RULES)
        baselines = JobBaselines(pools, TRUTH)
        result = Simulation(scenario, core=core).run(baselines.recorded(jobs), self._hear)
        check_invariants(core)
        assert not result.violations
        assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
        for job in result.jobs:
            assert job.ended_at - job.submitted_at >= baselines.alone_s(job.job_id)
        return result

    def _hear(self, event: Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                held = {str(pool): count for pool, count in command.placement.by_pool.items()}
                self.starts.setdefault(command.job_id, []).append((event.at, held))
            elif isinstance(command, Solve):
                self.solves.append(command)


def test_a_lone_job_runs_on_its_fastest_plan_at_the_speed_it_states() -> None:
    """Nothing else wants the machines: all of them, 10 s to start and 1,100 steps at 11 a second."""
    story = Story()
    result = story.run(model(1, 1100.0))
    assert [held for _, held in story.starts[1]] == [{"a100": 8, "v100": 8}]
    assert result.jobs[0].ended_at == pytest.approx(110.0)


def test_the_plan_that_pays_at_the_prices_leaves_the_scarce_type_to_others() -> None:
    """Beside a job that is four times as fast on A100, it takes the plan with half of them, and all when that ends."""
    story = Story()
    story.run(model(1, 8000.0), small(2, 800.0, at=1.0))  # long enough that two restarts are within a twentieth of it
    assert [held for _, held in story.starts[1]] == [
        {"a100": 8, "v100": 8}, {"a100": 4, "v100": 8}, {"a100": 8, "v100": 8},
    ]  # fmt: skip
    assert [held for _, held in story.starts[2]] == [{"a100": 4}]


def test_several_models_compete_and_every_plan_is_within_its_bound() -> None:
    """Three menus and four small jobs: each attempt is one of its plans, and no answer exceeds what it proves."""
    other = (plan(3.0, a100=4), plan(2.5, v100=8), plan(5.0, a100=4, v100=4))
    jobs = [model(1, 3000.0), model(2, 1500.0, 30.0, other), model(3, 900.0, 90.0, other)]
    story = Story()
    everybody = [*jobs, *(small(4 + row, 400.0, 20.0 * row) for row in range(4))]
    story.run(*sorted(everybody, key=lambda job: job.at))
    for job in jobs:
        for _, held in story.starts[job.request.job_id]:
            assert job.request.plan_of(held) is not None
    taken = {tuple(held) for job in jobs for _, held in story.starts[job.request.job_id]}
    assert len(taken) > 1
    gaps = []
    for solve in story.solves:
        decision, _, _ = answer_problem(make(solve.policy), solve.problem, solve.memory, solve.delay_usd_per_h)
        assert isinstance(decision, Plan)
        assert not check_decision(solve.problem, solve.policy, decision, solve.memory).complaints
        if decision.yardstick is not None:
            assert decision.yardstick.objective <= decision.yardstick.bound * (1 + 1e-9)
            gaps.append(decision.yardstick.gap)
    assert len(gaps) > 5


def test_without_a_policy_that_chooses_it_runs_as_its_first_plan_of_one_type() -> None:
    """Order policies do not weigh mixtures: the job has the gang that they would give it."""
    for policy in ("fifo", "max_min_fairness", "hadar"):
        story = Story(policy)
        result = story.run(model(1, 800.0))
        assert [held for _, held in story.starts[1]] == [{"a100": 8}], policy
        assert result.jobs[0].ended_at == pytest.approx(110.0)
