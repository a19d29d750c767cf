"""Job and attempt states, and which change into which.

An unknown pair is an error, never a silent ignore: `check_job_transition` and `check_attempt_transition` say so.
"""

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life. The last four are final; a resubmission is a new job."""

    PENDING = "PENDING"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PREEMPTING = "PREEMPTING"
    UNREACHABLE = "UNREACHABLE"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"

    @property
    def is_final(self) -> bool:
        return self in FINAL_JOB_STATES

    @property
    def holds_accelerators(self) -> bool:
        """True while an attempt of the job may still be alive on some machine."""
        return self in _HOLDING


FINAL_JOB_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
_HOLDING = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING, JobState.UNREACHABLE, JobState.CANCELLING}
)


class AttemptState(StrEnum):
    """One continuous life of a job's processes."""

    LEASED = "LEASED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PREEMPTED = "PREEMPTED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    NODE_LOST = "NODE_LOST"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    START_FAILED = "START_FAILED"

    @property
    def is_final(self) -> bool:
        return self in FINAL_ATTEMPT_STATES


FINAL_ATTEMPT_STATES = frozenset(
    {
        AttemptState.SUCCEEDED,
        AttemptState.FAILED,
        AttemptState.PREEMPTED,
        AttemptState.LEASE_EXPIRED,
        AttemptState.NODE_LOST,
        AttemptState.CANCELLED,
        AttemptState.TIMEOUT,
        AttemptState.START_FAILED,
    }
)

_J = JobState
JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _J.PENDING: frozenset({_J.STARTING, _J.HELD, _J.CANCELLED, _J.FAILED, _J.TIMEOUT}),
    _J.HELD: frozenset({_J.PENDING, _J.CANCELLED}),
    _J.STARTING: frozenset({_J.RUNNING, _J.PREEMPTING, _J.UNREACHABLE, _J.CANCELLING, _J.PENDING, _J.HELD})
    | FINAL_JOB_STATES,
    _J.RUNNING: frozenset({_J.PREEMPTING, _J.UNREACHABLE, _J.CANCELLING, _J.PENDING, _J.HELD}) | FINAL_JOB_STATES,
    _J.PREEMPTING: frozenset({_J.PENDING, _J.HELD, _J.CANCELLING, _J.UNREACHABLE}) | FINAL_JOB_STATES,
    _J.UNREACHABLE: frozenset({_J.STARTING, _J.RUNNING, _J.PREEMPTING, _J.CANCELLING, _J.PENDING, _J.HELD})
    | FINAL_JOB_STATES,
    _J.CANCELLING: frozenset({_J.UNREACHABLE}) | FINAL_JOB_STATES,
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
    _J.TIMEOUT: frozenset(),
}

_A = AttemptState
ATTEMPT_TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = {
    _A.LEASED: frozenset({_A.STARTING, _A.RUNNING, _A.STOPPING}) | FINAL_ATTEMPT_STATES,
    _A.STARTING: frozenset({_A.RUNNING, _A.STOPPING}) | FINAL_ATTEMPT_STATES,
    _A.RUNNING: frozenset({_A.STOPPING}) | FINAL_ATTEMPT_STATES,
    _A.STOPPING: FINAL_ATTEMPT_STATES,
    **{state: frozenset() for state in FINAL_ATTEMPT_STATES},
}


def check_job_transition(before: JobState, after: JobState) -> None:
    """Raise AssertionError unless a job may go from `before` to `after`: a bug of ours, never the world's."""
    assert after in JOB_TRANSITIONS[before], f"job state {before} -> {after} is not a transition"


def check_attempt_transition(before: AttemptState, after: AttemptState) -> None:
    """Raise AssertionError unless an attempt may go from `before` to `after`."""
    assert after in ATTEMPT_TRANSITIONS[before], f"attempt state {before} -> {after} is not a transition"
