"""Decisions as answer documents: writes them, reads them back, and checks whether they hold.

Jobs, pools and configurations have the names of the problem document. A document that names others is no answer to the
problem: a ConfigError. `optimizer.check.certificate` says whether its numbers hold; this module writes that finding as
a document, together with whether the totals stated in the answer follow from its shares.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from optimizer.assignment.whole_gang_bound import integral_bound
from optimizer.check.certificate import check_decision, invalid_mixed_gangs, mixed_gang_complaints
from optimizer.decision import (
    BoundReport,
    Certificate,
    ColocatedJobs,
    Decision,
    Memory,
    MultiPoolGangs,
    Order,
    Plan,
    Quote,
    Shares,
    SolveStage,
    append_columns,
)
from optimizer.documents.answer_document import (
    AnswerDocument,
    CertificateDocument,
    CheckDocument,
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
from optimizer.documents.problem_document import plain_document, problem_document_of, uses_of
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.renting.machine_rental import Rental, accelerators_per_machine, marginal_values
from optimizer.utility.fair_share import pool_columns
from walras.errors import ConfigError
from walras.spec.file_model import FileModel


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
        certificate=_stated(CertificateDocument, shares.certificate, integral_bound=finite_or_none(integral_bound)),
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
        rates[row] += share * pairs.first_factor[pair] * alone[int(row), pool][1]
        rates[partner] += share * pairs.second_factor[pair] * alone[int(partner), pool][1]
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
            used[pool] += share * alone[int(row), pool][0]
    return used


def _alone(problem: Problem) -> dict[tuple[int, int], tuple[float, float]]:
    """Returns how jobs run alone, by job and pool: accelerators and steps per second of the smallest gang there, the
    fastest of equals; zeros where a job has no configuration of one pool.
    """
    columns, chosen = problem.columns, pool_columns(problem.columns, np.ones(len(problem.columns), dtype=np.bool_))
    speeds = columns.steps_per_s[chosen.column]
    keys = zip(columns.job[chosen.column].tolist(), chosen.pool.tolist(), strict=True)
    ways = zip(chosen.count.tolist(), speeds.tolist(), strict=True)
    return defaultdict(lambda: (0.0, 0.0), zip(keys, ways, strict=True))


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


_Document = TypeVar("_Document", bound=FileModel)
_Value = TypeVar("_Value")


def _stated(model: type[_Document], value: object, **more: object) -> _Document:
    """Returns the document of a value whose fields have the names of the document's: null where nothing is proved."""
    told = {name: getattr(value, name) for name in model.model_fields if hasattr(value, name)}
    shown = {name: finite_or_none(each) if isinstance(each, float) else each for name, each in told.items()}
    return model(**{**shown, **more})


def _read_value(kind: Callable[..., _Value], document: FileModel, **unproved: float) -> _Value:
    """Returns the value that such a document states; `unproved`: what null stands for."""
    told = {field.name: getattr(document, field.name) for field in fields(cast(Any, kind))}
    return kind(**{name: unproved[name] if each is None else each for name, each in told.items()})


#: The parts of jobs in a stage, as documents call them and as `SolveStage` does.
_STAGE_PARTS = {"raised": "active", "floor": "floor", "cap": "cap", "utility_value": "multiplier", "time_value": "time"}


def _stage(problem: Problem, stage: SolveStage) -> StageDocument:
    parts = {said: getattr(stage, name) for said, name in _STAGE_PARTS.items() if len(getattr(stage, name))}
    taking_part = np.any([values != 0 for values in parts.values()], axis=0) if parts else np.zeros(0)
    jobs = tuple(
        StageJob(id=int(problem.jobs.job_id[row]), **{said: values[row].item() for said, values in parts.items()})
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
        yardstick=None if order.yardstick is None else _stated(YardstickDocument, order.yardstick),
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
        yardstick=None if plan.yardstick is None else _stated(YardstickDocument, plan.yardstick),
        no_yardstick=plan.no_yardstick,
    )


def _quote(problem: Problem, quote: Quote) -> QuoteDocument:
    return QuoteDocument(
        unit=quote.unit,
        exchange=float(quote.exchange),
        pools={name: float(price) for name, price in zip(problem.pools.pool_id, quote.prices, strict=True)},
    )


def finite_or_none(value: float | None) -> float | None:
    """Returns the value, None where it is not finite: nothing is proved."""
    return None if value is None or not np.isfinite(value) else float(value)


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


def problem_answered(answer: AnswerDocument, problem: Problem) -> Problem:
    """Returns the problem with the gangs over several pools that the answer made for it, at the speeds that the
    problem gives them.

    Raises:
        ConfigError: it answers another problem, or makes a gang that this one does not let it make.
    """
    if answer.problem != problem_digest(problem):
        raise ConfigError(
            "the answer is to another problem", field="problem", fix="give the problem file that was solved, unchanged"
        )
    if not answer.mixtures:
        return problem
    names, listed = _Names(problem), answer.mixtures
    use = np.zeros((len(listed), len(problem.pools)))
    for number, mixture in enumerate(listed):
        use[number] = names.per_pool(mixture.uses, f"mixtures[{number}].uses")
    job = np.array([names.job(one.id, f"mixtures[{number}].id") for number, one in enumerate(listed)], dtype=np.int64)
    made = MultiPoolGangs(job, np.array([mixture.steps_per_s for mixture in listed]), use)
    for number, wrong in invalid_mixed_gangs(problem, made):
        raise ConfigError(
            f"mixtures[{number}]: {wrong}",
            field=f"mixtures[{number}]",
            fix="make gangs of jobs that mix, of their size",
        )
    return append_columns(problem, made.columns)[0]


def decision_of(answer: AnswerDocument, problem: Problem) -> tuple[PolicySpec, Decision]:
    """Returns the policy that answered, and its decision.

    Args:
        answer: the document.
        problem: as `problem_answered` gives it.

    Raises:
        ConfigError: it names something that the problem does not have; `field` says where.
    """
    policy = PolicySpec(answer.policy.name, dict(answer.policy.parameters))
    if [answer.shares, answer.order, answer.plan].count(None) != 2:
        raise ConfigError("an answer has either shares, an order or a plan", field="shares", fix="give one of them")
    names = _Names(problem)
    if answer.shares is not None:
        return policy, _read_shares(answer.shares, problem, names)
    if answer.plan is not None:
        return policy, _read_plan(answer.plan, problem, names)
    assert answer.order is not None, "one of the three, as checked"
    return policy, _read_order(answer.order, problem, names)


class _Names:
    """Maps the names in documents to rows of the problem."""

    def __init__(self, problem: Problem) -> None:
        self._job = {int(job_id): row for row, job_id in enumerate(problem.jobs.job_id)}
        self._pool = {pool_id: row for row, pool_id in enumerate(problem.pools.pool_id)}
        self.first = np.searchsorted(problem.columns.job, np.arange(len(problem.jobs) + 1))

    def job(self, job_id: int, field: str) -> int:
        if job_id not in self._job:
            raise ConfigError(f"{field}: the problem has no job {job_id}", field=field, fix="name a job of the problem")
        return self._job[job_id]

    def pool(self, pool_id: str, field: str) -> int:
        if pool_id not in self._pool:
            raise ConfigError(f"{field}: the problem has no pool {pool_id!r}", field=field, fix="name one of its pools")
        return self._pool[pool_id]

    def column(self, row: int, place: int, field: str) -> int:
        if place >= self.first[row + 1] - self.first[row]:
            raise ConfigError(
                f"{field}: the job has no configuration {place}",
                field=field,
                fix=f"it has {self.first[row + 1] - self.first[row]}, counted from 0",
            )
        return int(self.first[row]) + place

    def per_pool(self, values: Mapping[str, float], field: str) -> FloatArray:
        array = np.zeros(len(self._pool))
        for name, value in values.items():
            array[self.pool(name, f"{field}.{name}")] = value
        return array

    def rows(self, ids: Iterable[int], field: str) -> IntArray:
        return np.array(sorted(self.job(job_id, field) for job_id in ids), dtype=np.int64)


def _read_shares(document: SharesDocument, problem: Problem, names: _Names) -> Shares:
    x, surplus = np.zeros(len(problem.columns)), np.zeros(len(problem.jobs))
    uses = uses_of(problem.columns, problem.pools.pool_id)
    for place, job in enumerate(document.jobs):
        row = names.job(job.id, f"shares.jobs[{place}].id")
        surplus[row] = job.surplus
        for number, entry in enumerate(job.shares):
            field = f"shares.jobs[{place}].shares[{number}]"
            column = names.column(row, entry.configuration, f"{field}.configuration")
            _repeated(entry.uses, uses[column], field)
            x[column] += entry.share
    certificate = document.certificate
    unproved = np.inf if certificate.maximise else -np.inf
    return Shares(
        x=x,
        rent=names.per_pool(document.rent, "shares.rent"),
        quote=_read_quote(document.prices, names, "shares"),
        surplus=surplus,
        certificate=_read_value(Certificate, certificate, objective=-unproved, bound=unproved, gap=np.inf),
        stages=tuple(_read_stage(stage, place, problem, names) for place, stage in enumerate(document.stages)),
        unplaceable=names.rows(document.unplaceable, "shares.unplaceable"),
        packed=_read_packed(document, problem, names),
        relaxed=names.rows(document.relaxed, "shares.relaxed"),
    )


def _read_stage(document: StageDocument, place: int, problem: Problem, names: _Names) -> SolveStage:
    n, field = len(problem.jobs), f"shares.stages[{place}]"
    parts: dict[str, Any] = {name: np.zeros(n) for name in _STAGE_PARTS.values()} | {"active": np.zeros(n, np.bool_)}
    for number, job in enumerate(document.jobs):
        row = names.job(job.id, f"{field}.jobs[{number}].id")
        for said, name in _STAGE_PARTS.items():
            parts[name][row] = getattr(job, said)
    return SolveStage(
        kind=document.kind,
        prices=np.concatenate((names.per_pool(document.prices, f"{field}.prices"), document.limits)),
        objective=document.objective,
        bound=np.inf if document.bound is None else document.bound,
        **parts,
    )


def _read_packed(document: SharesDocument, problem: Problem, names: _Names) -> ColocatedJobs:
    pairs = problem.pairs
    known: dict[tuple[int, int, int], int] = {}
    if pairs is not None:
        known = {
            (int(pairs.first[q]), int(pairs.second[q]), int(pairs.pool[q])): q for q in range(len(pairs))
        }  # fmt: skip
    rows: list[tuple[int, int, int]] = []
    for place, entry in enumerate(document.packed):
        field = f"shares.packed[{place}]"
        first, second = names.job(entry.first, f"{field}.first"), names.job(entry.second, f"{field}.second")
        pool = names.pool(entry.pool, f"{field}.pool")
        kinds = (int(pairs.kind[first]), int(pairs.kind[second])) if pairs is not None else (-1, -1)
        if (*kinds, pool) not in known:
            raise ConfigError(f"{field}: the problem has no such pair", field=field, fix="name jobs of a pair's kinds")
        rows.append((first, second, known[*kinds, pool]))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    share = np.array([entry.share for entry in document.packed], dtype=np.float64)
    return ColocatedJobs(table[:, 0], table[:, 1], table[:, 2], share)


def _read_order(document: OrderDocument, problem: Problem, names: _Names) -> Order:
    preference = np.zeros(len(problem.columns))
    rows: list[int] = []
    for place, job in enumerate(document.jobs):
        row = names.job(job.id, f"order.jobs[{place}].id")
        rows.append(row)
        for rank, configuration in enumerate(job.preference):
            column = names.column(row, configuration, f"order.jobs[{place}].preference[{rank}]")
            preference[column] = len(job.preference) - rank
    return Order(tuple(rows), preference, _read_yardstick(document.yardstick), document.no_yardstick)


def _read_plan(document: PlanDocument, problem: Problem, names: _Names) -> Plan:
    n = len(problem.jobs)
    column, surplus, rows = np.full(n, -1, dtype=np.int64), np.zeros(n), []
    uses = uses_of(problem.columns, problem.pools.pool_id)
    for place, job in enumerate(document.jobs):
        field = f"plan.jobs[{place}]"
        row = names.job(job.id, f"{field}.id")
        rows.append(row)
        surplus[row] = job.surplus
        if job.configuration is not None:
            column[row] = names.column(row, job.configuration, f"{field}.configuration")
            _repeated(job.uses, uses[column[row]], field)
    yardstick, quote = _read_yardstick(document.yardstick), _read_quote(document.prices, names, "plan")
    return Plan(column, np.array(rows, dtype=np.int64), quote, surplus, yardstick, document.no_yardstick)


def _read_quote(document: QuoteDocument, names: _Names, where: str) -> Quote:
    return Quote(names.per_pool(document.pools, f"{where}.prices.pools"), document.unit, document.exchange)


def _repeated(uses: Mapping[str, float], expected: Mapping[str, float], field: str) -> None:
    """Raises a ConfigError unless a configuration's uses are those of the problem."""
    if uses != expected:
        raise ConfigError(
            f"{field}.uses: that configuration uses something else", field=f"{field}.uses", fix="repeat its uses"
        )


def _read_yardstick(document: YardstickDocument | None) -> BoundReport | None:
    unproved = dict.fromkeys(("objective", "bound", "gap"), np.inf)
    return None if document is None else _read_value(BoundReport, document, **unproved)


#: Speeds and totals that agree to this part count as equal.
_SAME = 1e-6
#: Integral bounds that agree to this part count as equal: a search stops at a gap of this size.
_SAME_BOUND = 1e-4


def check_document(
    problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory, stated: AnswerDocument
) -> CheckDocument:
    """Checks a decision (given the memory with which the policy was asked) and the document that states it.

    `problem` is the one that was answered, gangs over several pools included.
    """
    found = check_decision(problem, policy, decision, memory)
    complaints = (
        *found.complaints,
        *mixed_gang_complaints(problem, policy, decision),
        *_amount_complaints(stated, answer_of(problem, policy, decision)),
        *_integral_bound_complaints(stated, integral_bound(problem, policy, decision, memory)),
    )
    return _stated(CheckDocument, found, holds=not complaints, complaints=complaints)


def _amount_complaints(stated: AnswerDocument, found: AnswerDocument) -> Iterator[str]:
    """Yields what is wrong in stated speeds of jobs and uses of pools, which must follow from the shares."""
    if stated.shares is None or found.shares is None:
        return
    jobs = {job.id: job for job in stated.shares.jobs}
    for job in found.shares.jobs:
        claim = jobs.get(job.id, JobAnswer(id=job.id))
        if not _same(claim.steps_per_s, job.steps_per_s) or not _same(claim.of_best or 0.0, job.of_best or 0.0):
            yield f"job {job.id}: {claim.steps_per_s:.6g} steps/s are stated, its shares make {job.steps_per_s:.6g}"
    for pool in sorted({*stated.shares.used, *found.shares.used}):
        claimed, taken = stated.shares.used.get(pool, 0.0), found.shares.used.get(pool, 0.0)
        if not _same(claimed, taken):
            yield f"pool {pool}: {claimed:.6g} accelerators are stated as used, the shares take {taken:.6g}"


def _integral_bound_complaints(stated: AnswerDocument, found: float | None) -> Iterator[str]:
    """Yields what is wrong in the stated integral bound, which must follow from the prices; a document without one
    claims nothing.
    """
    claim = None if stated.shares is None else stated.shares.certificate.integral_bound
    if claim is not None and (found is None or not abs(claim - found) <= _SAME_BOUND * max(abs(claim), abs(found))):
        yield f"integral bound: stated {claim:.9g}, found {'none' if found is None else format(found, '.9g')}"


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other), 1e-9)
