"""Endpoints about futures: what a change would make different (`POST /whatif`), and the ways to run a job.

Nothing is changed: copies of the core's state are simulated forward in the process of the forecasts. Callers see the
projects of their token by name, and all others as one sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from scheduler.core.events import Event, JobSubmitted
from scheduler.forecast.core_copy import CoreSnapshot
from scheduler.forecast.job_forecasts import Interval, JobForecast
from scheduler.forecast.rollout import RolloutLimits
from scheduler.forecast.what_if import (
    AddedMachines,
    AlternativeOutcome,
    GroupDifference,
    StateChanges,
    WhatIfAnswer,
    events_of_changes,
)
from scheduler.live.http.request_bodies import read_spec
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.http.submission_api import tried_request
from scheduler.live.services.job_submission import check_feasible, dry_run
from scheduler.live.services.start_forecasts import (
    COMPARED_CPU_S,
    COMPARED_WITHIN_S,
    QUOTED_CPU_S,
    QUOTED_WITHIN_S,
)
from walras.errors import UserError
from walras.job_request import Demand, JobId, JobRequest
from walras.resources.jobs import ForecastView
from walras.resources.what_if import (
    DifferenceView,
    JobDifferenceView,
    QuoteView,
    Triple,
    WayView,
    WhatIfCalls,
    WhatIfRequest,
    WhatIfView,
)
from walras.spec.job_groups import needs_of
from walras.spec.job_spec import parse_spec
from walras.spec.sweeps import sweep_note

#: How many jobs are shown by name, and how many ways to run a job.
_JOBS_MOST, _WAYS_MOST = 20, 6
#: A job counts as delayed if it ends later by more than this, seconds.
_DELAYED_S = 60.0
_NONE = 0.0, 0.0, 0.0
#: A job that would be started at once has started by then, seconds.
_AT_ONCE_S = 60.0
MakeAlternatives = Callable[[CoreSnapshot], Sequence[Sequence[Event]]]


@serves(WhatIfCalls.what_if)
async def compare_futures(call: RequestContext) -> WhatIfView:
    asked = await call.model(WhatIfRequest)
    if asked == WhatIfRequest():
        raise UserError("nothing is to be different", field="add", fix="give add, remove, policy, submit or no_limit")
    server = call.server
    first = server.state.next_job_id
    tried = [tried_request(call, parse_spec(each), JobId(first + number)) for number, each in enumerate(asked.submit)]
    requests = [request for _, request in tried]
    changes = StateChanges(
        tuple(AddedMachines(each.accelerator, each.accelerators, each.market) for each in asked.add),
        tuple(asked.remove),
        None if asked.policy is None else server.policies.check(asked.policy),
        tuple(requests),
        tuple(asked.no_limit),
    )
    words: list[str] = []

    def alternatives(snapshot: CoreSnapshot) -> Sequence[Sequence[Event]]:
        events, told = events_of_changes(snapshot, changes)
        words.extend(told)
        return (events,)

    answer = await _compared(call, alternatives, COMPARED_CPU_S, COMPARED_WITHIN_S)
    words += [f"job {draft.spec.name} submitted" for draft, _ in tried]
    if answer is None:
        return WhatIfView(
            as_of=server.loop.clock.unix(server.loop.clock.now()),
            draws=0,
            not_known=_not_in_time(COMPARED_WITHIN_S),
            changes=words,
            total=DifferenceView(project="all", jobs=0, completion_s=_NONE, usd=_NONE),
            projects=[],
            jobs=[],
            submitted=[_way_at_hand(call, request) for request in requests],
            unfinished=(0.0, 0.0),
        )
    (outcome,) = answer.outcomes
    visible = call.user.visible_projects
    return WhatIfView(
        as_of=server.loop.clock.unix(answer.at),
        draws=answer.draws,
        changes=words,
        total=_difference("all", outcome.total),
        projects=[_difference(name, found) for name, found in sorted(outcome.projects.items())],
        jobs=_changed_jobs(call, outcome),
        submitted=[_way(call, answer, outcome, request) for request in requests],
        unfinished=outcome.unfinished if visible is None else (0.0, 0.0),
    )


@serves(WhatIfCalls.quote)
async def quote_job(call: RequestContext) -> QuoteView:
    """Returns forecasts of the job as it asks to be run, and on each accelerator type that it may have by itself."""
    job_id = JobId(call.server.state.next_job_id)
    spec = await call.read(read_spec)
    draft, request = tried_request(call, spec, job_id)
    ways = [("", request)]
    for demand in _single_demands(call, request):
        one = replace(request, demands=(demand,), sizes=())
        try:
            check_feasible(call.server.core, call.server.state, one, needs_of(draft.spec))
        except UserError:  # no pool could ever run it so
            continue
        ways.append((f"{demand.count} x {demand.accelerator}", one))
    ways = ways[: _WAYS_MOST + 1] if len(ways) > 2 else [ways[-1]]
    at = call.server.loop.clock.now()
    answer = await _compared(
        call, lambda _: [(JobSubmitted(at, each),) for _, each in ways], QUOTED_CPU_S, QUOTED_WITHIN_S
    )
    if answer is None:
        told = [_way_at_hand(call, each).model_copy(update={"way": way}) for way, each in ways]
        return QuoteView(as_of=call.server.loop.clock.unix(at), draws=0, ways=told, note=sweep_note(spec))
    told = [
        _way(call, answer, outcome, each).model_copy(update={"way": way})
        for (way, each), outcome in zip(ways, answer.outcomes, strict=True)
    ]
    told.sort(key=lambda way: inf if way.forecast is None or way.forecast.end is None else way.forecast.end[1])
    as_of = call.server.loop.clock.unix(answer.at)
    return QuoteView(as_of=as_of, draws=answer.draws, ways=told, note=sweep_note(spec))


def _single_demands(call: RequestContext, request: JobRequest) -> list[Demand]:
    """Returns one demand for each accelerator type that the job may have, in the order in which it names them."""
    types = sorted({pool.shape.accelerator for pool in call.server.state.pools.values() if pool.shape.accelerators})
    found: dict[str, Demand] = {}
    for demand in request.demands:
        for accelerator in demand.types_of(types) or [demand.accelerator]:
            found.setdefault(accelerator, Demand(accelerator, demand.count))
    return list(found.values())


async def _compared(
    call: RequestContext, alternatives: MakeAlternatives, cpu_s: float, within_s: float
) -> WhatIfAnswer | None:
    visible = call.user.visible_projects
    seen = None if visible is None else frozenset(visible)
    return await call.server.start_forecasts.compare(alternatives, seen, cpu_s, within_s)


def _way_at_hand(call: RequestContext, request: JobRequest) -> WayView:
    """Returns what is known without a future: that it would start at once, or when jobs that wait start."""
    now = call.server.loop.clock.unix(call.server.loop.clock.now())
    at_once = dry_run(call.server.core, request).chosen is not None
    alike = call.server.start_forecasts.start_alike()
    forecast = ForecastView(as_of=now, start=(now, now, now + _AT_ONCE_S)) if at_once else alike
    why = _not_in_time(QUOTED_WITHIN_S)
    return WayView(forecast=forecast, no_promise=why, usd=None, delayed_jobs=0, delay_s=0.0)


def _not_in_time(within_s: float) -> str:
    return f"its futures were not computed within {within_s:g} s; ask again in a minute"


def _changed_jobs(call: RequestContext, outcome: AlternativeOutcome) -> list[JobDifferenceView]:
    told: list[JobDifferenceView] = []
    by_change = sorted(outcome.jobs.items(), key=lambda item: (-abs(item[1].end_s.p50), item[0]))
    for job_id, found in by_change:
        live = call.server.state.jobs.get(job_id)
        if live is None or not call.user.sees(live.row.project) or len(told) == _JOBS_MOST:
            continue
        start_s = None if found.start_s is None else _triple(found.start_s)
        told.append(
            JobDifferenceView(
                id=job_id, name=live.row.name, project=live.row.project, start_s=start_s, end_s=_triple(found.end_s)
            )
        )
    return told


def _way(call: RequestContext, answer: WhatIfAnswer, outcome: AlternativeOutcome, request: JobRequest) -> WayView:
    added = outcome.added[request.job_id]
    later_s = [found.end_s.p50 for found in outcome.jobs.values() if found.end_s.p50 > _DELAYED_S]
    forecasts = call.server.start_forecasts
    promised_by = forecasts.promised(answer.at, added.forecast)
    return WayView(
        forecast=forecasts.shown(answer.at, added.forecast),
        promised_by=promised_by,
        no_promise=_why_no_promise(added.forecast, request) if promised_by is None else "",
        usd=None if added.usd is None else _triple(added.usd),
        delayed_jobs=len(later_s),
        delay_s=sum(later_s),
    )


def _why_no_promise(forecast: JobForecast, request: JobRequest) -> str:
    """Returns in words why no end can be promised, and what the job could state so that one can."""
    days = f"{RolloutLimits().horizon_s / 86_400.0:.0f} days"
    if forecast.end.p50 == inf:
        return f"half of the futures do not reach its end within {days}, or within the time for computing them"
    if forecast.end_by == inf:
        why = "in one future of 20 or more nothing tells when it would end"
    else:
        why = f"19 futures in 20 keep only an end that is more than {days} away"
    known = request.steps is not None or request.duration_s is not None
    return why if known else f"{why}; if it states `steps` or `estimated_duration`, that is known better"


def _difference(name: str, found: GroupDifference) -> DifferenceView:
    return DifferenceView(
        project=name,
        jobs=found.jobs,
        completion_s=_triple(found.completion_s),
        waiting_s=None if found.waiting_s is None else _triple(found.waiting_s),
        usd=_triple(found.usd),
    )


def _triple(interval: Interval) -> Triple:
    return interval.p10, interval.p50, interval.p90
