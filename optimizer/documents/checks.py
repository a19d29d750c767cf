"""What the checker found, as a document."""

from optimizer.certificate import check
from optimizer.decision import Decision, Memory
from optimizer.documents.answer import CheckDocument
from optimizer.documents.answering import finite
from optimizer.policy import PolicySpec
from optimizer.problem import Problem


def check_document(problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory) -> CheckDocument:
    """Check a decision, given what the policy remembered when it was asked."""
    found = check(problem, policy, decision, memory)
    return CheckDocument(
        holds=found.holds,
        objective=finite(found.objective),
        bound=finite(found.bound),
        gap=finite(found.gap),
        violation=found.violation,
        complaints=found.complaints,
    )
