"""Endpoints about the policy in the shadow: what would have happened under it, and how it is started and stopped.

All users may read the comparison, over the jobs that they may see; administrators start and stop the shadow.
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

#: How many jobs and projects are shown by name.
_JOBS_MOST, _PROJECTS_MOST = 10, 200
#: Ends that differ by no more than this, seconds, count as equal.
_SAME_S = 1.0


async def show_policy_shadow(call: RequestContext) -> ShadowView:
    """Returns the last comparison; `state` says whether there is a shadow, and whether a comparison is ready."""
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
    """Starts a shadow. Raises ConfigError for an invalid policy, Conflict where a shadow is running already."""
    await call.server.shadow.start(parse_json_body(await call.body()), call.user.name, _noted(call))
    return await show_policy_shadow(call)


async def stop_shadow(call: RequestContext) -> ShadowView:
    """Stops the shadow; returns its last comparison. Raises NotFound where none is running."""
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
    """Returns the comparison of the two policies over these jobs of one project ("" for all)."""
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
    """Returns, draw by draw, the end under the other policy less the end under the policy in force, seconds.

    Returns an empty list where the job does not end in one of the draws.
    """
    pairs = zip(job.own, job.shadow, strict=True)
    found = [shadow.ends_at - own.ends_at for own, shadow in pairs if max(own.ends_at, shadow.ends_at) < inf]
    return found if len(found) == len(job.own) else []


def _figures(jobs: Iterable[tuple[ShadowJob, Sequence[JobTimes]]]) -> ShadowFigures:
    """Returns figures over the jobs, each job's times being the means of its draws."""
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
    """Returns the routes about the shadow."""
    path = "/api/v1/policy/shadow"
    return [
        Route("GET", path, show_policy_shadow, "What would have happened under another policy", response=ShadowView),
        Route("PUT", path, start_shadow, "Run another policy beside the one in force", role=UserRole.ADMIN,
              response=ShadowView),
        Route("DELETE", path, stop_shadow, "Run it no longer", role=UserRole.ADMIN, response=ShadowView),
    ]  # fmt: skip
