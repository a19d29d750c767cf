"""The keys of the order policies: who ranks before whom, and what each parameter changes."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.answer import rank_jobs
from optimizer.assignment.remaining_time import expected_remaining_s, gittins_rank, rounded_to_margin
from optimizer.policies.queue_orders import Las, Tiresias
from optimizer.policy import GivenOrderFacts, OrderFacts, OrderPolicy, PolicySpec, ResetsService
from optimizer.registry import make, names
from walras.errors import ConfigError

HOUR = 3600.0


def facts(n: int, **given: object) -> GivenOrderFacts:
    """n jobs that have done nothing, submitted one second after the other; of unknown length, without deadline."""
    values: dict[str, object] = {
        "submitted_at": np.arange(n, dtype=float), "priority_class": np.ones(n, dtype=np.int64), "gang": np.ones(n),
        "attained_s": np.zeros(n), "waited_s": np.zeros(n), "remaining_s": np.full(n, np.inf),
        "deadline_at": np.full(n, np.inf),
    }  # fmt: skip
    values.update({name: np.array(value, dtype=float) for name, value in given.items()})
    values.setdefault("served_s", values["attained_s"])
    return GivenOrderFacts(**values)  # type: ignore[arg-type]


def order(policy: OrderPolicy, jobs: OrderFacts) -> list[int]:
    """Rows, most urgent first."""
    return np.lexsort((jobs.submitted_at, *policy.key(jobs)[::-1])).tolist()


def outranks(policy: OrderPolicy, jobs: OrderFacts, a: int, b: int) -> bool:
    """Whether job a may take the place of job b."""
    rank = policy.key(jobs)[0]
    return bool(rank[a] < rank[b])


def every_order() -> list[OrderPolicy]:
    made = [make(PolicySpec(name)) for name in names()]
    return [policy for policy in made if isinstance(policy, OrderPolicy)]


@pytest.mark.parametrize("policy", every_order(), ids=lambda policy: type(policy).__name__)
def test_keys_are_columns_of_numbers(policy: OrderPolicy) -> None:
    """One entry per job, none of them nan, none for nobody, and each job's key its own affair."""
    jobs = facts(3, attained_s=[0.0, 10.0, 1e6], remaining_s=[0.0, 1e9, np.inf], gang=[1, 8, 2])
    for some in (jobs, facts(0)):
        columns = policy.key(some)
        assert columns
        assert all(column.shape == some.submitted_at.shape and not np.isnan(column).any() for column in columns)
    alone = GivenOrderFacts(**{field.name: getattr(jobs, field.name)[1:2] for field in fields(GivenOrderFacts)})
    assert [float(c[0]) for c in policy.key(alone)] == [float(c[1]) for c in policy.key(jobs)]


@pytest.mark.parametrize("policy", every_order(), ids=lambda policy: type(policy).__name__)
def test_every_parameter_says_what_it_is(policy: OrderPolicy) -> None:
    """Faces show parameters with their meaning: none is without a description."""
    described = type(policy).__pydantic_fields__  # type: ignore[attr-defined]
    assert all(field.description for field in described.values())
    assert type(policy).__doc__


def test_las_ranks_by_levels_of_a_quantum() -> None:
    """Inside a level nobody outranks anybody; accelerators count, not only time."""
    jobs = facts(4, attained_s=[0.0, 3599.0, 3600.0, 9000.0])
    assert order(Las(quantum_s=HOUR), jobs) == [0, 1, 2, 3]
    assert not outranks(Las(quantum_s=HOUR), jobs, 0, 1)
    assert outranks(Las(quantum_s=HOUR), jobs, 1, 2)
    assert outranks(Las(quantum_s=60.0), jobs, 0, 1)


def test_las_makes_levels_wider_the_more_a_job_has_had() -> None:
    """By a tenth each: from 0 h, 1 h, 2.1 h, 3.31 h ... on. An hour decides between newcomers, not between old ones."""
    had_h = [0.99, 1.01, 2.09, 2.11, 3.30, 3.32, 100.0, 101.0]
    jobs = facts(8, attained_s=[hours * HOUR for hours in had_h])
    (levels,) = Las(quantum_s=HOUR).key(jobs)
    assert levels.tolist() == [0, 1, 1, 2, 2, 3, 25, 25]
    (even,) = Las(quantum_s=HOUR, growth=0.0).key(jobs)
    assert even.tolist() == [0, 1, 2, 2, 3, 3, 100, 101]


def test_srtf_ranks_by_time_left_and_displaces_only_for_a_clear_gain() -> None:
    """5 % shorter goes first in line, but moves nobody."""
    jobs = facts(3, remaining_s=[1000.0, 980.0, 500.0])
    srtf = make(PolicySpec("srtf"))
    assert isinstance(srtf, OrderPolicy)
    assert order(srtf, jobs) == [2, 1, 0]
    assert outranks(srtf, jobs, 2, 0)
    assert not outranks(srtf, jobs, 1, 0)
    exact = make(PolicySpec("srtf", {"margin": 0.0}))
    assert isinstance(exact, OrderPolicy)
    assert outranks(exact, jobs, 1, 0)


def test_srsf_counts_accelerators() -> None:
    """A gang of eight with an hour left comes after a single job with seven."""
    jobs = facts(2, remaining_s=[HOUR, 7 * HOUR], gang=[8, 1])
    srtf, srsf = make(PolicySpec("srtf")), make(PolicySpec("srsf"))
    assert isinstance(srtf, OrderPolicy)
    assert isinstance(srsf, OrderPolicy)
    assert order(srtf, jobs) == [0, 1]
    assert order(srsf, jobs) == [1, 0]


def test_an_unknown_length_is_taken_for_what_has_been_run() -> None:
    """As long again as it ran, per accelerator, and the parameter at least."""
    jobs = facts(4, attained_s=[0.0, 8000.0, 8000.0, 0.0], gang=[1, 1, 8, 1], remaining_s=[np.inf] * 3 + [7.0])
    assert expected_remaining_s(jobs, 1000.0).tolist() == [1000.0, 8000.0, 1000.0, 7.0]


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.sampled_from([0.0, 0.05, 0.5]))
def test_levels_keep_the_order_and_tell_apart_what_differs(a: float, b: float, margin: float) -> None:
    """Never the wrong way round; apart if they differ by more than the margin."""
    low, high = sorted((a, b))
    one, two = rounded_to_margin(np.array([low, high]), margin).tolist()
    assert one <= two
    if 1 + high > (1 + low) * (1 + margin) * (1 + 1e-9):
        assert one < two


def test_edf_puts_deadlines_first_and_the_rest_in_order_of_submission() -> None:
    """The nearest first, also when it has passed."""
    jobs = facts(4, deadline_at=[np.inf, 50.0, np.inf, -5.0])
    edf = make(PolicySpec("edf"))
    assert isinstance(edf, OrderPolicy)
    assert order(edf, jobs) == [3, 1, 0, 2]
    assert not outranks(edf, jobs, 0, 2)


def test_priority_ranks_by_class_only() -> None:
    """The highest class first; submission inside each."""
    jobs = facts(4, priority_class=[0, 1, 2, 1])
    priority = make(PolicySpec("priority"))
    assert isinstance(priority, OrderPolicy)
    assert order(priority, jobs) == [2, 1, 3, 0]
    assert not outranks(priority, jobs, 1, 3)


def test_every_order_of_a_problem_puts_classes_first() -> None:
    """As the scheduler does: a low job with less service comes after a normal one with more."""
    problem = build(Setting([[1.0]] * 2, [1]))
    jobs = replace(problem.jobs, priority_class=np.array([0, 1]), attained_s=np.array([0.0, 1e6]))
    assert rank_jobs(Las(), replace(problem, jobs=jobs)).rows == (1, 0)


# ------------------------------------------------------------------------------------------------ Tiresias


def test_tiresias_queues_by_service() -> None:
    """Demoted at the threshold itself; equals inside a queue."""
    jobs = facts(4, attained_s=[99.0, 100.0, 0.0, 5000.0])
    policy = Tiresias(thresholds_s=(100.0, 1000.0))
    assert order(policy, jobs) == [0, 2, 1, 3]
    assert not outranks(policy, jobs, 2, 0)
    assert outranks(policy, jobs, 0, 1)
    assert outranks(policy, jobs, 1, 3)


def test_tiresias_promotes_after_the_multiple_of_what_was_run() -> None:
    """Executed time is per accelerator; the first queue has nothing to be promoted from."""
    policy = Tiresias(thresholds_s=(100.0,), promote=2.0)
    assert isinstance(policy, ResetsService)
    jobs = facts(4, attained_s=[400.0, 400.0, 400.0, 50.0], gang=[4, 4, 1, 1], waited_s=[199.0, 200.0, 200.0, 1e6])
    assert policy.renews(jobs).tolist() == [False, True, False, False]
    renewed = replace(jobs, served_s=np.array([400.0, 0.0, 400.0, 50.0]))
    assert order(policy, renewed) == [1, 3, 0, 2]
    assert not Tiresias(thresholds_s=(100.0,)).renews(jobs).any()


def test_gittins_ranks_queues_by_what_is_likely_to_be_left() -> None:
    """Nine of ten jobs need 10, one needs 1000: who has passed 10 is a long one, until it is nearly through."""
    policy = Tiresias(thresholds_s=(10.0, 950.0), index="gittins", service_s=(*[10.0] * 9, 1000.0))
    jobs = facts(3, attained_s=[0.0, 20.0, 960.0])
    assert order(policy, jobs) == [0, 2, 1]
    assert outranks(policy, jobs, 2, 1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"thresholds_s": [10.0, 5.0]}, "must ascend"), ({"thresholds_s": []}, "at least 1"),
        ({"thresholds_s": [0.0]}, "greater than 0"), ({"thresholds_s": [float("inf")]}, "finite"),
        ({"index": "gittins"}, "needs service_s"), ({"index": "other"}, "'las' or 'gittins'"),
        ({"promote": 0.0}, "greater than 0"),
    ],
)  # fmt: skip
def test_tiresias_refuses_what_makes_no_sense(parameters: dict[str, object], message: str) -> None:
    """By name, as configuration."""
    with pytest.raises(ConfigError, match=message):
        make(PolicySpec("tiresias", parameters))


@given(
    observed=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    attained=st.lists(st.integers(0, 70), min_size=1, max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_the_gittins_rank_is_the_least_service_per_completion(observed: list[int], attained: list[int]) -> None:
    """Against a fine grid of how much more service to give: expected service over chance to end, at best."""
    found = gittins_rank(np.array(observed, float), np.array(attained, float))
    for at, rank in zip(attained, found.tolist(), strict=True):
        more = [size - at for size in observed if size > at]
        if not more:
            assert rank == at
            continue
        best = np.inf
        for given_s in np.arange(0.5, 61.0, 0.5):
            ends = sum(left <= given_s for left in more)
            if ends:
                best = min(best, sum(min(left, given_s) for left in more) / ends)
        assert rank == pytest.approx(best)


def test_the_gittins_rank_minimises_the_mean_completion_time() -> None:
    """Two jobs of size 1 or 10 with equal chance, in unit slices: no order by service attained does better."""
    sizes = np.array([1.0, 10.0])

    def mean_time(rank: dict[int, float]) -> float:
        """Expected sum of the ends if the job of the smallest rank runs next, the first of equals."""
        total = 0.0
        for pair in [(a, b) for a in sizes for b in sizes]:
            had, now = [0, 0], 0
            while any(had[i] < pair[i] for i in (0, 1)):
                open_jobs = [i for i in (0, 1) if had[i] < pair[i]]
                runs = min(open_jobs, key=lambda i: (rank[had[i]], i))
                had[runs] += 1
                now += 1
                total += now if had[runs] == pair[runs] else 0
        return total / 4

    gittins = dict(enumerate(gittins_rank(sizes, np.arange(10.0)).tolist()))
    random = np.random.default_rng(0)
    others = [dict(enumerate(random.uniform(size=10))) for _ in range(500)]
    assert mean_time(gittins) <= min(map(mean_time, others)) + 1e-9
