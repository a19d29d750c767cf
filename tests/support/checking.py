"""Answers to doctor: every share policy on the example problems, and the ways in which an answer can lie."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.decision import Shares, Status
from optimizer.documents.problem_document import ProblemDocument, problem_from_document
from optimizer.policy import PolicySpec
from optimizer.problem import Problem
from optimizer.registry import make
from walras.spec.file_model import check_model, load_mapping

PROBLEMS = Path(__file__).resolve().parents[2] / "configs" / "problems"
#: Terms of projects that the problems may or may not have.
_TERMS = {"vision": {"guaranteed": 0.2, "users": {"ada": {"limit": 0.3}}}, "project-1": {"borrows": False}}
#: Every share policy, with parameters that make it another program.
SPECS = (
    PolicySpec("max_min_fairness"),
    PolicySpec("max_min_fairness", {"aware": False}),
    PolicySpec("max_min_fairness", {"then": "sum"}),
    PolicySpec("max_min_fairness", {"packed": True}),
    PolicySpec("makespan", {"packed": True}),
    PolicySpec("finish_time_fairness", {"packed": True}),
    PolicySpec("throughput", {"packed": True}),
    PolicySpec("water_filling"),
    PolicySpec("hierarchical"),
    PolicySpec("hierarchical", {"projects": _TERMS}),
    PolicySpec("proportional_fairness"),
    PolicySpec("finish_time_fairness"),
    PolicySpec("finish_time_fairness", {"aware": False, "then": "nothing"}),
    PolicySpec("makespan"),
    PolicySpec("throughput"),
    PolicySpec("throughput", {"normalised": False}),
    PolicySpec("throughput_per_dollar"),
    PolicySpec("cost_with_slos"),
    PolicySpec("cost_with_slos", {"goal": "cost"}),
    PolicySpec("isolated"),
)
#: What a level leaves is nobody's by this one: a share that is off there is no lie.
LOOSE = PolicySpec("max_min_fairness", {"then": "nothing"})


def spec_id(spec: PolicySpec) -> str:
    return "-".join([spec.name, *(f"{name}={value}"[:20] for name, value in spec.parameters.items())])


@cache
def example(name: str) -> Problem:
    """A problem of `configs/problems`."""
    return problem_from_document(check_model(ProblemDocument, load_mapping(PROBLEMS / f"{name}.json"), source=name))


def answer(spec: PolicySpec, problem: Problem) -> Shares:
    shares, _ = make(spec).decide(problem, None)
    assert isinstance(shares, Shares)
    return shares


@dataclass(frozen=True)
class Lie:
    """A doctored answer, and what was done to it."""

    name: str
    shares: Shares


def lies(problem: Problem, spec: PolicySpec, shares: Shares) -> Iterator[Lie]:
    """Every way of doctoring that matters for this answer."""
    yield from _about_numbers(shares)
    yield from _about_prices(shares)
    yield from _about_shares(problem, shares)
    if spec.parameters.get("aware", True):  # blind to speeds, jobs that look alike are alike
        yield from _about_rows(problem, shares)
    if len(shares.relaxed):
        yield Lie("a relaxed deadline is not listed", replace(shares, relaxed=shares.relaxed[1:]))
    if len(shares.unplaceable):
        yield Lie("a job that fits nowhere is not listed", replace(shares, unplaceable=shares.unplaceable[:-1]))


def _about_numbers(shares: Shares) -> Iterator[Lie]:
    stated = shares.certificate

    def lie(name: str, **changes: Any) -> Lie:
        return Lie(name, replace(shares, certificate=replace(stated, **changes)))

    better = 1 - 1e-3 if stated.maximise else 1 + 1e-3  # closer to the objective
    if shares.certificate.bound:
        if stated.status is not Status.DEFINED:  # a formula's bound is another policy's
            yield lie("bound tightened by 1e-3", bound=stated.bound * better)
        yield lie("objective improved by 1e-3", objective=stated.objective / better)
        yield lie("gap of 1 %", gap=stated.gap + 0.01)
    yield lie("violation understated", violation=-1e-6)
    for number, stage in enumerate(shares.stages):
        for name in ("objective", "bound"):
            value = getattr(stage, name)
            moved = replace(stage, **{name: value * (1 - 1e-3) - 1e-3})
            yield Lie(f"{name} of stage {number + 1} moved", _with_stage(shares, number, moved))


def _about_prices(shares: Shares) -> Iterator[Lie]:
    for pool in np.flatnonzero(shares.quote.prices > 1e-6 * max(shares.quote.prices.max(initial=0.0), 1e-3)):
        prices = _changed(shares.quote.prices, pool, shares.quote.prices[pool] / 2)
        yield Lie(f"quoted price of pool {pool} halved", replace(shares, quote=replace(shares.quote, prices=prices)))
    earlier = np.zeros(max((len(stage.prices) for stage in shares.stages), default=0), dtype=bool)
    for number, stage in enumerate(shares.stages):
        priced = stage.prices > 1e-6 * max(stage.prices.max(initial=0.0), 1e-9)
        # What an earlier level used up is kept out of a later one's way by any price that is high enough.
        for pool in np.flatnonzero(priced & ~earlier):
            doctored = replace(stage, prices=_changed(stage.prices, pool, stage.prices[pool] / 2))
            yield Lie(f"price of pool {pool} in stage {number + 1} halved", _with_stage(shares, number, doctored))
            doctored = replace(stage, prices=_changed(stage.prices, pool, -stage.prices[pool]))
            yield Lie(f"price of pool {pool} in stage {number + 1} negative", _with_stage(shares, number, doctored))
        earlier |= priced
    yield Lie("exchange doubled", replace(shares, quote=replace(shares.quote, exchange=shares.quote.exchange * 2)))
    yield Lie("another unit", replace(shares, quote=replace(shares.quote, unit="USD")))
    yield Lie("surpluses raised", replace(shares, surplus=shares.surplus + 0.1))


def _about_shares(problem: Problem, shares: Shares) -> Iterator[Lie]:
    for column in np.flatnonzero(shares.x > 1e-3):
        job_id = problem.jobs.job_id[problem.columns.job[column]]
        yield Lie(
            f"a share of job {job_id} up 1 %", replace(shares, x=_changed(shares.x, column, shares.x[column] * 1.01))
        )
    for job in range(len(problem.jobs)):
        mine = problem.columns.job == job
        if shares.x[mine].sum() > 1e-3:
            yield Lie(
                f"job {problem.jobs.job_id[job]} up 1 %", replace(shares, x=np.where(mine, shares.x * 1.01, shares.x))
            )
    if len(shares.x):
        yield Lie("a share negative", replace(shares, x=_changed(shares.x, 0, -0.01)))
        yield Lie("a share that is no number", replace(shares, x=_changed(shares.x, 0, np.nan)))
    if shares.stages:
        yield Lie("the last stage left out", replace(shares, stages=shares.stages[:-1]))
        yield Lie("the last stage twice", replace(shares, stages=(*shares.stages, shares.stages[-1])))


def _about_rows(problem: Problem, shares: Shares) -> Iterator[Lie]:
    for one in range(len(problem.jobs)):
        for other in range(one):
            swapped = _swapped(problem, shares, one, other)
            if swapped is not None:
                ids = problem.jobs.job_id
                yield Lie(f"rows of jobs {ids[other]} and {ids[one]} swapped", swapped)


def _swapped(problem: Problem, shares: Shares, one: int, other: int) -> Shares | None:
    """The shares of two jobs exchanged; None where the jobs are alike, or their shares, or cannot be exchanged."""
    first, second = (np.flatnonzero(problem.columns.job == job) for job in (one, other))
    if len(first) != len(second) or np.allclose(shares.x[first], shares.x[second], atol=1e-3):
        return None
    if np.array_equal(problem.columns.steps_per_s[first], problem.columns.steps_per_s[second]):
        return None
    x = shares.x.copy()
    x[first], x[second] = shares.x[second], shares.x[first]
    return replace(shares, x=x)


def _with_stage(shares: Shares, number: int, stage: Any) -> Shares:
    return replace(shares, stages=(*shares.stages[:number], stage, *shares.stages[number + 1 :]))


def _changed(array: np.ndarray, place: int, value: float) -> np.ndarray:
    changed = array.copy()
    changed[place] = value
    return changed
