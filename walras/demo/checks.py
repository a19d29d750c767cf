"""The demo's promises, checked one by one against what was seen. Decides what counts as kept; prints nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from walras.api import JobDetail
from walras.demo.recording import Recording, ran
from walras.states import AttemptState, JobState

MOST_RANK_STARTS = 24
LONGEST_S = 240.0
#: The last loss of a job that trained to its end, against its first.
LOSS_FALL = 0.7


@dataclass(frozen=True, slots=True)
class Cast:
    """Which jobs play the special parts."""

    failing: int
    plain: int
    gang: int
    #: The pool whose machine is revoked, or "" if the workload has no such incident.
    revoked_pool: str


@dataclass(frozen=True, slots=True)
class Check:
    promise: str
    kept: bool
    detail: str


def check_all(recording: Recording, cast: Cast, losses: dict[int, tuple[float, float]], took_s: float) -> list[Check]:
    """Every promise with what was found. `losses`: first and last loss by job id."""
    jobs = list(recording.jobs.values())
    return [
        ended_as_expected(jobs, cast),
        losses_fell(jobs, cast, losses),
        failed_with_reason(recording.jobs.get(cast.failing)),
        plain_script_ran(recording.jobs.get(cast.plain)),
        gang_ran(recording.jobs.get(cast.gang)),
        preempted(jobs),
        moved(recording),
        revoked_and_resumed(recording, cast.revoked_pool),
        Check("prices were given", bool(recording.prices), f"{len(recording.prices)} different sets of prices seen"),
        at_most("rank starts", recording.rank_starts(), MOST_RANK_STARTS),
        at_most("seconds from start to end", round(took_s), LONGEST_S),
    ]


def at_most(what: str, found: float, most: float) -> Check:
    return Check(f"at most {most:g} {what}", found <= most, f"{found:g}")


def ended_as_expected(jobs: Sequence[JobDetail], cast: Cast) -> Check:
    wrong = [
        f"job {job.id} {job.name} is {job.state}"
        for job in jobs
        if job.state != (JobState.FAILED if job.id == cast.failing else JobState.SUCCEEDED)
    ]
    count = len(jobs) - 1
    return Check(
        "every job ended as it should", not wrong, "; ".join(wrong) or f"{count} succeeded, 1 failed on purpose"
    )


def losses_fell(jobs: Sequence[JobDetail], cast: Cast, losses: dict[int, tuple[float, float]]) -> Check:
    wrong = []
    for job in jobs:
        if job.id == cast.failing:
            continue
        first, last = losses.get(job.id, (0.0, 0.0))
        if not 0 < last < LOSS_FALL * first:
            wrong.append(f"job {job.id} {job.name}: {first:.3g} to {last:.3g}" if first else f"job {job.id}: none seen")
    return Check(f"every loss fell below {LOSS_FALL} of the first", not wrong, "; ".join(wrong) or "all")


def failed_with_reason(job: JobDetail | None) -> Check:
    kept = job is not None and job.state is JobState.FAILED and job.reason is not None
    return Check("the failing job is FAILED with a reason", kept, f"{job.reason}: {job.detail}" if job else "not seen")


def plain_script_ran(job: JobDetail | None) -> Check:
    kept = job is not None and job.state is JobState.SUCCEEDED
    attempts = len(ran(job)) if job else 0
    return Check("the plain script ran to its end", kept, f"in {attempts} attempt(s)")


def gang_ran(job: JobDetail | None) -> Check:
    sizes = sorted({attempt.accelerators for attempt in ran(job)}) if job else []
    return Check("the gang ran with two ranks", sizes == [2], f"ranks per attempt: {sizes or 'none'}")


def preempted(jobs: Sequence[JobDetail]) -> Check:
    found = [
        f"{job.id}.{attempt.attempt}" for job in jobs for attempt in ran(job) if attempt.state is AttemptState.PREEMPTED
    ]
    return Check("jobs were preempted", bool(found), ", ".join(found) or "none")


def moved(recording: Recording) -> Check:
    paths = [
        f"{job_id} {' > '.join(summary.types)}"
        for job_id in recording.jobs
        if len((summary := recording.summary(job_id)).types) > 1
    ]
    return Check("jobs moved between accelerator types", bool(paths), ", ".join(paths) or "none")


def revoked_and_resumed(recording: Recording, pool: str) -> Check:
    """A machine of the pool left with notice, and a job it ran went on elsewhere from its checkpoint."""
    promise = "the spot machine was revoked and its job went on elsewhere"
    left = [name for name, span in recording.nodes.items() if span.node.pool == pool and span.left]
    if not left:
        return Check(promise, False, "no machine was seen leaving")
    for job in recording.jobs.values():
        attempts = ran(job)
        for attempt, later in pairwise(attempts):
            was_there = any(part.rpartition(":")[0] in left for part in attempt.placement)
            if was_there and attempt.reason is not None and attempt.reason.is_infrastructure:
                at_step = f"from step {attempt.checkpoint_step:.0f}" if attempt.checkpoint_step else "from its own save"
                return Check(promise, True, f"job {job.id}, {at_step}, on {' '.join(later.placement)}")
    return Check(promise, False, f"{', '.join(left)} left, but no job was resumed from there")
