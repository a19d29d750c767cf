"""What the checker found, as a document; and whether the document of an answer says what its shares amount to."""

from collections.abc import Iterator

from optimizer.certificate import check
from optimizer.checking.mixtures import about_mixtures
from optimizer.decision import Decision, Memory
from optimizer.documents.answer import AnswerDocument, CheckDocument, JobAnswer
from optimizer.documents.answering import answer_of, finite
from optimizer.gangs.whole import integral_bound
from optimizer.policy import PolicySpec
from optimizer.problem import Problem

#: Speeds and totals that agree to this part are the same.
_SAME = 1e-6
#: So are integral bounds: a search stops at a gap of this size.
_SAME_BOUND = 1e-4


def check_document(
    problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory, stated: AnswerDocument
) -> CheckDocument:
    """Check a decision, given what the policy remembered when it was asked, and the document that states it.

    `problem` is the one that was answered, gangs over several pools included.
    """
    found = check(problem, policy, decision, memory)
    complaints = (
        *found.complaints,
        *about_mixtures(problem, policy, decision),
        *_about_amounts(stated, answer_of(problem, policy, decision)),
        *_about_whole_gangs(stated, integral_bound(problem, policy, decision, memory)),
    )
    return CheckDocument(
        holds=not complaints,
        objective=finite(found.objective),
        bound=finite(found.bound),
        gap=finite(found.gap),
        violation=found.violation,
        complaints=complaints,
        unchecked=found.unchecked,
    )


def _about_amounts(stated: AnswerDocument, found: AnswerDocument) -> Iterator[str]:
    """Speeds of jobs and use of pools follow from the shares."""
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


def _about_whole_gangs(stated: AnswerDocument, found: float | None) -> Iterator[str]:
    """The integral bound follows from the prices; who does not state it claims nothing."""
    claim = None if stated.shares is None else stated.shares.certificate.integral_bound
    if claim is not None and (found is None or not abs(claim - found) <= _SAME_BOUND * max(abs(claim), abs(found))):
        yield f"integral bound: stated {claim:.9g}, found {'none' if found is None else format(found, '.9g')}"


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other), 1e-9)
