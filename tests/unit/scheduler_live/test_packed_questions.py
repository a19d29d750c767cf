"""What crosses to the forecasting process: the same question, the same answer, in pieces between which others run."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from scheduler.forecast.job_forecasts import (
    ForecastAnswer,
    ForecastQuestion,
    Interval,
    JobForecast,
    PromiseBasis,
    forecast_jobs,
)
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.services.packed_questions import answer_packed, pack_question, unpack_answer
from scheduler.live.services.start_forecasts import StartForecasts, take_snapshot
from tests.support.live_world import world
from walras.job_request import JobId

MANY = 400


async def _question(folder: Path) -> ForecastQuestion:
    async with world(folder) as w:
        for _ in range(3):
            await w.submit({"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000})
        snapshot = await take_snapshot(w.loop)
    one = snapshot.jobs[0]
    more = [replace(one, job=replace(one.job, job_id=JobId(number))) for number in range(100, 100 + MANY)]
    return ForecastQuestion(replace(snapshot, jobs=(*snapshot.jobs, *more)), PastJobs(), draws=3)


def _forecast(question: ForecastQuestion) -> ForecastAnswer:
    """A forecast of each job, from its place in the question."""
    told = {}
    for number, job in enumerate(question.snapshot.jobs):
        end = Interval(number, 2.0 * number, 3.0 * number)
        told[job.job.job_id] = JobForecast(None, end, PromiseBasis(end, 4.0 * number))
    return ForecastAnswer(question.snapshot.at, told, 1, 0.5)


async def test_the_process_gets_the_question_as_it_was_and_the_caller_its_answer(tmp_path: Path) -> None:
    question = await _question(tmp_path)
    packed = await pack_question(question)
    assert packed.bare.snapshot.jobs == ()
    seen = []
    answered = answer_packed(lambda asked: seen.append(asked) or _forecast(asked), packed)  # type: ignore[func-returns-value]
    assert seen == [question]
    assert answered.bare.jobs == {}
    assert await unpack_answer(answered) == _forecast(question)
    # An answer that is no forecast of many jobs comes as it is.
    assert await unpack_answer(answer_packed(lambda asked: len(asked.snapshot.jobs), packed)) == len(
        question.snapshot.jobs
    )


async def test_a_real_forecast_is_the_same_packed_or_not(tmp_path: Path) -> None:
    whole = await _question(tmp_path)
    question = replace(whole, snapshot=replace(whole.snapshot, jobs=whole.snapshot.jobs[:3]))
    answer = await unpack_answer(answer_packed(forecast_jobs, await pack_question(question)))
    assert replace(answer, cpu_s=0.0) == replace(forecast_jobs(question), cpu_s=0.0)
    assert len(answer.jobs) == 3


async def test_the_loop_runs_between_the_pieces(tmp_path: Path) -> None:
    """Neither side of the crossing is one step of the loop: others get a turn for each piece."""
    question = await _question(tmp_path)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    packed = await pack_question(question)
    packing, turns = turns, 0
    await unpack_answer(answer_packed(_forecast, packed))
    beside.cancel()
    assert packing >= len(packed.pieces) >= 8
    assert turns >= 8


async def test_a_refresh_hands_the_pool_no_job_that_is_not_packed(tmp_path: Path) -> None:
    """What a pool's thread would have to pack itself stays small, however many jobs there are."""
    sizes = []

    class Watching(ThreadPoolExecutor):
        def submit(self, work, /, *given, **named):  # type: ignore[no-untyped-def]
            (answer, packed) = given
            sizes.append((answer, len(packed.bare.snapshot.jobs)))
            return super().submit(work, *given, **named)

    async with world(tmp_path) as w:
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: Watching(1))
        for _ in range(2):
            await w.submit({"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000})
        await forecasts.refresh()
        for _ in range(20):
            await w.submit({"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000})
        await forecasts.refresh()
        assert forecasts.answer is not None
        assert len(forecasts.answer.jobs) == 22
        await forecasts.close()
    assert sizes == [(forecast_jobs, 0)] * 2
