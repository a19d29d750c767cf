"""States of jobs and attempts, the transitions between them, and the reasons given for a state.

An unknown transition is an error, never silently ignored: `check_job_transition` and `check_attempt_transition` raise
AssertionError. A reason is a stable code of the form CLASS:DETAIL, shown to people and matched by programs.
"""

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """`WAIT` and `CONFIG` explain a job that does not run; the others explain an end or a hold.

    `WAIT:*` passes by itself; `CONFIG:*` never does unless somebody changes the job or the fleet.
    """

    WAIT_NOT_EVALUATED = "WAIT:NOT_EVALUATED"
    WAIT_CAPACITY = "WAIT:CAPACITY"
    WAIT_FRAGMENTED = "WAIT:FRAGMENTED"
    WAIT_PRICE = "WAIT:PRICE"
    WAIT_PRIORITY = "WAIT:PRIORITY"
    WAIT_FAIRSHARE = "WAIT:FAIRSHARE"
    WAIT_GANG = "WAIT:GANG"
    WAIT_RESERVATION = "WAIT:RESERVATION"
    WAIT_PROFILING = "WAIT:PROFILING"
    WAIT_PREEMPTING = "WAIT:PREEMPTING"
    WAIT_PROVISIONING = "WAIT:PROVISIONING"
    WAIT_DEPENDENCY = "WAIT:DEPENDENCY"
    WAIT_NOT_BEFORE = "WAIT:NOT_BEFORE"
    WAIT_BACKOFF = "WAIT:BACKOFF"
    WAIT_QUOTA = "WAIT:QUOTA"
    WAIT_BUDGET = "WAIT:BUDGET"
    WAIT_SWEEP = "WAIT:SWEEP"
    WAIT_BOOKED = "WAIT:BOOKED"

    HOLD_USER = "HOLD:USER"
    HOLD_ADMIN = "HOLD:ADMIN"
    HOLD_BUDGET = "HOLD:BUDGET"
    HOLD_REPEATED_FAILURE = "HOLD:REPEATED_FAILURE"
    HOLD_IDLE = "HOLD:IDLE"

    CONFIG_NO_SUCH_ACCELERATOR = "CONFIG:NO_SUCH_ACCELERATOR"
    CONFIG_EXCEEDS_FLEET = "CONFIG:EXCEEDS_FLEET"
    CONFIG_EXCEEDS_LARGEST_NODE = "CONFIG:EXCEEDS_LARGEST_NODE"

    USER_EXIT_CODE = "USER:EXIT_CODE"
    USER_SIGNAL = "USER:SIGNAL"
    USER_OOM = "USER:OOM"
    USER_CANCELLED = "USER:CANCELLED"
    USER_DEPENDENCY_FAILED = "USER:DEPENDENCY_FAILED"

    INFRA_NODE_LOST = "INFRA:NODE_LOST"
    INFRA_SPOT_RECLAIM = "INFRA:SPOT_RECLAIM"
    INFRA_LEASE_EXPIRED = "INFRA:LEASE_EXPIRED"
    INFRA_START_TIMEOUT = "INFRA:START_TIMEOUT"
    INFRA_START_REFUSED = "INFRA:START_REFUSED"
    INFRA_CHECKPOINT_LOST = "INFRA:CHECKPOINT_LOST"
    #: A GPU of its machine is at fault.
    INFRA_DEVICE_FAULT = "INFRA:DEVICE_FAULT"

    POLICY_PREEMPTED = "POLICY:PREEMPTED"
    POLICY_MOVED = "POLICY:MOVED"
    #: The scheduler gave a rented machine back because it was no longer worth its price.
    POLICY_RELEASED = "POLICY:RELEASED"
    POLICY_MAX_RUNTIME = "POLICY:MAX_RUNTIME"
    POLICY_MAX_QUEUE_TIME = "POLICY:MAX_QUEUE_TIME"

    @property
    def is_infrastructure(self) -> bool:
        """True if the infrastructure failed the job: such an end never consumes a retry."""
        return self.value.startswith("INFRA:")


class JobState(StrEnum):
    """State of a job. The last four are final; a resubmission is a new job."""

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
    """State of an attempt, which is one continuous run of a job's processes."""

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
    """Raises AssertionError unless a job may go from `before` to `after`: that would be a bug of ours."""
    assert after in JOB_TRANSITIONS[before], f"job state {before} -> {after} is not a transition"


def check_attempt_transition(before: AttemptState, after: AttemptState) -> None:
    """Raises AssertionError unless an attempt may go from `before` to `after`."""
    assert after in ATTEMPT_TRANSITIONS[before], f"attempt state {before} -> {after} is not a transition"
