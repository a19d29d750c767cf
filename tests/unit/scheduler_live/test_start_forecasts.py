"""Forecasts of starts and ends in a live server, and what would be if: kept, shown, and corrected by what came."""

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import JobCancelled, JobReprioritised, JobRestored
from scheduler.core.explain.feasibility import Remedy, possible_remedies
from scheduler.forecast import core_copy
from scheduler.forecast.core_copy import JOBS_IN_A_PIECE, answer_about, receive_jobs, with_jobs
from scheduler.forecast.job_forecasts import (
    ForecastAnswer,
    ForecastQuestion,
    Interval,
    JobForecast,
    forecast_jobs,
)
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.http import what_if_api
from scheduler.live.services import start_forecasts
from scheduler.live.services.start_forecasts import StartForecasts, take_snapshot
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent, World
from tests.support.waiting import PATIENCE, until
from walras.cli.forecast_text import (
    clock_text,
    expected_text,
    forecast_text,
    later_text,
    show_ways,
    show_what_if,
    taken_text,
)
from walras.cli.simulate_commands import parse_added
from walras.contract import FORECAST_AHEAD_S
from walras.errors import UserError
from walras.job_request import Demand, JobId
from walras.resources.jobs import ForecastView, JobDetail
from walras.resources.what_if import QuoteView, WhatIfView, take_way
from walras.spec.job_spec import parse_spec, spec_mapping

#: A step takes a second on `a`; 1000 of them.
LONG = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}


async def _with_speed(w: World) -> tuple[FakeAgent, JobId]:
    """A job that runs, whose speed is known."""
    agent, job_id = await w.running(LONG)
    await agent.beat(agent.progress(job_id, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    return agent, job_id


async def _view(w: World, job_id: JobId) -> object:
    row = w.server.store.job(job_id)
    assert row is not None
    return (await w.server.views.jobs([row], []))[0].forecast


async def test_a_waiting_job_is_told_when_it_starts_and_ends_and_so_is_a_running_one(w: World) -> None:
    """1,000 s for each of two jobs one after the other; Unix seconds, around the middle, in order."""
    _, running = await _with_speed(w)
    waiting = await w.submit(LONG)
    held = await w.submit({**LONG, "hold": True})
    await w.quiet()
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
    assert await forecasts.foresee_job(JobReprioritised(0.0, waiting, 100), waiting) is None, "not begun"
    assert await forecasts.refresh() > 0.0
    now = w.clock.unix(w.clock.now())
    first, second = forecasts.view(running), forecasts.view(waiting)
    assert first.start is None
    assert first.as_of == second.as_of == now
    assert first.end[1] - now == pytest.approx(1000.0, rel=0.1)
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


async def test_of_what_is_beyond_the_futures_it_is_told_how_long_it_takes_at_least(w: World) -> None:
    """Two weeks are looked ahead: a job behind one of a month starts after most of them, and the first ends after."""
    agent, first = await w.running({**LONG, "steps": 30 * 86_400})
    await agent.beat(agent.progress(first, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    second = await w.submit(LONG)
    await w.quiet()
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
    await forecasts.refresh()
    now, week = w.clock.unix(w.clock.now()), 7 * 86_400.0
    runs, waits = forecasts.view(first), forecasts.view(second)
    assert (runs.start, runs.end, runs.starts_after) == (None, None, None)
    assert (waits.start, waits.end, waits.ends_after) == (None, None, None)
    assert runs.ends_after is not None
    assert waits.starts_after is not None
    assert now + week < runs.ends_after <= now + 2 * week
    assert now + week < waits.starts_after <= now + 2 * week
    assert expected_text(runs, now).startswith("ends after ")
    assert expected_text(waits, now).startswith("starts after ")
    assert "in nine cases of ten" in forecast_text(waits, now)
    assert "about" not in forecast_text(waits, now)
    raw = forecasts.answer
    soon = replace(raw.jobs[second], starts_after=raw.at + 300.0)
    assert forecasts.shown(raw.at, soon) is None, "of futures that hardly began"
    await forecasts.close()


async def test_the_listing_carries_the_forecast_and_what_came_is_learnt_once(w: World) -> None:
    """A job that ends after a third of what it was given narrows what is told of the next one's end."""
    agent, job_id = await _with_speed(w)
    own = w.server.start_forecasts
    own._make_pool = lambda: ThreadPoolExecutor(1)
    assert await _view(w, job_id) is None
    await own.refresh()
    assert await _view(w, job_id) == own.view(job_id) is not None
    w.clock.at += 300.0
    await agent.end(job_id)
    await w.submit(LONG)
    await w.quiet()
    assert await _view(w, job_id) is None
    await own.refresh()
    (outcome,) = own._ends._outcomes
    assert outcome.high < -0.9
    await own.refresh()
    assert list(own._ends._outcomes) == [outcome]
    await own.close()


async def test_a_queue_of_newer_jobs_hides_neither_ended_ones_nor_what_came(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a queue of thousands the newest jobs all wait: lengths are learnt from those that ended all the same."""
    monkeypatch.setattr(start_forecasts, "_PAST_MAX", 3)
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


async def test_a_cancelled_job_is_longer_than_it_ran_and_one_that_ended_is_not(w: World) -> None:
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


async def test_explain_gives_one_reason_in_words_and_only_what_was_tried(w: World) -> None:
    """Asking for what is free helps; what does not start the job on a copy is not told."""
    agent, first = await w.running({**LONG, "resources": {"accelerators": {"a": 1}}})
    await agent.beat(agent.progress(first, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    waiting = await w.submit(LONG)
    await w.quiet()
    row = w.server.store.job(waiting)
    assert row is not None
    assert w.server.views.why(row).startswith(f"job {first} holds what it needs (it needs 2 x a, 1 free); it ends in")
    job = w.server.core.ledger.jobs[waiting]
    looks = possible_remedies(w.server.core, job)
    assert [each.text for each in looks] == ["submit it with a:1, which would fit now"]
    helps = await w.server.start_forecasts.changes_that_help(waiting, looks)
    assert helps == {looks[0].text}
    lies = [Remedy("submit it with a:2", (Demand("a", 2),)), Remedy("make it urgent", priority=50)]
    assert await w.server.start_forecasts.changes_that_help(waiting, lies) == frozenset()
    assert w.server.core.ledger.jobs.keys() == {first, waiting}


async def test_a_job_that_has_started_since_is_not_told_to_start(w: World) -> None:
    """A forecast is kept for minutes; the job that waited when it was made runs meanwhile. Of one that nothing here can
    hold, and of one that started before it was expected to, nothing is told.
    """
    job_id, waiting = await w.submit(LONG), await w.submit(LONG)
    await w.quiet()
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: ThreadPoolExecutor(1))
    waits = Interval(100.0, 200.0, 300.0)
    beyond = Interval(inf, inf, inf)
    made = JobForecast(waits, beyond)
    forecasts.answer = ForecastAnswer(0.0, {job_id: made, waiting: made}, 5, 1.0)
    assert forecasts.view(job_id) is None
    agent = await FakeAgent(w, "n1").register()
    await agent.start_all()
    await w.quiet()
    assert forecasts.view(waiting).start is not None
    assert forecasts.view(job_id) is None
    ends = replace(made, end=Interval(400.0, 500.0, 600.0))
    forecasts.answer = ForecastAnswer(0.0, {job_id: ends}, 5, 1.0)
    assert forecasts.view(job_id) is None
    ends = replace(ends, start=replace(waits, p10=w.clock.now()))
    forecasts.answer = ForecastAnswer(0.0, {job_id: ends}, 5, 1.0)
    told = forecasts.view(job_id)
    assert (told.start, told.starts_after) == (None, None)
    assert told.end is not None


class _DeadPool(Executor):
    """A process that has died."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        raise BrokenProcessPool


async def test_a_forecast_that_is_old_or_contradicted_by_what_happened_is_not_told(w: World) -> None:
    """Neither an end that has passed, nor a start that a waiting job has missed, nor anything two looks old."""
    _, running = await _with_speed(w)
    waiting = await w.submit(LONG)
    await w.quiet()
    forecasts = StartForecasts(w.loop, w.server.store)
    at = w.clock.now()
    soon, later = Interval(at + 10.0, at + 20.0, at + 30.0), Interval(at + 100.0, at + 200.0, at + 900.0)
    made = {running: JobForecast(None, soon), waiting: JobForecast(soon, later)}
    forecasts.answer = ForecastAnswer(at, made, 5, 1.0)
    assert forecasts.view(running).end is not None
    assert forecasts.view(waiting).start is not None
    w.clock.at += 90.0
    assert (forecasts.view(running), forecasts.view(waiting)) == (None, None)
    stopped = replace(made[waiting], start=None)  # it ran when the forecast was made
    forecasts.answer = ForecastAnswer(at, {waiting: stopped, running: replace(made[running], end=later)}, 5, 1.0)
    assert forecasts.view(waiting) is None
    assert "as of 1m30s ago" in forecast_text(forecasts.view(running), w.clock.unix(w.clock.now()))
    w.clock.at += 300.0
    assert forecasts.view(running) is None


async def test_a_forecast_that_fails_is_made_of_a_smaller_sample_at_once(w: World) -> None:
    """A machine that is too busy for the whole sample has a coarse forecast and not none."""
    _, running = await _with_speed(w)
    pools = iter([_DeadPool(), ThreadPoolExecutor(1)])
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: next(pools))
    assert await forecasts.refresh() > start_forecasts.refresh_cpu_s(1), "what failed counts"
    assert forecasts.answer is not None
    assert forecasts.answer.draws < start_forecasts.DRAWS
    assert forecasts.view(running) is not None
    await forecasts.close()


def test_the_end_of_what_is_looked_ahead_is_not_told_as_an_instant() -> None:
    """Nine in ten come after p10, and nobody knows of the last one: it is open, in the terminal as on the page."""
    start = (3600.0, 7200.0, FORECAST_AHEAD_S)
    open_ended = ForecastView(as_of=0.0, start=start, end=start)
    early = clock_text(3600.0, 0.0)
    assert expected_text(open_ended, 0.0) == f"starts {early} or later"
    assert forecast_text(open_ended, 0.0).count(f"({early} or later nine times in ten)") == 2
    page = (Path(start_forecasts.__file__).parent.parent / "web/static/words.js").read_text()
    assert f"const AHEAD_S = {FORECAST_AHEAD_S / 86_400.0:.0f} * 86400;" in page


@pytest.mark.parametrize(("deadline", "is_late"), [("+25m", True), ("+3h", False)])
async def test_a_deadline_behind_a_job_on_a_full_owned_fleet_is_at_risk_where_the_end_is_foreseen_after_it(
    face: Face, deadline: str, *, is_late: bool
) -> None:
    """The machines that it would need are others': no pool has an outlook, and the forecast says when it ends."""
    w = face.world
    await _with_speed(w)
    waiting = await w.submit({**LONG, "deadline": deadline})
    await w.quiet()
    own = w.server.start_forecasts
    own._make_pool = lambda: ThreadPoolExecutor(1)
    await own.refresh()
    answer = (await face.json("GET", f"/api/v1/jobs/{waiting}/explain"))[1]
    told = [each["detail"] for each in answer["conditions"] if each["type"] == "at_risk"]
    assert len(told) == is_late
    instant = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert all(re.fullmatch(f"it is expected to end about {instant}, its deadline is {instant}", each) for each in told)


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


async def test_no_call_carries_more_than_a_piece_and_the_answer_is_that_of_the_whole(w: World) -> None:
    await _queue(w)
    pool = _Watched()
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: pool)
    answer = await forecasts.foresee()
    *pieces, (_, ticket, _, question) = pool.calls
    assert [len(jobs) for _, _, jobs in pieces] == [JOBS_IN_A_PIECE, JOBS_IN_A_PIECE, 7]
    assert {each for _, each, _ in pieces} == {ticket}
    assert question.snapshot.jobs == ()
    whole = forecast_jobs(ForecastQuestion(await take_snapshot(w.loop), forecasts._past, question.draws))
    assert len(answer.jobs) == JOBS
    assert answer.jobs == whole.jobs
    assert not core_copy._arrived


@pytest.mark.parametrize("part", [1, 2])
async def test_a_question_that_is_given_up_leaves_no_jobs_behind(w: World, part: int) -> None:
    """Cancelled while its pieces travel: that process lives on and must not keep them."""
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


async def test_a_process_that_is_ended_between_two_pieces_gives_no_answer(w: World) -> None:
    """Another question's deadline ends it. Nobody is told of a mistake of ours."""
    await _queue(w)
    pool = _Watched(1)
    forecasts = StartForecasts(w.loop, w.server.store, make_pool=lambda: pool)
    forecasts._pool = pool
    asked = asyncio.create_task(forecasts.changes_that_help(JobId(1), ()))
    await pool.has_come.wait()
    pool.shutdown()
    assert await asked is None
    assert [call for call, *_ in pool.calls] == [receive_jobs] * 2 + [core_copy.give_up]


async def test_pieces_of_two_questions_do_not_mix(w: World) -> None:
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


API = "/api/v1"
#: A step takes a second on `a`.


async def _busy(face: Face) -> None:
    """A machine with a job, another job that waits for it, and a speed that is known."""
    face.world.server.start_forecasts._make_pool = lambda: ThreadPoolExecutor(1)
    agent, job_id = await face.world.running(LONG)
    await agent.beat(agent.progress(job_id, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    await face.world.submit({**LONG, "name": "second"})
    await face.world.quiet()


async def test_with_another_machine_the_job_that_waits_is_told_to_end_sooner(
    face: Face, capsys: pytest.CaptureFixture[str]
) -> None:
    await _busy(face)
    answer = await face.done("POST", f"{API}/whatif", {"add": [{"accelerator": "a", "accelerators": 2}]})
    found = WhatIfView.model_validate(answer)
    (second,) = found.jobs
    assert second.name == "second"
    assert second.start_s[1] == pytest.approx(-1000.0, rel=0.1)
    assert found.total.completion_s[1] == pytest.approx(-500.0, rel=0.1)
    assert [each.project for each in found.projects] == ["default"]
    show_what_if(found)
    shown = capsys.readouterr().out
    assert "more in" in shown
    assert "sooner" in shown
    # Nothing was done.
    assert len((await face.json("GET", f"{API}/nodes"))[1]) == 1


async def test_a_comparison_without_time_says_that_it_is_not_known_yet(
    face: Face, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the process has other work: not an error, and no difference that could be taken for none."""
    monkeypatch.setattr(what_if_api, "COMPARED_WITHIN_S", 0.5)
    await _busy(face)
    async with face.world.server.start_forecasts._turn:
        asked = {"remove": ["n1"], "submit": [{"run": ["true"], **LONG}]}
        answer = await face.done("POST", f"{API}/whatif", asked)
    found = WhatIfView.model_validate(answer)
    assert found.draws == 0
    show_what_if(found)
    shown = capsys.readouterr().out
    assert "Not known yet: its futures were not computed" in shown
    assert "n1" in shown
    assert "different" not in shown


async def test_a_refresh_gives_way_to_a_question_for_which_somebody_waits(w: World) -> None:
    """It stops drawing, or is made anew of a smaller sample; the next one has all its draws again."""
    await _with_speed(w)
    for _ in range(20):
        await w.submit(LONG)
    await w.quiet()
    forecasts = StartForecasts(w.loop, w.server.store)
    await forecasts._begin_process()
    refreshing = asyncio.create_task(forecasts.refresh())
    await until(lambda: forecasts._may_yield, 5.0, "it has been asked")
    assert (await forecasts.foresee()).draws
    await refreshing
    assert 0 < forecasts.answer.draws < start_forecasts.DRAWS
    await forecasts.close()


async def test_a_job_is_quoted_for_each_type_that_it_may_have(face: Face, capsys: pytest.CaptureFixture[str]) -> None:
    await _busy(face)
    answer = await face.done("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
    (way,) = QuoteView.model_validate(answer).ways
    assert way.way == "2 x a"
    assert way.delayed_jobs == 0
    assert way.promised_by >= way.forecast.end[2]
    show_ways(QuoteView.model_validate(answer))
    shown = capsys.readouterr().out
    assert "nobody" in shown
    assert "by " in shown
    taken = take_way(parse_spec({"run": ["true"], **LONG}), QuoteView.model_validate(answer), "a:2")
    status, submitted = await face.json("POST", f"{API}/jobs", spec_mapping(taken))
    assert status == 201, submitted["detail"]
    job = JobDetail.model_validate((await face.json("GET", f"{API}/jobs/{submitted['id']}"))[1])
    request = face.world.server.core.ledger.jobs[JobId(job.id)].request
    assert face.world.server.loop.clock.unix(request.deadline_at) == pytest.approx(taken.quoted.end_by, abs=1.0)
    assert taken_text(job).startswith("2 x a, to end by ")
    await face.json("POST", f"{API}/jobs/{job.id}/cancel")
    # With another priority it would go before the one that waits.
    status, answer = await face.json("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG, "priority": 100})
    assert QuoteView.model_validate(answer).ways[0].delayed_jobs > 0
    assert len(face.world.live_state.jobs) == 2


async def test_a_quote_of_a_sweep_says_that_it_is_of_one_job(face: Face, capsys: pytest.CaptureFixture[str]) -> None:
    """Forty jobs do not end, nor cost, as the first of them alone; so no end of it can be taken as their deadline."""
    await _busy(face)
    sweep = {"run": ["true"], **LONG, "array": "0-39"}
    answers = [(await face.json("POST", f"{API}/jobs:{word}", sweep))[1] for word in ("quote", "dryrun")]
    assert ["stands for the first of its 40 jobs" in each["note"] for each in answers] == [True, True]
    menu = QuoteView.model_validate(answers[0])
    show_ways(menu)
    assert "this stands for the first of its 40 jobs, without the others" in capsys.readouterr().out
    with pytest.raises(UserError, match="first job of a sweep"):
        take_way(parse_spec(sweep), menu, "a:2")


async def test_a_quote_without_time_tells_what_is_known(
    face: Face, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the process has other work a quote has the starts of jobs that wait, or a free place, and never fails."""
    monkeypatch.setattr(what_if_api, "QUOTED_WITHIN_S", 0.2)
    forecasts = face.world.server.start_forecasts
    async with forecasts._turn:
        answer = await face.done("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
        assert QuoteView.model_validate(answer).ways[0].forecast is None, "no machine, and nobody waits"
    await _busy(face)
    await forecasts.refresh()
    async with forecasts._turn:
        began = time.monotonic()
        status, answer = await face.json("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
        assert time.monotonic() - began < 5.0 * PATIENCE
        small = {"run": ["true"], "profile": "cnn", "resources": {"accelerators": {"a": 1}}}
        assert (await face.json("POST", f"{API}/jobs:quote", small))[0] == 200
    assert status == 200, answer
    found = QuoteView.model_validate(answer)
    (way,) = found.ways
    assert (found.draws, way.usd, way.promised_by, way.forecast.end) == (0, None, None, None)
    assert way.forecast.start[0] <= way.forecast.start[1] <= way.forecast.start[2]
    show_ways(found)
    assert "ask again" in capsys.readouterr().out
    with pytest.raises(UserError, match="nobody can tell"):
        take_way(parse_spec({"run": ["true"], **LONG}), found, "a:2")


async def test_a_job_without_a_machine_is_promised_nothing_and_told_why(face: Face) -> None:
    """What no future reaches has no forecast and no promise, in words."""
    await _busy(face)
    await face.json("POST", f"{API}/nodes/n1/drain", {})
    await face.world.quiet()
    answer = await face.done("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
    (way,) = QuoteView.model_validate(answer).ways
    assert (way.forecast, way.promised_by) == (None, None)
    assert way.no_promise.startswith("half of the futures do not reach its end within 14 days")


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({}, 400, "add"),
        ({"add": [{"accelerator": "a", "accelerators": 0}]}, 400, "add.0.accelerators"),
        ({"add": [{"accelerator": "h100", "accelerators": 1}]}, 404, "add"),
        ({"remove": ["nowhere"]}, 404, "remove"),
        ({"remove": ["x"] * 17}, 400, "remove"),
        ({"no_limit": ["default"]}, 404, "no_limit"),
        ({"policy": {"policy": {"name": "no-such"}}}, 400, "policy.name"),
        ({"submit": [{"run": ["true"], "resources": {"accelerators": {"a": 64}}}]}, 400, None),
        ({"nonsense": 1}, 400, "nonsense"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_field(
    face: Face, asked: dict[str, Any], status: int, field: str | None
) -> None:
    await _busy(face)
    got, problem = await face.json("POST", f"{API}/whatif", asked)
    assert got == status, problem
    assert field is None or problem["field"] == field


def test_the_words_of_a_difference_say_whether_its_sign_is_sure() -> None:
    assert later_text((0.0, 0.0, 0.4)) == "same"
    assert later_text((-1200.0, -720.0, -480.0)) == "12m00s sooner (8m00s to 20m00s)"
    assert later_text((60.0, 120.0, 180.0)) == "2m00s later (1m00s to 3m00s)"
    assert later_text((-60.0, 10.0, 180.0)) == "not sure (1m00s sooner to 3m00s later)"


def test_machines_to_add_are_read_and_refused_in_words() -> None:
    assert parse_added("4xh100:spot") == {"accelerator": "h100", "accelerators": 4, "market": "spot"}
    assert parse_added("8xa100") == {"accelerator": "a100", "accelerators": 8}
    for text in ("h100", "xh100", "4x", "fourxh100", "4xh100:moon"):
        with pytest.raises(UserError, match="accelerators of a type"):
            parse_added(text)
