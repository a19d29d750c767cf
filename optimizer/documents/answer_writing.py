"""Writes a decision as a document. Jobs, pools and configurations have the names of the problem document."""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.decision import BoundReport, Certificate, Decision, Memory, Order, Plan, Quote, Shares, SolveStage
from optimizer.documents.answer_document import (
    AnswerDocument,
    CertificateDocument,
    JobAnswer,
    MixtureDocument,
    OrderDocument,
    OrderedJob,
    PackedDocument,
    PlanDocument,
    PlannedJob,
    PolicyDocument,
    QuoteDocument,
    RentedDocument,
    ShareDocument,
    SharesDocument,
    StageDocument,
    StageJob,
    YardstickDocument,
)
from optimizer.documents.problem_conversion import plain_document, problem_document_of, uses_of
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.renting.machine_rental import Rental, accelerators_per_machine, marginal_values


def answer_of(
    problem: Problem,
    policy: PolicySpec,
    decision: Decision,
    memory: Memory = None,
    *,
    names: dict[int, str] | None = None,
    integral_bound: float | None = None,
    asked: Problem | None = None,
) -> AnswerDocument:
    """Returns the document of a decision.

    Args:
        problem: the one that was answered.
        policy: the policy that answered.
        decision: shares, an order or a plan.
        memory: the policy's memory for its next solve.
        names: names of the jobs for users, by id.
        integral_bound: an upper bound for whole gangs (`optimizer.assignment.whole_gang_bound`), if one was asked for.
        asked: the problem that was asked, where the one answered has gangs over several pools besides.
    """
    shares = order = plan = None
    if isinstance(decision, Shares):
        shares = _shares(problem, decision, names or {}, integral_bound)
    elif isinstance(decision, Plan):
        plan = _plan(problem, decision, names or {})
    else:
        order = _order(problem, decision, names or {})
    return AnswerDocument(
        policy=PolicyDocument(name=policy.name, parameters=dict(policy.parameters)),
        problem=problem_digest(asked or problem),
        mixtures=() if asked is None else _mixtures(asked, problem),
        shares=shares,
        order=order,
        plan=plan,
        memory=memory,
    )


def problem_digest(problem: Problem) -> str:
    """Returns the SHA-256 of the problem as a document, by which an answer names its problem."""
    text = json.dumps(plain_document(problem_document_of(problem)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _mixtures(asked: Problem, answered: Problem) -> tuple[MixtureDocument, ...]:
    """Returns the configurations that the answered problem has in addition: the last ones of each job."""
    columns, jobs = answered.columns, len(asked.jobs)
    known = np.bincount(asked.columns.job, minlength=jobs)
    uses = uses_of(columns, answered.pools.pool_id)
    return tuple(
        MixtureDocument(
            id=int(asked.jobs.job_id[columns.job[column]]),
            uses=uses[column],
            steps_per_s=float(columns.steps_per_s[column]),
        )
        for column in np.flatnonzero(configuration_indices(answered) >= known[columns.job])
    )


def configuration_indices(problem: Problem) -> IntArray:
    """Returns the index of each column in its job's list of configurations (c,)."""
    job = problem.columns.job
    return np.arange(len(job)) - np.searchsorted(job, job)


def _shares(problem: Problem, shares: Shares, names: dict[int, str], integral_bound: float | None) -> SharesDocument:
    return SharesDocument(
        jobs=_jobs(problem, shares, names),
        packed=_packed(problem, shares),
        rent=_by_pool(problem, shares.rent),
        used=_by_pool(problem, accelerators_used(problem, shares)),
        prices=_quote(problem, shares.quote),
        certificate=_certificate(shares.certificate, integral_bound),
        stages=tuple(_stage(problem, stage) for stage in shares.stages),
        unplaceable=_ids(problem, shares.unplaceable),
        relaxed=_ids(problem, shares.relaxed),
    )


def _jobs(problem: Problem, shares: Shares, names: dict[int, str]) -> tuple[JobAnswer, ...]:
    columns, place = problem.columns, configuration_indices(problem)
    uses = uses_of(columns, problem.pools.pool_id)
    listed: list[list[ShareDocument]] = [[] for _ in range(len(problem.jobs))]
    for column in np.flatnonzero(shares.x):
        share = ShareDocument(configuration=int(place[column]), uses=uses[column], share=float(shares.x[column]))
        listed[columns.job[column]].append(share)
    best = fastest_rates(problem)
    rate = co_located_rates(problem, shares)
    rate += np.bincount(columns.job, weights=columns.steps_per_s * shares.x, minlength=len(problem.jobs))
    return tuple(
        JobAnswer(
            id=int(job_id),
            name=names.get(int(job_id)),
            shares=tuple(listed[row]),
            steps_per_s=float(rate[row]),
            of_best=float(rate[row] / best[row]) if best[row] > 0 else None,
            surplus=float(shares.surplus[row]),
        )
        for row, job_id in enumerate(problem.jobs.job_id)
    )


def fastest_rates(problem: Problem) -> FloatArray:
    """Returns the steps per second of each job's fastest configuration that fits the fleet (n,); 0 where none does."""
    columns, capacity = problem.columns, problem.pools.capacity + problem.pools.rentable - problem.pools.held
    fits = np.ones(len(columns), dtype=bool)
    fits[columns.use_column[columns.use_count > capacity[columns.use_pool] + 1e-9]] = False
    best = np.zeros(len(problem.jobs))
    np.maximum.at(best, columns.job[fits], columns.steps_per_s[fits])
    return best


def co_located_rates(problem: Problem, shares: Shares) -> FloatArray:
    """Returns the steps per second that each job makes while co-located with another (n,)."""
    rates, pairs, packed = np.zeros(len(problem.jobs)), problem.pairs, shares.packed
    if pairs is None or not len(packed):
        return rates
    alone = _alone(problem)
    for row, partner, pair, share in zip(packed.first, packed.second, packed.pair, packed.share, strict=True):
        pool = int(pairs.pool[pair])
        rates[row] += share * pairs.first_factor[pair] * alone[int(row), pool].steps_per_s
        rates[partner] += share * pairs.second_factor[pair] * alone[int(partner), pool].steps_per_s
    return rates


def accelerators_used(problem: Problem, shares: Shares) -> FloatArray:
    """Returns the accelerators of each pool that the shares take (p,); two co-located jobs count once."""
    columns, packed, pairs = problem.columns, shares.packed, problem.pairs
    taken = columns.use_count * shares.x[columns.use_column]
    used = np.bincount(columns.use_pool, weights=taken, minlength=len(problem.pools)).astype(np.float64)
    if pairs is not None and len(packed):
        alone = _alone(problem)
        for row, pair, share in zip(packed.first, packed.pair, packed.share, strict=True):
            pool = int(pairs.pool[pair])
            used[pool] += share * alone[int(row), pool].count
    return used


@dataclass(frozen=True, slots=True, order=True)
class _Alone:
    """How a job runs alone in a pool: its smallest gang there, the fastest of equals."""

    count: float
    slowness: float

    @property
    def steps_per_s(self) -> float:
        return -self.slowness


def _alone(problem: Problem) -> dict[tuple[int, int], _Alone]:
    """Returns how jobs run alone, by job and pool; there is no entry where a job has no configuration of one pool."""
    columns = problem.columns
    single = np.bincount(columns.use_column, minlength=len(columns)) == 1
    best: dict[tuple[int, int], _Alone] = defaultdict(lambda: _Alone(0.0, 0.0))
    for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        if single[column]:
            key, entry = (
                (int(columns.job[column]), int(pool)),
                _Alone(float(count), -float(columns.steps_per_s[column])),
            )
            best[key] = min(best[key], entry) if key in best else entry
    return best


def _packed(problem: Problem, shares: Shares) -> tuple[PackedDocument, ...]:
    pairs, packed, ids = problem.pairs, shares.packed, problem.jobs.job_id
    if pairs is None:
        return ()
    return tuple(
        PackedDocument(
            first=int(ids[first]),
            second=int(ids[second]),
            pool=problem.pools.pool_id[pairs.pool[pair]],
            share=float(share),
        )
        for first, second, pair, share in zip(packed.first, packed.second, packed.pair, packed.share, strict=True)
        if share != 0
    )


def _certificate(certificate: Certificate, integral_bound: float | None) -> CertificateDocument:
    return CertificateDocument(
        status=certificate.status,
        objective=finite_or_none(certificate.objective),
        bound=finite_or_none(certificate.bound),
        gap=finite_or_none(certificate.gap),
        violation=float(certificate.violation),
        path=certificate.path,
        maximise=certificate.maximise,
        integral_bound=None if integral_bound is None else finite_or_none(integral_bound),
    )


def _stage(problem: Problem, stage: SolveStage) -> StageDocument:
    nothing = np.zeros(len(stage.active))
    multiplier = stage.multiplier if len(stage.multiplier) else nothing
    time = stage.time if len(stage.time) else nothing
    taking_part = stage.active | (stage.floor != 0) | (stage.cap != 0) | (multiplier != 0) | (time != 0)
    jobs = tuple(
        StageJob(
            id=int(problem.jobs.job_id[row]),
            raised=bool(stage.active[row]),
            floor=float(stage.floor[row]),
            cap=float(stage.cap[row]),
            utility_value=float(multiplier[row]),
            time_value=float(time[row]),
        )
        for row in np.flatnonzero(taking_part)
    )
    pools = len(problem.pools)
    return StageDocument(
        kind=stage.kind,
        objective=float(stage.objective),
        bound=finite_or_none(stage.bound),
        prices=_by_pool(problem, stage.prices[:pools]),
        limits=tuple(float(price) for price in stage.prices[pools:]),
        jobs=jobs,
    )


def _order(problem: Problem, order: Order, names: dict[int, str]) -> OrderDocument:
    columns, place = problem.columns, configuration_indices(problem)
    preferred: list[list[int]] = [[] for _ in range(len(problem.jobs))]
    for column in np.lexsort((np.arange(len(columns)), -order.preference)):
        preferred[columns.job[column]].append(int(place[column]))
    ids = [int(problem.jobs.job_id[row]) for row in order.rows]
    return OrderDocument(
        jobs=tuple(
            OrderedJob(id=job_id, name=names.get(job_id), preference=tuple(preferred[row]))
            for row, job_id in zip(order.rows, ids, strict=True)
        ),
        yardstick=_yardstick(order.yardstick) if order.yardstick is not None else None,
        no_yardstick=order.no_yardstick,
    )


def _plan(problem: Problem, plan: Plan, names: dict[int, str]) -> PlanDocument:
    place, uses = configuration_indices(problem), uses_of(problem.columns, problem.pools.pool_id)
    jobs = []
    for row in plan.rows.tolist():
        job_id, column = int(problem.jobs.job_id[row]), int(plan.column[row])
        jobs.append(
            PlannedJob(
                id=job_id,
                name=names.get(job_id),
                configuration=int(place[column]) if column >= 0 else None,
                uses=uses[column] if column >= 0 else {},
                surplus=float(plan.surplus[row]),
            )
        )
    return PlanDocument(
        jobs=tuple(jobs),
        prices=_quote(problem, plan.quote),
        yardstick=_yardstick(plan.yardstick) if plan.yardstick is not None else None,
        no_yardstick=plan.no_yardstick,
    )


def _quote(problem: Problem, quote: Quote) -> QuoteDocument:
    return QuoteDocument(
        unit=quote.unit,
        exchange=float(quote.exchange),
        pools={name: float(price) for name, price in zip(problem.pools.pool_id, quote.prices, strict=True)},
    )


def _yardstick(yardstick: BoundReport) -> YardstickDocument:
    return YardstickDocument(
        name=yardstick.name,
        unit=yardstick.unit,
        objective=finite_or_none(yardstick.objective),
        bound=finite_or_none(yardstick.bound),
        gap=finite_or_none(yardstick.gap),
        maximise=yardstick.maximise,
    )


def finite_or_none(value: float) -> float | None:
    """Returns the value, None where it is not finite: nothing is proved."""
    return float(value) if np.isfinite(value) else None


def _by_pool(problem: Problem, values: FloatArray) -> dict[str, Any]:
    return {name: float(value) for name, value in zip(problem.pools.pool_id, values, strict=True) if value != 0}


def _ids(problem: Problem, rows: IntArray) -> tuple[int, ...]:
    return tuple(int(job_id) for job_id in problem.jobs.job_id[rows])


def renting_of(problem: Problem, delay_usd_per_h: float, rental: Rental | None) -> dict[str, RentedDocument]:
    """Returns the rented machines by pool, where machines may be rented; an empty dict where renting is
    not possible.
    """
    if rental is None:
        return {}
    margins, pools = marginal_values(problem, delay_usd_per_h, rental), problem.pools
    usd_per_h = pools.usd_per_h * accelerators_per_machine(problem)
    return {
        pools.pool_id[row]: RentedDocument(
            machines=int(rental.machines[row]),
            usd_per_h=float(usd_per_h[row]),
            last_usd_per_h=float(margins.last_usd_per_h[row]),
            next_usd_per_h=float(margins.next_usd_per_h[row]),
        )
        for row in range(len(pools))
        if pools.rentable[row] > 0
    }
