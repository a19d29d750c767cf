"""A question about a state whose jobs reach the process that answers in pieces, before the question itself.

Ten thousand jobs take a tenth of a second to pack, in which the sender's other threads hardly get a turn, and a call
keeps what it carries until its answer comes. A piece is short, and gone from the sender once it has arrived.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from scheduler.core.restore_events import JobRestored
from scheduler.forecast.core_copy import CoreSnapshot

#: Number of jobs in a piece, which takes about a millisecond to pack.
JOBS_IN_A_PIECE = 100

Jobs = tuple[JobRestored, ...]
AnswerT = TypeVar("AnswerT")


class AboutState(Protocol):
    """A dataclass that asks about a state."""

    @property
    def snapshot(self) -> CoreSnapshot: ...


QuestionT = TypeVar("QuestionT", bound=AboutState)

#: In the process that answers: jobs that have arrived, by the ticket of their question.
_arrived: dict[int, list[JobRestored]] = {}


def pieces_of(jobs: Jobs) -> Iterator[Jobs]:
    """Yields the jobs in pieces."""
    for first in range(0, len(jobs), JOBS_IN_A_PIECE):
        yield jobs[first : first + JOBS_IN_A_PIECE]


def with_jobs(question: QuestionT, jobs: Jobs) -> QuestionT:
    """Returns the question about the same state with these jobs instead.

    Every question about a state is a dataclass; the protocol cannot say so.
    """
    asked: Any = question
    changed: QuestionT = replace(asked, snapshot=replace(question.snapshot, jobs=jobs))
    return changed


def receive_jobs(ticket: int, jobs: Jobs) -> None:
    """Keeps a piece until its question comes or is given up."""
    _arrived.setdefault(ticket, []).extend(jobs)


def give_up(ticket: int) -> None:
    """Drops the pieces of a question that will not come."""
    _arrived.pop(ticket, None)


def answer_about(ticket: int, answer: Callable[[QuestionT], AnswerT], question: QuestionT) -> AnswerT:
    """Returns the answer to the question about a state with all jobs of its ticket."""
    return answer(with_jobs(question, tuple(_arrived.pop(ticket, ()))))
