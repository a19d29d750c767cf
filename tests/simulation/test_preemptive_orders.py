"""Orders that preempt: who gets a place, who gives it up, and what that costs, in runs of the real core."""

from collections.abc import Sequence
from random import Random

import pytest
from fake_fleet import job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.commands import Command, Revoke
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits, RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.metrics import JobMetrics
from simulator.simulation import Scenario, Simulation
from walras.job_request import JobId, Kind

KIND = Kind("k")
RESTART_S = 10.0
RULES = RoundRules(round_s=30, min_runtime_s=20)
LOW, NORMAL = 10, 50

Row = tuple[float, float, int]


def jobs_of(rows: Sequence[Row], **more: Sequence[object]) -> list[SimulatedJob]:
    """(arrival, seconds, gang) of each job, numbered from 1 in order of arrival; `more`: a field for each."""
    jobs = []
    for number, (at, seconds, gang) in enumerate(rows, 1):
        fields = {name: values[number - 1] for name, values in more.items()}
        jobs.append(SimulatedJob(at, job(number, "a", gang, steps=seconds, **fields), seconds))
    return jobs


class Run:
    """What came of a workload on one pool of speed 1."""

    def __init__(
        self,
        policy: str,
        jobs: Sequence[SimulatedJob],
        *,
        machines: int = 1,
        size: int = 2,
        rules: RoundRules = RULES,
        **parameters: object,
    ) -> None:
        truth = GroundTruth({SpeedKey(KIND, "a"): 1.0}, {KIND: AttemptCosts(RESTART_S - 2.0, 2.0)})
        scenario = Scenario(
            (PoolModel(pool("a", size), machines),), truth, PolicySpec(policy, parameters), rules, WorldParameters(),
            limits=RunLimits(until_at=1e7, max_events=200_000),
        )  # fmt: skip
        self.revoked: list[tuple[float, int]] = []
        self.result = Simulation(scenario).run(jobs, self._watch)
        assert self.result.outcome is RunOutcome.COMPLETE
        assert not self.result.violations
        assert not self.result.unfinished
        self.by_id: dict[int, JobMetrics] = {measure.job_id: measure for measure in self.result.jobs}

    def _watch(self, event: ev.Event, commands: list[Command]) -> None:
        self.revoked += [(event.at, command.job_id) for command in commands if isinstance(command, Revoke)]

    def ended_at(self, number: int) -> float:
        return self.by_id[number].ended_at

    @property
    def mean_jct_s(self) -> float:
        return sum(m.ended_at - m.submitted_at for m in self.result.jobs) / len(self.result.jobs)

    @property
    def victims(self) -> list[int]:
        return [number for _, number in self.revoked]


def random_rows(seed: int, count: int = 60) -> list[Row]:
    """Heavy-tailed lengths, gangs of 1, 2 and 4, arriving somewhat faster than eight accelerators can serve."""
    random, at, rows = Random(f"{seed}/orders"), 0.0, []
    for _ in range(count):
        rows.append((at, min(20_000.0, 60.0 * random.paretovariate(0.9)), random.choice((1, 1, 1, 2, 4))))
        at += random.expovariate(1 / 60.0)
    return rows


def test_las_lets_short_jobs_pass_two_long_ones() -> None:
    """Two jobs of three hours hold both accelerators; short ones that come later end within minutes, not hours."""
    rows = [(0.0, 10_800.0, 1), (0.0, 10_800.0, 1), *((1000.0 * n, 100.0, 1) for n in range(1, 6))]
    las, fifo = Run("las", jobs_of(rows), quantum_s=600.0), Run("fifo", jobs_of(rows))
    for number in range(3, 8):
        measure = las.by_id[number]
        # A round to be compared, both restarts, its own hundred seconds.
        assert measure.ended_at - measure.submitted_at <= RULES.round_s + 2 * RESTART_S + 100.0 + 1.0
        assert fifo.ended_at(number) > 10_800.0
    assert las.mean_jct_s < 0.5 * fifo.mean_jct_s


def test_las_takes_turns_by_the_quantum() -> None:
    """Four equal jobs on two accelerators: nobody is ever more than two quanta ahead, and swaps are one a quantum."""
    quantum = 600.0
    run = Run("las", jobs_of([(0.0, 6000.0, 1)] * 4), quantum_s=quantum)
    ends = [run.ended_at(number) for number in range(1, 5)]
    assert max(ends) - min(ends) <= 2 * quantum + 2 * RULES.round_s + 4 * RESTART_S
    assert len(run.revoked) <= 4 * 6000.0 / quantum


@pytest.mark.parametrize("policy", ["las", "srtf", "srsf", "edf", "priority", "tiresias"])
def test_equals_never_swap(policy: str) -> None:
    """Equal jobs that wait do not move equal jobs that run, however long."""
    parameters = {"quantum_s": 1e9} if policy == "las" else {"thresholds_s": [1e9]} if policy == "tiresias" else {}
    run = Run(policy, jobs_of([(0.0, 2000.0, 1)] * 6), **parameters)
    assert run.revoked == []


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policy", ["srtf", "srsf", "las", "tiresias"])
def test_size_based_orders_beat_fifo_in_mean_completion_time(policy: str, seed: int) -> None:
    """On heavy-tailed lengths; by far where the lengths are known."""
    jobs = jobs_of(random_rows(seed))
    parameters = {"thresholds_s": [1800.0]} if policy == "tiresias" else {}
    run = Run(policy, jobs, machines=2, size=4, **parameters)
    fifo = Run("fifo", jobs, machines=2, size=4, strict=False)
    assert run.mean_jct_s < (0.8 if policy in ("srtf", "srsf") else 1.0) * fifo.mean_jct_s


def test_edf_meets_deadlines_that_fifo_misses() -> None:
    """Urgent jobs come late; all can be met, and EDF meets all."""
    rows = [(0.0, 3000.0, 1), (0.0, 3000.0, 1), (100.0, 500.0, 2), (700.0, 300.0, 1), (800.0, 300.0, 1)]
    due = [9000.0, 9000.0, 1500.0, 2000.0, 2000.0]
    jobs = jobs_of(rows, deadline_at=due)

    def late(run: Run) -> int:
        return sum(run.ended_at(number) > at for number, at in enumerate(due, 1))

    assert late(Run("edf", jobs)) == 0
    assert late(Run("fifo", jobs)) == 3


def test_priority_takes_places_of_a_lower_class_at_the_end_of_the_round() -> None:
    """Under `priority` a normal job does not wait for a low one; inside a class nobody is moved."""
    jobs = jobs_of([(0.0, 2000.0, 1)] * 2 + [(100.0, 500.0, 1)] * 3, priority=[LOW, LOW, NORMAL, NORMAL, NORMAL])
    run = Run("priority", jobs)
    assert sorted(run.victims) == [1, 2]
    assert all(at <= 100.0 + RULES.round_s for at, _ in run.revoked)
    assert max(run.ended_at(number) for number in (3, 4, 5)) < min(run.ended_at(1), run.ended_at(2))


def test_tiresias_demotes_a_job_at_its_threshold_and_not_before() -> None:
    """A newcomer takes the place of a job that has had its threshold; of one that has not, it waits for that."""
    run = Run("tiresias", jobs_of([(0.0, 5000.0, 1), (100.0, 300.0, 1)]), size=1, thresholds_s=[1000.0])
    assert run.victims == [1]
    at, _ = run.revoked[0]
    assert 1000.0 <= at <= 1000.0 + 2 * RULES.round_s
    assert run.ended_at(2) < 1500.0


def test_a_gang_gets_room_by_the_preemption_of_several() -> None:
    """Four single jobs of lower rank leave together for a gang of four."""
    run = Run("srtf", jobs_of([(0.0, 5000.0, 1)] * 4 + [(200.0, 300.0, 4)]), size=4)
    assert sorted(run.victims) == [1, 2, 3, 4]
    assert len({at for at, _ in run.revoked}) == 1
    assert run.ended_at(5) < 200.0 + RULES.round_s + 300.0 + 3 * RESTART_S


def test_a_gang_takes_no_more_than_it_needs() -> None:
    """A gang of two displaces two of four."""
    run = Run("srtf", jobs_of([(0.0, 5000.0, 1)] * 4 + [(200.0, 300.0, 2)]), size=4)
    assert len(run.victims) == 2


def test_strict_order_lets_nobody_pass_by_preemption_either() -> None:
    """The head, a gang with no right to enough places, holds up a single job that could displace somebody."""
    rows = [(0.0, 700.0, 1), (0.0, 700.0, 1), (0.0, 3000.0, 1), (0.0, 3000.0, 1), (100.0, 800.0, 4), (150.0, 1000.0, 1)]
    strict = Run("srtf", jobs_of(rows), size=4, strict=True)
    free = Run("srtf", jobs_of(rows), size=4, strict=False)
    assert strict.by_id[6].first_run_at > strict.by_id[5].first_run_at
    assert free.by_id[6].first_run_at < free.by_id[5].first_run_at


@pytest.mark.parametrize("policy", ["las", "srtf", "tiresias"])
def test_restarts_never_take_more_than_their_part(policy: str) -> None:
    """Whatever the order wants: restarts cost at most 1/(1 + h) of what is delivered."""
    restless = {"las": {"quantum_s": 1.0}, "srtf": {"margin": 0.0}, "tiresias": {"thresholds_s": [1.0, 50.0]}}
    run = Run(policy, jobs_of(random_rows(7)), machines=2, size=4, **restless[policy])
    delivered_s = sum(meter.held_s for meter in run.result.pools)
    gangs = {j.request.job_id: j.request.demands[0].count for j in jobs_of(random_rows(7))}
    lost_s = sum(2 * RESTART_S * gangs[JobId(number)] for number in run.victims)
    assert lost_s <= delivered_s / (1 + RULES.hysteresis)


def test_a_job_about_to_end_keeps_its_place() -> None:
    """An exchange that takes longer than what the incumbent has left is no gain."""
    run = Run("edf", jobs_of([(0.0, 100.0, 1), (65.0, 30.0, 1)], deadline_at=[1e6, 200.0]), size=1)
    assert run.victims == []
