"""Endpoints about a policy in the shadow: what would have happened under it, and who starts and stops it.

Everybody may look and is told of the jobs that the token sees; administrators start and stop.
"""

from collections.abc import Iterable, Sequence
from math import inf
from statistics import mean, median
from typing import Any

import numpy as np

from scheduler.forecast.job_forecasts import quantiles
from scheduler.forecast.shadow_run import JobTimes, ShadowAnswer, ShadowJob
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, parse_json_body
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.policy_shadow import SHADOW_CORE_SHARE
from walras.shadow_views import ShadowFigures, ShadowGroup, ShadowJobView, ShadowView

#: Jobs and projects that are told of by name.
_JOBS_MOST, _PROJECTS_MOST = 10, 200
#: A difference that nobody would notice, seconds.
_SAME_S = 1.0


async def show_policy_shadow(call: RequestContext) -> ShadowView:
    """What was last worked out of the shadow; `state` says whether there is one."""
    shadow, clock = call.server.shadow, call.server.loop.clock
    setting, answer = shadow.setting, shadow.answer
    if setting is None:
        return ShadowView(state="none", core_share=SHADOW_CORE_SHARE)
    view = ShadowView(
        state="failed" if shadow.fault else "waiting" if answer is None else "ready",
        policy=setting.spec.name,
        parameters=dict(setting.spec.parameters),
        started_at=clock.shown(setting.since_at),
        started_by=setting.by,
        since=clock.unix(setting.since_at),
        fault=shadow.fault,
        core_share=SHADOW_CORE_SHARE,
    )
    if answer is None:
        return view
    jobs = [job for job in answer.jobs if call.user.sees(job.project)]
    told = await call.server.read(_compared_view, answer, jobs)
    return view.model_copy(update={"as_of": clock.unix(answer.at), **told})


async def start_shadow(call: RequestContext) -> ShadowView:
    """Raises ConfigError for a policy that means nothing, Conflict where one is run already."""
    await call.server.shadow.start(parse_json_body(await call.body()), call.user.name, _noted(call))
    return await show_policy_shadow(call)


async def stop_shadow(call: RequestContext) -> ShadowView:
    """The last word about it. Raises NotFound where none is run."""
    last = await show_policy_shadow(call)
    await call.server.shadow.stop(_noted(call))
    return last


def _noted(call: RequestContext) -> Any:
    def note(transaction: Transaction, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        note_write(call, transaction, "policy in the shadow", before=before, after=after)

    return note


def _compared_view(answer: ShadowAnswer, jobs: Sequence[ShadowJob]) -> dict[str, Any]:
    projects: dict[str, list[ShadowJob]] = {}
    for job in jobs:
        projects.setdefault(job.project, []).append(job)
    changes = []
    for job in jobs:
        differences = _differences(job)
        if differences and not job.is_cancelled and abs(change := median(differences)) > _SAME_S:
            told = ShadowJobView(id=job.job_id, project=job.project, difference_s=change, is_known=job.is_known)
            changes.append(told)
    changes.sort(key=lambda each: (each.difference_s, each.id))
    sooner = [each for each in changes if each.difference_s < 0]
    later = changes[len(sooner) :][::-1]
    names = sorted(projects, key=lambda name: (-len(projects[name]), name))[:_PROJECTS_MOST]
    return {
        "draws": len(answer.jobs[0].own) if answer.jobs else 0,
        "cpu_s": answer.cpu_s,
        "total": shadow_group("", jobs),
        "projects": [shadow_group(name, projects[name]) for name in sorted(names)],
        "sooner_jobs": len(sooner),
        "later_jobs": len(later),
        "sooner": sooner[:_JOBS_MOST],
        "later": later[:_JOBS_MOST],
    }


def shadow_group(project: str, jobs: Sequence[ShadowJob]) -> ShadowGroup:
    """The figures of these jobs."""
    counted = [job for job in jobs if not job.is_cancelled]
    known = [job for job in counted if job.is_known]
    compared = [job for job in known if all(each.ends_at < inf for each in (*job.own, *job.shadow))]
    ending = [differences for job in counted if (differences := _differences(job))]
    by_draw = [mean(draw) for draw in zip(*ending, strict=True)]
    interval = quantiles(by_draw) if by_draw else None
    figures: dict[str, ShadowFigures] = {}
    if compared:
        figures["live"] = _figures([(job, (job.live,)) for job in compared])
        figures["own"] = _figures([(job, job.own) for job in compared])
        figures["shadow"] = _figures([(job, job.shadow) for job in compared])
    return ShadowGroup(
        project=project,
        jobs=len(counted),
        unknown=len(counted) - len(known),
        cancelled=len(jobs) - len(counted),
        never_end=len(known) - len(compared),
        difference_s=None if interval is None else (interval.p10, interval.p50, interval.p90),
        **figures,
    )


def _differences(job: ShadowJob) -> list[float]:
    """End under the other policy less that under the own, draw by draw; empty where it does not end in one of them."""
    pairs = zip(job.own, job.shadow, strict=True)
    found = [shadow.ends_at - own.ends_at for own, shadow in pairs if max(own.ends_at, shadow.ends_at) < inf]
    return found if len(found) == len(job.own) else []


def _figures(jobs: Iterable[tuple[ShadowJob, Sequence[JobTimes]]]) -> ShadowFigures:
    """Means over the draws of each job's times, then over the jobs."""
    told = list(jobs)
    completion = np.array([mean(each.ends_at for each in draws) - job.submitted_at for job, draws in told])
    waiting = [mean(each.starts_at for each in draws) - job.submitted_at for job, draws in told if job.waited]
    return ShadowFigures(
        mean_s=float(completion.mean()),
        median_s=float(np.median(completion)),
        p95_s=float(np.percentile(completion, 95)),
        waiting_s=mean(waiting) if waiting else None,
        preemptions=sum(mean(each.preemptions for each in draws) for _, draws in told),
        usd=sum(mean(each.usd for each in draws) for _, draws in told),
    )


def shadow_routes() -> list[Route]:
    """Beside those of the policy in force."""
    path = "/api/v1/policy/shadow"
    return [
        Route("GET", path, show_policy_shadow, "What would have happened under another policy", response=ShadowView),
        Route("PUT", path, start_shadow, "Run another policy beside the one in force", role=UserRole.ADMIN,
              response=ShadowView),
        Route("DELETE", path, stop_shadow, "Run it no longer", role=UserRole.ADMIN, response=ShadowView),
    ]  # fmt: skip
