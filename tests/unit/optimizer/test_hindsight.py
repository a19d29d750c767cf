"""What no schedule can beat, known in hindsight: of single jobs and of gangs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bench_regret import jobs_of, regret_of
from benchmarks.gang_losses import completion_times, divided, in_hindsight, whole
from optimizer.bounds.hindsight import HindsightBound, PastCapacity, PastJob, hindsight_bound
from optimizer.bounds.instance import SchedulingInstance
from optimizer.registry import names
from tests.support.past_runs import past_of, run_of


def capacity(*steps: tuple[float, dict[str, float]], types: tuple[str, ...] = ("a", "b")) -> PastCapacity:
    rows = [[there.get(name, 0.0) for name in types] for _, there in steps]
    return PastCapacity(types, np.array([at for at, _ in steps]), np.array(rows))


def job(arrived_at: float, ended_at: float, steps: float, **more: object) -> PastJob:
    held_s = {"a": ended_at - arrived_at}
    return replace(PastJob("p", arrived_at, ended_at, 1, steps, {"a": 1.0}, held_s), **more)


# ------------------------------------------------------------------------------------------ by hand


def test_equal_jobs_in_one_queue_are_bounded_closely() -> None:
    """Ten equal jobs on one accelerator: 5.5 lengths on average at best; alone, each takes one."""
    jobs = [job(0.0, 100.0 * (10 - place), 100.0) for place in range(10)]
    found = hindsight_bound(jobs, capacity((0.0, {"a": 1.0})))
    assert (found.jobs, found.assumed) == (10, 0)
    assert (found.achieved_s, found.alone_s) == pytest.approx((550.0, 100.0))
    assert 0.97 * 550.0 <= found.bound_s <= 550.0


def test_machines_that_came_late_could_not_be_used_before() -> None:
    """Two jobs of 100 s on one accelerator of which a second comes after 150 s: (100 + 175) / 2 if divisible."""
    jobs = [job(0.0, 100.0, 100.0), job(0.0, 200.0, 100.0)]
    late = hindsight_bound(jobs, capacity((0.0, {"a": 1.0}), (150.0, {"a": 2.0})))
    both = hindsight_bound(jobs, capacity((0.0, {"a": 2.0})))
    assert both.bound_s == pytest.approx(100.0)
    assert 130.0 <= late.bound_s <= 150.0


def test_what_was_there_is_integrated_over_time() -> None:
    """Before the first instant as many as at it, after the last as many as then."""
    there = capacity((10.0, {"a": 1.0, "b": 4.0}), (20.0, {"a": 3.0}))
    seconds = there.seconds_between(np.array([0.0, 10.0, 25.0, 40.0]))
    assert seconds.tolist() == [[10.0, 40.0], [10.0 + 15.0, 40.0], [45.0, 0.0]]


def test_a_type_that_nobody_measured_counts_as_fast_as_the_fastest_known() -> None:
    """Such jobs are counted. Where the type was never there, nothing is assumed."""
    unknown = job(0.0, 50.0, 100.0, speeds={"a": 2.0, "b": None}, held_s={"a": 50.0})
    found = hindsight_bound([unknown], capacity((0.0, {"a": 1.0, "b": 1.0})))
    assert (found.bound_s, found.assumed) == (pytest.approx(50.0), 1)
    assert hindsight_bound([unknown], capacity((0.0, {"a": 1.0}))).assumed == 0


def test_what_really_happened_is_never_ruled_out() -> None:
    """A newest measurement that is slower than what the job did is raised to it."""
    slow = job(0.0, 50.0, 100.0, speeds={"a": 0.5}, held_s={"a": 50.0})
    assert hindsight_bound([slow], capacity((0.0, {"a": 1.0}))).bound_s == pytest.approx(50.0)


def test_jobs_that_nothing_is_known_of_are_left_out() -> None:
    """No speed, no type that was there, no work, or nothing held."""
    odd = [
        job(0.0, 9.0, 1.0, speeds={"a": None}), job(0.0, 9.0, 1.0, speeds={"c": 1.0}), job(0.0, 9.0, 0.0),
        job(0.0, 9.0, 1.0, held_s={}),
    ]  # fmt: skip
    assert hindsight_bound(odd, capacity((0.0, {"a": 1.0}))) == HindsightBound(0, 0.0, 0.0, 0.0, 0)


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.floats(0, 500), st.floats(1, 200), st.integers(1, 4)), min_size=1, max_size=12),
    changes=st.lists(st.tuples(st.floats(1, 600), st.integers(0, 4)), max_size=4),
    is_shortest_first=st.booleans(),
)
def test_no_list_schedule_beats_it(
    jobs: list[tuple[float, float, int]], changes: list[tuple[float, int]], is_shortest_first: bool
) -> None:
    """Gangs one by one on machines that come and go, but for four that stay: first come, or shortest first."""
    order = sorted(jobs, key=lambda each: (each[1] * each[2] if is_shortest_first else 0.0, each[0]))
    free_at = [0.0] * 4
    past = []
    for arrived_at, length_s, gang in order:
        free_at.sort()
        began = max(arrived_at, free_at[gang - 1])
        free_at[:gang] = [began + length_s] * gang
        past.append(PastJob("p", arrived_at, began + length_s, gang, 3.0 * length_s, {"a": 3.0}, {"a": length_s}))
    steps = [(0.0, {"a": 4.0}), *((at, {"a": 4.0 + more}) for at, more in sorted(changes))]
    found = hindsight_bound(past, capacity(*steps))
    assert found.alone_s - 1e-9 <= found.bound_s <= found.achieved_s * (1 + 1e-9)


# ------------------------------------------------------------------------------------------ simulated clusters


@pytest.mark.slow
@pytest.mark.parametrize(("generator", "seed"), [("poisson", 1), ("burst", 2), ("hadar-60", 3)])
def test_no_policy_beats_what_is_proved_from_the_run_of_another(generator: str, seed: int) -> None:
    """Under every policy the same jobs end later than the bound from any one's record; with speeds known only
    where the jobs ran, never sooner than the own."""
    runs = {name: run_of(generator, name, seed) for name in names()}
    bounds, achieved = {}, {}
    for name, ran in runs.items():
        own = hindsight_bound(*past_of(ran, known_everywhere=False))
        assert own.bound_s <= own.achieved_s * (1 + 1e-9), name
        full = hindsight_bound(*past_of(ran, known_everywhere=True))
        assert full.jobs == 12, name
        bounds[name], achieved[name] = full.bound_s, full.achieved_s
    assert max(bounds.values()) <= min(achieved.values()) * (1 + 1e-9)


def test_the_bound_is_close_where_jobs_wait() -> None:
    """A burst of 60 jobs: every run proves the same, less than a tenth below what the best policy achieves."""
    found = {
        name: hindsight_bound(*past_of(run_of("burst", name, 2, jobs=60), known_everywhere=True))
        for name in ("fifo", "max_min_fairness", "walras")
    }
    best = min(each.achieved_s for each in found.values())
    assert {each.jobs for each in found.values()} == {60}
    assert found["walras"].alone_s < 0.8 * best
    assert all(0.9 * best <= each.bound_s <= best for each in found.values())


def test_the_regret_that_is_measured_lies_above_what_nobody_can_avoid() -> None:
    """Of the default policy and of prices for whole schedules; and jobs are not the same from seed to seed."""
    for policy in ("walras", "hadar"):
        found = regret_of(jobs_of(0, 0.8, 12), policy)
        assert (found.jobs, found.assumed) == (12, 0)
        assert found.alone_s <= found.bound_s <= found.achieved_s
    assert [job.steps for job in jobs_of(0, 0.8, 12)] != [job.steps for job in jobs_of(1, 0.8, 12)]


def two_gangs(capacity: float, later_at: float = 0.0) -> SchedulingInstance:
    """Two gangs of two accelerators, each ten seconds long, on one pool."""
    return SchedulingInstance(
        arrival_at=np.array([0.0, later_at]), steps=np.full(2, 10.0), gang=np.full(2, 2.0), steps_per_s=np.ones((2, 1)),
        capacity=np.array([capacity]),
    )  # fmt: skip


def test_whole_gangs_wait_for_room_that_divided_ones_share() -> None:
    """Three accelerators: one gang after the other, or one and a half at a time; with four nobody waits."""
    alike = np.ones(2)
    assert sorted(completion_times(two_gangs(3.0), whole, alike)) == pytest.approx([10.0, 20.0])
    assert sorted(completion_times(two_gangs(3.0), divided, alike)) == pytest.approx([10.0, 15.0])
    for division in (whole, divided):
        assert completion_times(two_gangs(4.0), division, alike) == pytest.approx([10.0, 10.0])
        assert completion_times(two_gangs(3.0, later_at=20.0), division, alike) == pytest.approx([10.0, 10.0])


@pytest.mark.slow
def test_hindsight_ends_jobs_no_later_than_the_rule() -> None:
    """It keeps what ends sooner, and begins with the rule itself; the same seed finds the same."""
    random = np.random.default_rng(0)
    jobs = 12
    instance = SchedulingInstance(
        arrival_at=np.sort(random.uniform(0.0, 50.0, jobs)), steps=random.lognormal(3.0, 1.0, jobs),
        gang=random.choice([1.0, 2.0, 4.0], jobs), steps_per_s=random.uniform(0.5, 2.0, (jobs, 2)),
        capacity=np.array([4.0, 5.0]),
    )  # fmt: skip
    plain = float(completion_times(instance, whole, np.ones(jobs)).mean())
    found = [in_hindsight(instance, whole, 20, seed=1) for _ in range(2)]
    assert found[0] == found[1] <= plain
    assert found[0] >= instance.alone_s.mean()
