"""Every policy of the linear family with its parameters, and problems on which they all have something to say."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from problems import Setting, build
from strategies_problems import settings_of_problems

from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.utility.fair_share import fair_share_utility

NOW = 1000.0
#: Everything that has a definition to be compared with.
SPECS = (
    PolicySpec("max_min_fairness", {"then": "sum"}),
    PolicySpec("max_min_fairness", {"then": "sum", "aware": False}),
    PolicySpec("max_min_fairness", {"then": "nothing"}),
    PolicySpec("finish_time_fairness"),
    PolicySpec("finish_time_fairness", {"aware": False}),
    PolicySpec("makespan"),
    PolicySpec("makespan", {"aware": False}),
    PolicySpec("throughput"),
    PolicySpec("throughput", {"normalised": False}),
    PolicySpec("throughput_per_dollar"),
    PolicySpec("cost_with_slos"),
    PolicySpec("cost_with_slos", {"goal": "cost"}),
    PolicySpec("proportional_fairness"),
    PolicySpec("proportional_fairness", {"aware": False}),
    PolicySpec("hierarchical"),
    PolicySpec("hierarchical", {"aware": False}),
)


def name_of(spec: PolicySpec) -> str:
    """A test's name for it."""
    return "-".join([spec.name, *(f"{key}={value}" for key, value in spec.parameters.items())])


def with_times(problem: Problem, remaining: list[float], since: list[float], left: list[float | None]) -> Problem:
    """The problem with steps left, seconds since submission, and seconds to the deadline (None: without one)."""
    deadline = [np.inf if seconds is None else NOW + seconds for seconds in left]
    jobs = replace(
        problem.jobs, remaining_steps=np.array(remaining, float), submitted_at=NOW - np.array(since, float),
        deadline_at=np.array(deadline, float),
    )  # fmt: skip
    return replace(problem, at=NOW, jobs=jobs)


@st.composite
def timed_problems(draw: st.DrawFn, *, whole: bool = False) -> Problem:
    """Problems whose jobs have work left, a past, deadlines (held or not) and priced pools, each of them at times."""
    setting: Setting = draw(settings_of_problems(whole=whole))
    n, p = len(setting.speeds), len(setting.capacity)
    prices = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]), min_size=p, max_size=p))
    remaining = draw(st.lists(st.sampled_from([0.0, 50.0, 400.0, 3000.0, np.inf]), min_size=n, max_size=n))
    since = draw(st.lists(st.sampled_from([0.0, 10.0, 200.0]), min_size=n, max_size=n))
    left = draw(st.lists(st.sampled_from([None, None, 5000.0, 400.0, 30.0, -5.0]), min_size=n, max_size=n))
    return with_times(build(replace(setting, usd_per_h=prices)), remaining, since, left)


def published(problem: Problem, spec: PolicySpec, certificate_objective: float) -> float:
    """The optimum of the published program, as the certificate's objective tells it.

    Max-min fairness, also over a tree, goes beyond it: full jobs do not hold back the others.
    """
    if spec.name not in ("max_min_fairness", "hierarchical"):
        return certificate_objective
    utility = fair_share_utility(problem, aware=bool(spec.parameters.get("aware", True)))
    slope = utility.weight if spec.name == "max_min_fairness" else _rise(problem, utility.best > 0)
    rising = slope > 0
    return min(certificate_objective, float((utility.best[rising] / slope[rising]).min(initial=np.inf)))


def _rise(problem: Problem, placeable: np.ndarray) -> np.ndarray:
    """What each job gains per level of the top, in projects without users that are fair inside (n,)."""
    weight, entities = np.where(placeable, problem.jobs.weight, 0.0), problem.entities
    if not len(entities):
        return weight
    inside = np.bincount(problem.jobs.entity, weights=weight, minlength=len(entities))
    part = np.divide(entities.weight, inside, out=np.zeros(len(entities)), where=inside > 0)
    return weight * part[problem.jobs.entity]


def told_by_definition(problem: Problem, spec: PolicySpec, value: float) -> float:
    """The value of a policy's cvxpy program in the unit of its certificate."""
    if spec.name == "makespan":
        return 1 / value
    if spec.name == "proportional_fairness":
        utility = fair_share_utility(problem, aware=bool(spec.parameters.get("aware", True)))
        return float(np.exp(value / utility.weight.sum()))
    return -value if spec.parameters.get("goal") == "cost" else value
