"""Forecasts of starts and ends in a live server: kept, shown, and corrected by what came."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from scheduler.core.events import JobCancelled
from scheduler.core.explain.feasibility import Remedy, possible_remedies
from scheduler.core.job_change_events import JobReprioritised
from scheduler.forecast.job_forecasts import ForecastAnswer, Interval, JobForecast, PromiseBasis
from scheduler.live.services import start_forecasts
from scheduler.live.services.start_forecasts import StartForecasts
from tests.support.live_world import FakeAgent, World, world
from walras.cli.forecast_text import expected_text, forecast_text
from walras.job_request import Demand, JobId

#: A step takes a second on `a`; 1000 of them.
LONG = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}


async def _with_speed(w: World) -> tuple[FakeAgent, JobId]:
    """A job that runs, whose speed is known."""
    agent = await FakeAgent(w, "n1").register()
    job_id = await w.submit(LONG)
    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    return agent, job_id


async def _view(w: World, job_id: JobId) -> object:
    row = w.server.store.job(job_id)
    assert row is not None
    return (await w.server.views.jobs([row], []))[0].forecast


async def test_a_waiting_job_is_told_when_it_starts_and_ends_and_so_is_a_running_one(tmp_path: Path) -> None:
    """1,000 s for each of two jobs one after the other; Unix seconds, around the middle, in order."""
    async with world(tmp_path) as w:
        _, running = await _with_speed(w)
        waiting = await w.submit(LONG)
        held = await w.submit({**LONG, "hold": True})
        await w.quiet()
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
        assert await forecasts.foresee_job(JobReprioritised(0.0, waiting, 100), waiting) is None, "not begun"
        assert await forecasts.refresh() > 0.0
        now = w.clock.unix(w.clock.now())
        first, second = forecasts.view(running), forecasts.view(waiting)
        assert first is not None
        assert second is not None
        assert first.start is None
        assert first.as_of == second.as_of == now
        assert first.end is not None
        assert second.end is not None
        assert first.end[1] - now == pytest.approx(1000.0, rel=0.1)
        assert second.start is not None
        assert second.start[1] - now == pytest.approx(1000.0, rel=0.1)
        assert second.end[1] - now == pytest.approx(2000.0, rel=0.1)
        assert second.start[0] < second.start[1] < second.start[2] <= second.end[2]
        assert forecasts.view(held) is None
        # What a person sees names the interval, never a time alone.
        assert "-" in expected_text(second, now)
        assert forecast_text(second, now).count("four times in five") == 2
        assert expected_text(None, now) == forecast_text(None, now) == ""
        # Tried: as the first of the queue it starts no later.
        sooner = await forecasts.foresee_job(JobReprioritised(0.0, waiting, 100), waiting)
        assert sooner is not None
        assert w.server.core.ledger.jobs[waiting].request.priority == 50, "only a copy was changed"
        await forecasts.close()


async def test_of_what_is_beyond_the_futures_it_is_told_how_long_it_takes_at_least(tmp_path: Path) -> None:
    """Two weeks are looked ahead: a job behind one of a month starts after most of them, and the first ends after."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        first = await w.submit({**LONG, "steps": 30 * 86_400})
        await agent.start_all()
        await agent.beat(agent.progress(first, 1, 1.0, steps_per_s=1.0, start_s=1.0))
        second = await w.submit(LONG)
        await w.quiet()
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
        await forecasts.refresh()
        now, week = w.clock.unix(w.clock.now()), 7 * 86_400.0
        runs, waits = forecasts.view(first), forecasts.view(second)
        assert runs is not None
        assert waits is not None
        assert (runs.start, runs.end, runs.starts_after) == (None, None, None)
        assert (waits.start, waits.end, waits.ends_after) == (None, None, None)
        assert runs.ends_after is not None
        assert waits.starts_after is not None
        assert now + week < runs.ends_after <= now + 2 * week
        assert now + week < waits.starts_after <= now + 2 * week
        assert expected_text(runs, now).startswith("ends after ")
        assert expected_text(waits, now).startswith("starts after ")
        assert "in nine futures of ten" in forecast_text(waits, now)
        assert "about" not in forecast_text(waits, now)
        raw = forecasts.answer
        assert raw is not None
        soon = replace(raw.jobs[second], starts_after=raw.at + 300.0)
        assert forecasts.shown(raw.at, soon) is None, "of futures that hardly began"
        await forecasts.close()


async def test_the_listing_carries_the_forecast_and_a_job_that_is_over_has_none(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent, job_id = await _with_speed(w)
        own = w.server.start_forecasts
        own._make_pool = lambda: ThreadPoolExecutor(1)
        assert await _view(w, job_id) is None
        await own.refresh()
        assert await _view(w, job_id) == own.view(job_id) is not None
        await agent.end(job_id)
        await w.quiet()
        assert await _view(w, job_id) is None
        await own.close()


async def test_what_came_is_learnt_once(tmp_path: Path) -> None:
    """A job that ends after a third of what it was given narrows what is told of the next one's end."""
    async with world(tmp_path) as w:
        agent, job_id = await _with_speed(w)
        forecasts = w.server.start_forecasts
        forecasts._make_pool = lambda: ThreadPoolExecutor(1)
        await forecasts.refresh()
        w.clock.at += 300.0
        await agent.end(job_id)
        await w.submit(LONG)
        await w.quiet()
        await forecasts.refresh()
        (outcome,) = forecasts._ends._outcomes
        assert outcome.high < -0.9
        await forecasts.refresh()
        assert list(forecasts._ends._outcomes) == [outcome]
        await forecasts.close()


async def test_a_queue_of_newer_jobs_hides_neither_ended_ones_nor_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a queue of thousands the newest jobs all wait: lengths are learnt from those that ended all the same."""
    monkeypatch.setattr(start_forecasts, "_PAST_MAX", 3)
    async with world(tmp_path) as w:
        agent, job_id = await _with_speed(w)
        forecasts = w.server.start_forecasts
        forecasts._make_pool = lambda: ThreadPoolExecutor(1)
        waiting = [await w.submit(LONG) for _ in range(5)]
        await forecasts.refresh()
        assert forecasts._ends._pending.keys() == {job_id, *waiting}
        w.clock.at += 300.0
        await agent.end(job_id)
        await w.emit(lambda at: JobCancelled(at, waiting[-1]))
        await w.quiet()
        await forecasts.refresh()
        past = forecasts._past
        assert [job.ran_s for job in past.ended] == [pytest.approx(300.0, abs=10.0)]
        assert [each.request.job_id for each in past.arrivals] == waiting[-3:]
        assert [each.job_id for each in forecasts._ends._outcomes] == [job_id]
        assert [each.job_id for each in forecasts._starts._outcomes] == [waiting[0]]
        # Nothing is kept of jobs that are over.
        assert forecasts._ends._pending.keys() == set(waiting[:-1])
        assert forecasts._starts._pending.keys() == set(waiting[1:-1])
        await forecasts.close()


async def test_a_cancelled_job_is_longer_than_it_ran_and_one_that_ended_is_not(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent, cancelled = await _with_speed(w)
        w.clock.at += 100.0
        await w.emit(lambda at: JobCancelled(at, cancelled))
        await agent.end(cancelled, exit_code=None, signal=15)
        ended = await w.submit(LONG)
        await agent.start_all()
        w.clock.at += 50.0
        await agent.end(ended)
        await w.quiet()
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
        await forecasts.refresh()
        assert [job.is_cut for job in forecasts._past.ended] == [True, False]
        await forecasts.close()


async def test_explain_gives_one_reason_in_words_and_only_what_was_tried(tmp_path: Path) -> None:
    """Asking for what is free helps; what does not start the job on a copy is not told."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        first = await w.submit({**LONG, "resources": {"accelerators": {"a": 1}}})
        await agent.start_all()
        await agent.beat(agent.progress(first, 1, 1.0, steps_per_s=1.0, start_s=1.0))
        waiting = await w.submit(LONG)
        await w.quiet()
        row = w.server.store.job(waiting)
        assert row is not None
        assert w.server.views.why(row).startswith(
            f"job {first} holds what it needs (it needs 2 x a, 1 free); it ends in"
        )
        job = w.server.core.ledger.jobs[waiting]
        looks = possible_remedies(w.server.core, job)
        assert [each.text for each in looks] == ["submit it with a:1, which would fit now"]
        helps = await w.server.start_forecasts.changes_that_help(waiting, looks)
        assert helps == {looks[0].text}
        lies = [Remedy("submit it with a:2", (Demand("a", 2),)), Remedy("make it urgent", priority=50)]
        assert await w.server.start_forecasts.changes_that_help(waiting, lies) == frozenset()
        assert w.server.core.ledger.jobs.keys() == {first, waiting}


async def test_a_job_that_has_started_since_is_not_told_to_start(tmp_path: Path) -> None:
    """A forecast is kept for minutes; the job that waited when it was made runs meanwhile."""
    async with world(tmp_path) as w:
        job_id = await w.submit(LONG)
        await w.quiet()
        forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
        waits = Interval(10.0, 20.0, 30.0)
        beyond = Interval(inf, inf, inf)
        made = JobForecast(waits, beyond, PromiseBasis(beyond, inf))
        forecasts.answer = ForecastAnswer(0.0, {job_id: made}, 5, 1.0)
        told = forecasts.view(job_id)
        assert told is not None
        assert told.start is not None
        agent = await FakeAgent(w, "n1").register()
        await agent.start_all()
        await w.quiet()
        assert forecasts.view(job_id) is None
        forecasts.answer = ForecastAnswer(0.0, {job_id: replace(made, end=Interval(40.0, 50.0, 60.0))}, 5, 1.0)
        told = forecasts.view(job_id)
        assert told is not None
        assert (told.start, told.starts_after) == (None, None)
        assert told.end is not None
