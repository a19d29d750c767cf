"""The demo's promises, checked one by one against what was observed. Says what counts as kept; prints nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from simulator.reports.resimulation import ResimulatedJob
from walras.api import JobDetail
from walras.demo.observations import DemoRecording, attempt_taken, started_attempts
from walras.states import AttemptState, JobState

MOST_RANK_STARTS = 24
LONGEST_S = 240.0
#: The largest part of its first loss that the last loss of a trained job may be.
LOSS_FALL = 0.7
#: The largest median error of simulated completion times, over the run's.
SIMULATION_ERROR = 0.10


@dataclass(frozen=True, slots=True)
class SpecialJobs:
    """The jobs with special roles in the demo."""

    failing: int
    plain: int
    gang: int
    #: The pool whose machine is revoked, or "" if the workload has no such incident.
    revoked_pool: str


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    promise: str
    kept: bool
    detail: str


def check_promises(
    recording: DemoRecording, cast: SpecialJobs, losses: dict[int, tuple[float, float]], took_s: float
) -> list[PromiseCheck]:
    """Checks every promise. `losses`: first and last loss by job id."""
    jobs = list(recording.jobs.values())
    return [
        check_job_ends(jobs, cast),
        check_losses(jobs, cast, losses),
        check_failing_job(recording.jobs.get(cast.failing)),
        check_plain_script(recording.jobs.get(cast.plain)),
        check_gang(recording.jobs.get(cast.gang)),
        check_preemptions(jobs),
        check_moves(recording),
        check_revocation(recording, cast.revoked_pool),
        PromiseCheck(
            "prices were given", bool(recording.prices), f"{len(recording.prices)} different sets of prices seen"
        ),
        check_limit("rank starts", recording.rank_starts(), MOST_RANK_STARTS),
        check_limit("seconds from start to end", round(took_s), LONGEST_S),
    ]


def check_simulated_ends(compared: Sequence[ResimulatedJob]) -> PromiseCheck:
    """Checks that the simulated jobs ended when they did in the run, but for what order alone changes.

    Says also by how much the simulated times, medians over orders, missed those of the run, and whether that is more
    than it should be.
    """
    promise = "simulated jobs ended when they did in the run"
    if not compared:
        return PromiseCheck(promise, False, "none was compared")
    error = median(job.error for job in compared)
    unexplained = median(job.unexplained for job in compared)
    inside = sum(job.unexplained == 0 for job in compared)
    over = "" if error <= SIMULATION_ERROR else "over "
    return PromiseCheck(
        promise,
        unexplained <= SIMULATION_ERROR,
        f"median error {error:.1%} ({over}goal {SIMULATION_ERROR:.0%}), {unexplained:.1%} more than order changes, "
        f"{inside} of {len(compared)} jobs 0",
    )


def check_limit(what: str, found: float, most: float) -> PromiseCheck:
    return PromiseCheck(f"at most {most:g} {what}", found <= most, f"{found:g}")


def check_ended_processes(stubborn: Sequence[str]) -> PromiseCheck:
    """`stubborn`: the command lines that had to be killed."""
    return PromiseCheck("every process ended when asked", not stubborn, "; ".join(stubborn) or "none is left")


def check_job_ends(jobs: Sequence[JobDetail], cast: SpecialJobs) -> PromiseCheck:
    wrong = [
        f"job {job.id} {job.name} is {job.state}"
        for job in jobs
        if job.state != (JobState.FAILED if job.id == cast.failing else JobState.SUCCEEDED)
    ]
    count = len(jobs) - 1
    return PromiseCheck(
        "every job ended as it should", not wrong, "; ".join(wrong) or f"{count} succeeded, 1 failed on purpose"
    )


def check_losses(jobs: Sequence[JobDetail], cast: SpecialJobs, losses: dict[int, tuple[float, float]]) -> PromiseCheck:
    wrong = []
    for job in jobs:
        if job.id == cast.failing:
            continue
        first, last = losses.get(job.id, (0.0, 0.0))
        if not 0 < last < LOSS_FALL * first:
            wrong.append(f"job {job.id} {job.name}: {first:.3g} to {last:.3g}" if first else f"job {job.id}: none seen")
    return PromiseCheck(f"every loss fell below {LOSS_FALL} of the first", not wrong, "; ".join(wrong) or "all")


def check_failing_job(job: JobDetail | None) -> PromiseCheck:
    kept = job is not None and job.state is JobState.FAILED and job.reason is not None
    return PromiseCheck(
        "the failing job is FAILED with a reason", kept, f"{job.reason}: {job.detail}" if job else "not seen"
    )


def check_plain_script(job: JobDetail | None) -> PromiseCheck:
    kept = job is not None and job.state is JobState.SUCCEEDED
    attempts = len(started_attempts(job)) if job else 0
    return PromiseCheck("the plain script ran to its end", kept, f"in {attempts} attempt(s)")


def check_gang(job: JobDetail | None) -> PromiseCheck:
    sizes = sorted({attempt.accelerators for attempt in started_attempts(job)}) if job else []
    return PromiseCheck("the gang ran with two ranks", sizes == [2], f"ranks per attempt: {sizes or 'none'}")


def check_preemptions(jobs: Sequence[JobDetail]) -> PromiseCheck:
    found = [
        f"{job.id}.{attempt.attempt}"
        for job in jobs
        for attempt in started_attempts(job)
        if attempt.state is AttemptState.PREEMPTED
    ]
    return PromiseCheck("jobs were preempted", bool(found), ", ".join(found) or "none")


def check_moves(recording: DemoRecording) -> PromiseCheck:
    paths = [
        f"{job_id} {' > '.join(summary.types)}"
        for job_id in recording.jobs
        if len((summary := recording.summary(job_id)).types) > 1
    ]
    return PromiseCheck("jobs moved between accelerator types", bool(paths), ", ".join(paths) or "none")


def check_revocation(recording: DemoRecording, pool: str) -> PromiseCheck:
    """Checks that a machine of the pool left with notice, and a job of it resumed elsewhere from its checkpoint."""
    promise = "the spot machine was revoked and its job went on elsewhere"
    left = [name for name, span in recording.nodes.items() if span.node.pool == pool and span.left]
    if not left:
        return PromiseCheck(promise, False, "no machine was seen leaving")
    for job in recording.jobs.values():
        taken = attempt_taken(job, left)
        later = [each for each in started_attempts(job) if taken is not None and each.attempt > taken.attempt]
        if taken is not None and later:
            at_step = f"from step {taken.checkpoint_step:.0f}" if taken.checkpoint_step else "from its own save"
            return PromiseCheck(promise, True, f"job {job.id}, {at_step}, on {' '.join(later[0].placement)}")
    return PromiseCheck(promise, False, f"{', '.join(left)} left, but no job was resumed from there")
