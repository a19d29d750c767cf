"""A long queue reaches the forecasting process in pieces: the answer is the same, and nothing stays behind."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.restore_events import JobRestored
from scheduler.forecast import core_copy
from scheduler.forecast.core_copy import JOBS_IN_A_PIECE, answer_about, receive_jobs, with_jobs
from scheduler.forecast.job_forecasts import ForecastQuestion, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.services.start_forecasts import StartForecasts, take_snapshot
from tests.support.live_world import World, world
from walras.job_request import JobId

JOBS = 2 * JOBS_IN_A_PIECE + 7


class _Watched(Executor):
    """Runs calls in a thread, one after the other, keeps what they carried, and tells of one of them."""

    def __init__(self, told: int = 0) -> None:
        self._threads, self.calls = ThreadPoolExecutor(1), list[tuple[Any, ...]]()
        self._told, self.has_come = told, asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.calls.append((fn, *args))
        if len(self.calls) == self._told:
            self.has_come.set()
        return self._threads.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


async def _queue(w: World) -> None:
    for _ in range(JOBS):
        await w.submit({"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000})
    await w.quiet()


async def test_no_call_carries_more_than_a_piece_and_the_answer_is_that_of_the_whole(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await _queue(w)
        pool = _Watched()
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: pool)
        answer = await forecasts.foresee()
        *pieces, (_, ticket, _, question) = pool.calls
        assert [len(jobs) for _, _, jobs in pieces] == [JOBS_IN_A_PIECE, JOBS_IN_A_PIECE, 7]
        assert {each for _, each, _ in pieces} == {ticket}
        assert question.snapshot.jobs == ()
        whole = forecast_jobs(ForecastQuestion(await take_snapshot(w.loop), forecasts._past, question.draws))
        assert answer is not None
        assert len(answer.jobs) == JOBS
        assert answer.jobs == whole.jobs
        assert not core_copy._arrived


@pytest.mark.parametrize("part", [1, 2])
async def test_a_question_that_is_given_up_leaves_no_jobs_behind(tmp_path: Path, part: int) -> None:
    """Cancelled while its pieces travel: that process lives on and must not keep them."""
    async with world(tmp_path) as w:
        await _queue(w)
        pool = _Watched(part)
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: pool)
        asked = asyncio.create_task(forecasts.foresee())
        await pool.has_come.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert pool.calls[-1][0] is core_copy.give_up
        await asyncio.wrap_future(pool.submit(int))
        assert not core_copy._arrived


async def test_a_process_that_is_ended_between_two_pieces_gives_no_answer(tmp_path: Path) -> None:
    """Another question's deadline ends it. Nobody is told of a mistake of ours."""
    async with world(tmp_path) as w:
        await _queue(w)
        pool = _Watched(1)
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: pool)
        forecasts._pool = pool
        asked = asyncio.create_task(forecasts.changes_that_help(JobId(1), ()))
        await pool.has_come.wait()
        pool.shutdown()
        assert await asked is None
        assert [call for call, *_ in pool.calls] == [receive_jobs] * 2 + [core_copy.give_up]


async def test_pieces_of_two_questions_do_not_mix(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await _queue(w)
        state = await take_snapshot(w.loop)
    first, second = state.jobs[:5], state.jobs[5:9]
    for jobs in (first[:3], first[3:]):
        receive_jobs(-1, jobs)
        receive_jobs(-2, second)
    question = with_jobs(ForecastQuestion(state, PastJobs()), ())
    assert answer_about(-1, _jobs_of, question) == first
    assert answer_about(-2, _jobs_of, question) == (*second, *second)


def _jobs_of(question: ForecastQuestion) -> tuple[JobRestored, ...]:
    return question.snapshot.jobs
