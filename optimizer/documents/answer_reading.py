"""Reads an answer document back into a decision about a problem, and checks whether the document holds.

A document that names jobs, pools or configurations that the problem does not have is no answer to it: a ConfigError.
`optimizer.check.certificate` says whether its numbers hold; this module writes that finding as a document, together
with whether the totals stated in the answer follow from its shares.
"""

from collections.abc import Iterable, Iterator, Mapping

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
    CheckDocument,
    JobAnswer,
    OrderDocument,
    PlanDocument,
    QuoteDocument,
    SharesDocument,
    StageDocument,
    YardstickDocument,
)
from optimizer.documents.answer_writing import answer_of, finite_or_none, problem_digest
from optimizer.documents.problem_conversion import uses_of
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, IntArray, Problem
from walras.errors import ConfigError


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
        return policy, _shares(answer.shares, problem, names)
    if answer.plan is not None:
        return policy, _plan(answer.plan, problem, names)
    assert answer.order is not None, "one of the three, as checked"
    return policy, _order(answer.order, problem, names)


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


def _shares(document: SharesDocument, problem: Problem, names: _Names) -> Shares:
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
        quote=_quote(document.prices, names, "shares"),
        surplus=surplus,
        certificate=Certificate(
            status=certificate.status,
            objective=-unproved if certificate.objective is None else certificate.objective,
            bound=unproved if certificate.bound is None else certificate.bound,
            gap=np.inf if certificate.gap is None else certificate.gap,
            violation=certificate.violation,
            path=certificate.path,
            maximise=certificate.maximise,
        ),
        stages=tuple(_stage(stage, place, problem, names) for place, stage in enumerate(document.stages)),
        unplaceable=names.rows(document.unplaceable, "shares.unplaceable"),
        packed=_packed(document, problem, names),
        relaxed=names.rows(document.relaxed, "shares.relaxed"),
    )


def _stage(document: StageDocument, place: int, problem: Problem, names: _Names) -> SolveStage:
    n, field = len(problem.jobs), f"shares.stages[{place}]"
    active, floor, cap, multiplier, time = np.zeros(n, dtype=np.bool_), *np.zeros((4, n))
    for number, job in enumerate(document.jobs):
        row = names.job(job.id, f"{field}.jobs[{number}].id")
        active[row], floor[row], cap[row] = job.raised, job.floor, job.cap
        multiplier[row], time[row] = job.utility_value, job.time_value
    return SolveStage(
        kind=document.kind,
        active=active,
        floor=floor,
        cap=cap,
        prices=np.concatenate((names.per_pool(document.prices, f"{field}.prices"), document.limits)),
        objective=document.objective,
        bound=np.inf if document.bound is None else document.bound,
        multiplier=multiplier,
        time=time,
    )


def _packed(document: SharesDocument, problem: Problem, names: _Names) -> ColocatedJobs:
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


def _order(document: OrderDocument, problem: Problem, names: _Names) -> Order:
    preference = np.zeros(len(problem.columns))
    rows: list[int] = []
    for place, job in enumerate(document.jobs):
        row = names.job(job.id, f"order.jobs[{place}].id")
        rows.append(row)
        for rank, configuration in enumerate(job.preference):
            column = names.column(row, configuration, f"order.jobs[{place}].preference[{rank}]")
            preference[column] = len(job.preference) - rank
    yardstick = None if document.yardstick is None else _yardstick(document.yardstick)
    return Order(tuple(rows), preference, yardstick, document.no_yardstick)


def _plan(document: PlanDocument, problem: Problem, names: _Names) -> Plan:
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
    yardstick = None if document.yardstick is None else _yardstick(document.yardstick)
    quote = _quote(document.prices, names, "plan")
    return Plan(column, np.array(rows, dtype=np.int64), quote, surplus, yardstick, document.no_yardstick)


def _quote(document: QuoteDocument, names: _Names, where: str) -> Quote:
    return Quote(names.per_pool(document.pools, f"{where}.prices.pools"), document.unit, document.exchange)


def _repeated(uses: Mapping[str, float], expected: Mapping[str, float], field: str) -> None:
    """Raises a ConfigError unless a configuration's uses are those of the problem."""
    if uses != expected:
        raise ConfigError(
            f"{field}.uses: that configuration uses something else", field=f"{field}.uses", fix="repeat its uses"
        )


def _yardstick(document: YardstickDocument) -> BoundReport:
    objective, bound, gap = (
        np.inf if value is None else value for value in (document.objective, document.bound, document.gap)
    )
    return BoundReport(document.name, document.unit, objective, bound, gap, document.maximise)


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
    return CheckDocument(
        holds=not complaints,
        objective=finite_or_none(found.objective),
        bound=finite_or_none(found.bound),
        gap=finite_or_none(found.gap),
        violation=found.violation,
        complaints=complaints,
        unchecked=found.unchecked,
    )


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
