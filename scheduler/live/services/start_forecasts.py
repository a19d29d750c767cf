"""Forecasts of when jobs will start and end, kept fresh beside the loop with a stated share of one core.

Periodically the core's state is copied, in pieces of about a millisecond, in a step of the loop, and simulated forward
(a rollout) in a process that lives as long as the server, because it keeps what it compiles at its first rollout. After
a rollout of t seconds of processor time the next one waits until t is at most `CORE_SHARE` of the time passed. The
outcomes of former forecasts correct the next ones. No decision depends on a forecast: if an answer fails or takes too
long, one of a smaller sample is made. What is told says as of when it holds; of what is old, or contradicted by what
has happened since, nothing is told.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf
from statistics import median
from typing import Any, TypeVar

from scheduler.core.commands import JobTransitioned
from scheduler.core.events import Event
from scheduler.core.explain.feasibility import Remedy
from scheduler.forecast.core_copy import (
    AnswerT,
    CoreSnapshot,
    QuestionT,
    answer_about,
    give_up,
    pieces_of,
    receive_jobs,
    snapshot_core,
    with_jobs,
)
from scheduler.forecast.job_forecasts import (
    ForecastAnswer,
    ForecastQuestion,
    Interval,
    IntervalCalibration,
    JobForecast,
    forecast_jobs,
    still_true,
)
from scheduler.forecast.past_jobs import EndedJob, PastJobs
from scheduler.forecast.rollout import AWAITED_SIGNAL, RolloutLimits, yield_when_awaited
from scheduler.forecast.what_if import ChangeQuestion, WhatIfAnswer, WhatIfQuestion, verified_changes, what_if
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.loop.worker_process import kill_worker_process, new_worker_process, signal_worker_process
from scheduler.live.store.event_journal import parse_request
from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import JobQuery
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.job_request import JobId, JobRequest, Kind, kind_within
from walras.resources.jobs import ForecastView
from walras.states import JobState

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
TimedT = TypeVar("TimedT", ForecastQuestion, WhatIfQuestion)

#: Numbers of questions, which tell their jobs apart in a process that answers.
_TICKETS = count()

#: The share of one core that forecasts may take in the long run, and the least seconds between two of them.
CORE_SHARE, EVERY_S = 0.05, 10.0
#: Processor time, seconds, of one refresh at most, of it for each job, and of a question for which a person waits.
REFRESH_CPU_S, _CPU_OF_A_JOB_S, ASKED_CPU_S = 8.0, 0.09, 4.0
DRAWS, _DRAWS_ASKED = 20, 12
#: The age from which a forecast is no longer told, seconds: that of two looks that take all they may.
_OLD_S = 2 * REFRESH_CPU_S / CORE_SHARE
#: For comparisons of futures: processor time, and how long the caller waits, seconds; the same for a quote.
COMPARED_CPU_S, COMPARED_WITHIN_S = 8.0, 25.0
QUOTED_CPU_S, QUOTED_WITHIN_S = 3.0, 4.0
#: The part of the time for which a caller waits that is for the futures; the rest is for sending them the state.
_FOR_FUTURES = 0.8
#: How long an answer may take beyond its processor time: of a process, and of a new one, which still compiles, seconds.
_BESIDE_S, _COMPILING_S = 30.0, 300.0
#: The longest that a caller waits, seconds, and the most callers that may wait.
ASKED_WITHIN_S, _ASKING_MAX = 12.0, 4
#: A copy of up to this many jobs is tried in a thread, which is faster than sending it to another process.
_SMALL_JOBS = 200
#: The nice value of the process.
_NICE = 10
#: How many past jobs are read, by number from the newest down: of all jobs, and of those that ended, since before a
#: long queue none of the newest has ended.
_PAST_MAX = 1000
_FINAL_STATES = tuple(state.value for state in JobState if state.is_final)
#: How far ahead a start or end must at least be for that to be told alone: futures for which there was little time, as
#: while a new server still compiles, tell no more than that nothing happens in their first minute.
_WORTH_TELLING_S = 600.0
#: Forecasts that are recorded between two yields to the loop; starts and ends that may await the next refresh.
_IN_ONE_PIECE, _NOTED_MAX = 200, 20_000


def _new_polite_process() -> Executor:
    """Returns a pool of one process at a low priority, which ends with this one."""
    process = new_worker_process()
    # Ctrl-C while it still imports would end it with a traceback: it inherits this mask until it ignores the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.submit(os.nice, _NICE)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.submit(yield_when_awaited)
    return process


def refresh_cpu_s(jobs: int) -> float:
    """Returns the processor time for the futures of one refresh with so many active jobs, seconds."""
    return min(_CPU_OF_A_JOB_S * jobs, REFRESH_CPU_S)


async def take_snapshot(loop: ServerLoop) -> CoreSnapshot:
    """Returns the core's state now, copied in pieces between which the server runs."""
    found: list[CoreSnapshot] = []

    def step(transaction: Transaction) -> Iterator[None]:
        found.append((yield from snapshot_core(transaction.core, transaction.at)))

    await loop.perform_in_pieces(step)
    return found[0]


def _sent(pool: Executor, call: Callable[..., ResultT], *about: object) -> asyncio.Future[ResultT]:
    """Sends a call to the process. Raises BrokenProcessPool if that was ended on purpose meanwhile, too."""
    try:
        return asyncio.get_running_loop().run_in_executor(pool, call, *about)
    except RuntimeError as error:
        raise BrokenProcessPool("the process has been ended") from error


async def _ask_in_pieces(pool: Executor, answer: Callable[[QuestionT], AnswerT], question: QuestionT) -> AnswerT:
    """Returns what the process answers; the jobs of the state are sent to it before, in pieces.

    Raises BrokenProcessPool if the process has ended, and what `answer` raises.
    """
    ticket = next(_TICKETS)
    pieces, question = pieces_of(question.snapshot.jobs), with_jobs(question, ())
    try:
        for piece in pieces:
            await _sent(pool, receive_jobs, ticket, piece)
        return await _sent(pool, answer_about, ticket, answer, question)
    except BaseException:  # cancelled, too late, or no longer to be sent: what has arrived is of no use
        with suppress(RuntimeError):  # the process has ended
            pool.submit(give_up, ticket)
        raise


class StartForecasts:
    """Keeps forecasts of all active jobs, and answers what would happen after given events."""

    def __init__(
        self,
        loop: ServerLoop,
        store: Store,
        clocks: Clocks = SYSTEM_CLOCKS,
        make_pool: Callable[[], Executor] = _new_polite_process,
    ) -> None:
        self._loop, self._store, self._clocks, self._make_pool = loop, store, clocks, make_pool
        self._pool: Executor | None = None
        self._turn = asyncio.Lock()
        self._requests: dict[JobId, JobRequest] = {}
        self._starts, self._ends = IntervalCalibration(), IntervalCalibration()
        self._past = PastJobs()
        #: What came of jobs since the last refresh.
        self._came: list[tuple[float, JobId, JobState]] = []
        self._asking = 0
        #: Whether the process has answered once: a new one compiles for so long that nobody waits for it.
        self._has_answered = False
        #: Whether it works at a question that gives way to those for which people wait.
        self._may_yield = False
        self.answer: ForecastAnswer | None = None

    # ------------------------------------------------------------------------------------------------ what is known

    def view(self, job_id: JobId) -> ForecastView | None:
        """Returns the forecast of an active job; None if there is none that still holds, or none within the horizon."""
        answer, now, ledger = self.answer, self._loop.clock.now(), self._loop.core.ledger
        found = None if answer is None else answer.jobs.get(job_id)
        known = ledger.jobs.get(job_id)
        if answer is None or found is None or known is None or now - answer.at > _OLD_S:
            return None
        if known.state is JobState.HELD or not (known.holds or ledger.class_of(known).best_rate):
            return None  # somebody releases it, or nothing that is here could hold it
        told = still_true(self._corrected(answer.at, found), now, known.leased_at if known.holds else inf)
        return None if told is None else self._view(answer.at, told, now)

    def shown(self, at: float, forecast: JobForecast) -> ForecastView | None:
        """Returns a raw forecast as it is shown: corrected, in Unix seconds.

        None where most futures do not reach it, and not even how long it takes at least is known.
        """
        return self._view(at, self._corrected(at, forecast), at)

    def _corrected(self, at: float, forecast: JobForecast) -> JobForecast:
        start = None if forecast.start is None else self._starts.corrected(at, forecast.start)
        return replace(forecast, start=start, end=self._ends.corrected(at, forecast.end))

    def _view(self, at: float, told: JobForecast, now: float) -> ForecastView | None:
        unix, least_at = self._loop.clock.unix, max(at + _WORTH_TELLING_S, now)
        start = end = starts_after = ends_after = None
        if told.start is not None and told.start.p50 == inf:
            starts_after = unix(told.starts_after) if told.starts_after > least_at else None
        else:
            start = None if told.start is None else self._told(told.start, at)
            end = self._told(told.end, at) if told.end.p50 < inf else None
            ends_after = unix(told.ends_after) if end is None and told.ends_after > least_at else None
        if not (start or end or starts_after or ends_after):
            return None
        return ForecastView(as_of=unix(at), start=start, end=end, starts_after=starts_after, ends_after=ends_after)

    def start_alike(self) -> ForecastView | None:
        """Returns between which instants a newcomer may start, as jobs that wait do; None where nothing is known."""
        answer, now = self.answer, self._loop.clock.now()
        if answer is None or now - answer.at > _OLD_S:
            return None
        waiting = (JobState.PENDING, JobState.HELD)
        jobs = {job_id for job_id, live in self._loop.state.jobs.items() if live.row.state in waiting}
        starts = [each.start for job_id, each in answer.jobs.items() if job_id in jobs and each.start is not None]
        if not starts or (middle := median(each.p50 for each in starts)) == inf:
            return None
        alike = Interval(now, max(middle, now), max(each.p90 for each in starts))
        return ForecastView(as_of=self._loop.clock.unix(answer.at), start=self._told(alike, answer.at))

    def promised(self, at: float, forecast: JobForecast) -> float | None:
        """Returns the instant by which to promise an end, Unix seconds; None if it is beyond the horizon."""
        end_by = self._ends.promised(at, forecast)
        return None if end_by > at + RolloutLimits().horizon_s else self._loop.clock.unix(end_by)

    def _told(self, interval: Interval, at: float) -> tuple[float, float, float]:
        latest, unix = at + RolloutLimits().horizon_s, self._loop.clock.unix
        return unix(interval.p10), unix(interval.p50), unix(min(interval.p90, latest))

    # ------------------------------------------------------------------------------------------------ kept fresh

    async def watch(self) -> None:
        """Refresh the forecasts for ever, at most at `CORE_SHARE` of one core."""
        await self._begin_process()
        await asyncio.sleep(EVERY_S)
        while True:
            began = self._clocks.monotonic()
            spent_s = await self.refresh() if self._loop.core.ledger.jobs else 0.0
            took_s = self._clocks.monotonic() - began
            await asyncio.sleep(max(EVERY_S, spent_s / CORE_SHARE - took_s))

    async def _begin_process(self) -> None:
        """Let the process start, and import what it needs, before somebody waits for it."""
        nobody = replace(await take_snapshot(self._loop), jobs=())
        await self._answered(forecast_jobs, ForecastQuestion(nobody, self._past, 1), ASKED_CPU_S)

    async def refresh(self) -> float:
        """Make new forecasts once. Returns the processor time that it took, seconds."""
        self._past = past = await asyncio.get_running_loop().run_in_executor(None, self._read_past)
        self._learn()
        lost_s = 0.0
        for draws, most_s, yields in ((DRAWS, REFRESH_CPU_S, True), (_DRAWS_ASKED, ASKED_CPU_S, False)):
            snapshot = await take_snapshot(self._loop)
            cpu_s = min(refresh_cpu_s(len(snapshot.jobs)), most_s)
            question = ForecastQuestion(snapshot, past, draws, cpu_s, within_s=_BESIDE_S, yields=yields)
            del snapshot
            answer = await self._answered(forecast_jobs, question, cpu_s)
            del question
            if answer is not None and answer.draws:
                break
            lost_s += cpu_s if answer is None else answer.cpu_s
        else:
            return lost_s
        self.answer = answer
        for position, (job_id, forecast) in enumerate(answer.jobs.items(), start=1):
            if position % _IN_ONE_PIECE == 0:
                await asyncio.sleep(0)
            live = self._loop.state.jobs.get(job_id)
            if live is None:
                continue
            if forecast.start is not None and live.row.attempts == 0:
                self._starts.said(job_id, answer.at, forecast.start)
            self._ends.said(job_id, answer.at, forecast.end)
        return lost_s + answer.cpu_s

    def deliver(self, effects: TransactionEffects) -> None:
        """Note the outcomes of forecasts (`EffectHandler`). They count from the next refresh on."""
        for event, commands in effects.answered:
            self._came += [
                (event.at, command.job_id, command.state)
                for command in commands
                if isinstance(command, JobTransitioned)
                and (command.state is JobState.STARTING or command.state.is_final)
            ]
        if len(self._came) > _NOTED_MAX:
            self._learn()

    def _learn(self) -> None:
        """Compare what came with the forecasts."""
        for at, job_id, state in self._came:
            if state is JobState.STARTING:
                self._starts.came(job_id, at)
                continue
            self._starts.forget(job_id)
            if state is JobState.CANCELLED:
                self._ends.forget(job_id)
            else:
                self._ends.came(job_id, at)
        self._came.clear()

    async def foresee(self, told: tuple[Event, ...] = (), only: JobId | None = None) -> ForecastAnswer | None:
        """Returns forecasts of one job or all, as if these events came now; None where they were not made in time."""
        snapshot = await take_snapshot(self._loop)
        question = ForecastQuestion(snapshot, self._past, _DRAWS_ASKED, ASKED_CPU_S, told=told, only=only)
        return await self._answered(forecast_jobs, question, ASKED_CPU_S)

    async def foresee_job(self, event: Event, job_id: JobId) -> ForecastView | None:
        """Returns the forecast of a job that this event brings or changes; None where it was not made in time."""
        if self._pool is None:
            return None
        answer = await self._in_time(self.foresee((event,), job_id), ASKED_WITHIN_S)
        found = None if answer is None else answer.jobs.get(job_id)
        return None if answer is None or found is None else self.shown(answer.at, found)

    async def compare(
        self,
        make_alternatives: Callable[[CoreSnapshot], Sequence[Sequence[Event]]],
        visible: frozenset[str] | None,
        cpu_s: float = COMPARED_CPU_S,
        within_s: float = COMPARED_WITHIN_S,
    ) -> WhatIfAnswer | None:
        """Returns what each of these alternatives would make different; None where that was not computed in time.

        `make_alternatives` gets the state from which they depart; what it raises is raised here. As many futures are
        compared as there is time for.
        """

        async def compared() -> WhatIfAnswer | None:
            snapshot = await take_snapshot(self._loop)
            alternatives = tuple(tuple(each) for each in make_alternatives(snapshot))
            question = WhatIfQuestion(
                snapshot, self._past, alternatives, visible, cpu_s=cpu_s, within_s=_FOR_FUTURES * within_s
            )
            return await self._answered(what_if, question, cpu_s)

        return await self._in_time(compared(), within_s)

    async def changes_that_help(self, job_id: JobId, looks: Iterable[Remedy]) -> frozenset[str] | None:
        """Returns the texts (`Remedy.text`) of the changes that start a waiting job soon; None where that took too
        long.

        Each is tried on a copy of the state: of a small one in a thread, else in the process.
        """

        async def verified() -> frozenset[str]:
            question = ChangeQuestion(await take_snapshot(self._loop), job_id, tuple(looks))
            if self._pool is not None and len(question.snapshot.jobs) > _SMALL_JOBS:
                changes = await _ask_in_pieces(self._pool, verified_changes, question)
            else:
                changes = await asyncio.to_thread(verified_changes, question)
            return frozenset(changes)

        return await self._in_time(verified(), ASKED_WITHIN_S)

    async def _in_time(self, work: Coroutine[Any, Any, ResultT], within_s: float) -> ResultT | None:
        """Returns what somebody asked for; None if it takes longer, or if too many ask at the same time."""
        if self._asking >= _ASKING_MAX:
            work.close()
            return None
        self._asking += 1
        try:
            # Not `wait_for`: it loses a cancellation that comes at the same moment as the answer.
            async with asyncio.timeout(within_s):
                return await work
        except (TimeoutError, BrokenProcessPool):
            return None
        finally:
            self._asking -= 1

    async def _answered(self, answer: Callable[[TimedT], AnswerT], question: TimedT, cpu_s: float) -> AnswerT | None:
        """Returns the process's answer to a question of `cpu_s` seconds of processor time; None if it fails."""
        began_s = self._clocks.monotonic()
        if self._may_yield:
            signal_worker_process(self._pool, AWAITED_SIGNAL)
        async with self._turn:
            question = replace(question, within_s=question.within_s - (self._clocks.monotonic() - began_s))
            if self._pool is None:
                self._pool = self._make_pool()
            try:
                # Not `wait_for`: it loses a cancellation that comes at the same moment as the answer.
                async with asyncio.timeout((_BESIDE_S if self._has_answered else _COMPILING_S) + 4 * cpu_s):
                    self._may_yield = self._has_answered and isinstance(question, ForecastQuestion) and question.yields
                    asking = _ask_in_pieces(self._pool, answer, question)
                    del question  # its jobs are not to be kept until the answer comes
                    found = await asking
                    self._has_answered = True
                    return found
            except TimeoutError:
                log.warning("forecasting: no answer in time")
            except BrokenProcessPool:
                log.warning("forecasting: the process has died")
            except Exception:  # outermost handler of that process
                log.warning("forecasting: no answer", exc_info=True)
                return None
            finally:
                self._may_yield = False
            self._end_process()
            return None

    # ------------------------------------------------------------------------------------------------ the past

    def _read_past(self) -> PastJobs:
        """Returns the newest jobs, and the newest that ended, as the tables have them. Blocks on the disk."""
        arrived = self._store.jobs(JobQuery(limit=_PAST_MAX))[::-1]
        ended = [
            row for row in self._store.jobs(JobQuery(_FINAL_STATES, limit=_PAST_MAX)) if row.started_at is not None
        ]
        had_s: dict[JobId, float] = {}
        for used in self._store.usage([row.job_id for row in ended], self._loop.clock.now()):
            had_s[used.job_id] = had_s.get(used.job_id, 0.0) + used.accelerator_s
        past = PastJobs()
        for row in arrived:
            request = self._request(row.job_id)
            if request is not None:
                past.arrived(row.submitted_at, request)
        for row in sorted(ended, key=lambda row: row.ended_at or 0.0):
            ran_s = had_s.get(row.job_id, 0.0) / max(row.accelerators, 1)
            ratio = row.steps / row.steps_total if row.steps_total and row.state is JobState.SUCCEEDED else None
            if ran_s > 0:
                request = self._request(row.job_id)
                kind, cut = kind_within(row.project, Kind(row.kind)), row.state is JobState.CANCELLED
                guess_s = None if request is None else request.duration_s
                told = (row.user, kind, ran_s, ratio, row.steps, request, row.project, cut, guess_s)
                past.ended.append(EndedJob(*told))
        known, self._requests = self._requests, {}
        for row in (*arrived, *ended):
            if row.job_id in known:
                self._requests[row.job_id] = known[row.job_id]
        return past

    def _request(self, job_id: JobId) -> JobRequest | None:
        known = self._requests.get(job_id)
        if known is None and (spec := self._store.spec(job_id)) is not None:
            known = self._requests[job_id] = parse_request(spec.request)
        return known

    async def close(self) -> None:
        """End the process; a rollout under way is cancelled."""
        self._end_process()

    def _end_process(self) -> None:
        kill_worker_process(self._pool)
        self._pool = None
        self._has_answered = False
