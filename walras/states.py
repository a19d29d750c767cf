"""States of jobs and attempts, the transitions between those of jobs, and the reasons given for a state.

An unknown transition of a job is an error, never silently ignored: `check_job_transition` raises AssertionError. A
reason is a stable code of the form CLASS:DETAIL for programs, and words for people.
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
    POLICY_DRAINED = "POLICY:DRAINED"
    POLICY_MAX_RUNTIME = "POLICY:MAX_RUNTIME"
    POLICY_MAX_QUEUE_TIME = "POLICY:MAX_QUEUE_TIME"

    @property
    def is_infrastructure(self) -> bool:
        """True if the infrastructure failed the job: such an end never consumes a retry."""
        return self.value.startswith("INFRA:")

    @property
    def words(self) -> str:
        """The reason as people read it."""
        return _WORDS[self]


_WORDS = {
    Reason.WAIT_NOT_EVALUATED: "has not been looked at yet",
    Reason.WAIT_CAPACITY: "waits for accelerators to become free",
    Reason.WAIT_FRAGMENTED: "enough is free, but not together",
    Reason.WAIT_PRICE: "worth less than the price of a place now",
    Reason.WAIT_PRIORITY: "jobs of higher priority are first",
    Reason.WAIT_FAIRSHARE: "others are owed more",
    Reason.WAIT_GANG: "waits until its whole gang fits",
    Reason.WAIT_RESERVATION: "the free places are kept for a larger job",
    Reason.WAIT_PROFILING: "its speed is being measured",
    Reason.WAIT_PREEMPTING: "its place is being cleared",
    Reason.WAIT_PROVISIONING: "a machine is being rented for it",
    Reason.WAIT_DEPENDENCY: "waits for another job",
    Reason.WAIT_NOT_BEFORE: "was asked to start later",
    Reason.WAIT_BACKOFF: "pauses before it is tried again",
    Reason.WAIT_QUOTA: "its project or user holds all it may",
    Reason.WAIT_BUDGET: "its budget is spent",
    Reason.WAIT_SWEEP: "its sweep runs as many jobs at once as it may",
    Reason.WAIT_BOOKED: "the machines are reserved for others",
    Reason.HOLD_USER: "held by its owner",
    Reason.HOLD_ADMIN: "held by an operator",
    Reason.HOLD_BUDGET: "held: its budget is spent",
    Reason.HOLD_REPEATED_FAILURE: "held: it failed again and again",
    Reason.HOLD_IDLE: "held: its accelerators stood idle",
    Reason.CONFIG_NO_SUCH_ACCELERATOR: "no pool has such accelerators",
    Reason.CONFIG_EXCEEDS_FLEET: "asks for more than the fleet has",
    Reason.CONFIG_EXCEEDS_LARGEST_NODE: "no machine is large enough",
    Reason.USER_EXIT_CODE: "its script ended with an error",
    Reason.USER_SIGNAL: "its script was ended by a signal",
    Reason.USER_OOM: "it ran out of memory",
    Reason.USER_CANCELLED: "cancelled",
    Reason.USER_DEPENDENCY_FAILED: "the job it depends on did not succeed",
    Reason.INFRA_NODE_LOST: "its machine was lost",
    Reason.INFRA_SPOT_RECLAIM: "its spot machine was taken back",
    Reason.INFRA_LEASE_EXPIRED: "its machine was silent for too long",
    Reason.INFRA_START_TIMEOUT: "it did not start in time",
    Reason.INFRA_START_REFUSED: "its machine could not start it",
    Reason.INFRA_CHECKPOINT_LOST: "its checkpoint was lost",
    Reason.INFRA_DEVICE_FAULT: "a GPU of its machine is at fault",
    Reason.POLICY_PREEMPTED: "made way for another job",
    Reason.POLICY_MOVED: "moved to other accelerators",
    Reason.POLICY_RELEASED: "its rented machine was given back",
    Reason.POLICY_DRAINED: "its machine is drained",
    Reason.POLICY_MAX_RUNTIME: "reached its longest run time",
    Reason.POLICY_MAX_QUEUE_TIME: "waited longer than it was to",
}


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


FINAL_ATTEMPT_STATES = frozenset(AttemptState) - {
    AttemptState.LEASED, AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING,
}  # fmt: skip

_J = JobState
JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _J.PENDING: frozenset({_J.STARTING, _J.HELD, _J.CANCELLED, _J.FAILED, _J.TIMEOUT}),
    _J.HELD: frozenset({_J.PENDING, _J.HELD, _J.CANCELLED}),
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


def check_job_transition(before: JobState, after: JobState) -> None:
    """Raises AssertionError unless a job may go from `before` to `after`: that would be a bug of ours."""
    assert after in JOB_TRANSITIONS[before], f"job state {before} -> {after} is not a transition"
