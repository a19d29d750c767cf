"""Questions to the forecasting process and its answers, packed in pieces between which the event loop runs.

Packing does not let other threads run: ten thousand jobs, packed as a whole by a thread of the pool, would stop the
loop for a fifth of a second, and unpacking their forecasts delays it as long. So the jobs of a state, and the forecasts
of an answer, cross to the other process as packed pieces of about a millisecond. That process is a child of this one
and reads nothing else; packed bytes from elsewhere are never read.
"""

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from scheduler.core.restore_events import JobRestored
from scheduler.forecast.job_forecasts import ForecastAnswer, ForecastQuestion, JobForecast
from scheduler.forecast.verified_changes import ChangeQuestion
from scheduler.forecast.what_if import WhatIfQuestion
from walras.job_request import JobId

#: Values in one piece.
_PIECE = 50

QuestionT = TypeVar("QuestionT", ForecastQuestion, WhatIfQuestion, ChangeQuestion)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class PackedQuestion(Generic[QuestionT]):
    """A question without its jobs, and these in pieces."""

    bare: QuestionT
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PackedAnswer(Generic[AnswerT]):
    """An answer; of forecasts, one without its jobs, and these in pieces."""

    bare: AnswerT
    pieces: tuple[bytes, ...]


async def pack_question(question: QuestionT) -> PackedQuestion[QuestionT]:
    """Returns the question packed, in pieces between which the event loop runs."""
    pieces = []
    for piece in _packed(question.snapshot.jobs):
        pieces.append(piece)
        await asyncio.sleep(0)
    return PackedQuestion(replace(question, snapshot=replace(question.snapshot, jobs=())), tuple(pieces))


def answer_packed(answer: Callable[[QuestionT], AnswerT], packed: PackedQuestion[QuestionT]) -> PackedAnswer[AnswerT]:
    """Runs in the process: answers a packed question."""
    jobs: tuple[JobRestored, ...] = tuple(job for piece in packed.pieces for job in pickle.loads(piece))
    found = answer(replace(packed.bare, snapshot=replace(packed.bare.snapshot, jobs=jobs)))
    if not isinstance(found, ForecastAnswer):
        return PackedAnswer(found, ())
    return PackedAnswer(replace(found, jobs={}), tuple(_packed(list(found.jobs.items()))))


async def unpack_answer(packed: PackedAnswer[AnswerT]) -> AnswerT:
    """Returns the answer unpacked, in pieces between which the event loop runs."""
    if not isinstance(packed.bare, ForecastAnswer):
        return packed.bare
    jobs: dict[JobId, JobForecast] = {}
    for piece in packed.pieces:
        jobs.update(pickle.loads(piece))
        await asyncio.sleep(0)
    return replace(packed.bare, jobs=jobs)


def _packed(values: Sequence[Any]) -> Iterator[bytes]:
    for first in range(0, len(values), _PIECE):
        yield pickle.dumps(values[first : first + _PIECE])
