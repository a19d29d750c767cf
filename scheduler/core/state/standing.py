"""What speaks against a machine: failures of jobs that are evidence, faults of its devices, and what follows in time.

`scheduler/core/handlers/quarantine.py` acts on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from walras.contract import EXIT_NOT_PREPARED
from walras.job_request import JobId

#: A failure on a machine: its instant, the job, and the job's user.
MachineFailure = tuple[float, JobId, str]
#: Jobs of a single user are no evidence, however many fail: of this many users some must be.
_USERS_LEAST = 2
#: A shell's codes for a command that cannot be run, or is not there.
_NO_COMMAND = (126, 127)

#: Seconds until the first trial of a machine that was put aside, and the most doublings of them.
TRIAL_AFTER_S, _DOUBLINGS_MAX = 600.0, 5


def is_jobs_fault(exit_code: int | None, *, own_fault: bool) -> bool:
    """Returns whether a failure is certainly the job's: its command, its setup, or what its output ends with."""
    return own_fault or exit_code in (*_NO_COMMAND, EXIT_NOT_PREPARED)


def failed_jobs(failures: Iterable[MachineFailure], since_at: float, wanted: int) -> int:
    """Returns how many distinct jobs failed since then if that is evidence against the machine, else 0.

    `wanted`: the jobs that it takes.
    """
    recent = [failure for failure in failures if failure[0] >= since_at]
    jobs, users = {job_id for _, job_id, _ in recent}, {user for _, _, user in recent}
    return len(jobs) if len(jobs) >= wanted and len(users) >= min(_USERS_LEAST, wanted) else 0


@dataclass(slots=True)
class MachineStanding:
    """Whether the machine is at fault, as far as is known, and since how many tries."""

    #: Fault of its devices that its agent reports; empty: none.
    unfit: str = ""
    #: When it takes jobs on trial after it was put aside, whether it does now, and how often in a row it was put aside.
    trial_at: float = inf
    on_trial: bool = False
    times_aside: int = 0

    def put_aside(self, now: float) -> float:
        """Returns when the machine should be tried again: later each time, until something succeeds there."""
        self.on_trial = False
        self.trial_at = now + TRIAL_AFTER_S * 2 ** min(self.times_aside, _DOUBLINGS_MAX)
        self.times_aside += 1
        return self.trial_at

    def begin_trial(self, now: float) -> bool:
        """Begins the trial if it is due. Returns whether it does; never while the devices are at fault."""
        if self.unfit or now < self.trial_at:
            return False
        self.on_trial, self.trial_at = True, inf
        return True

    def clear(self) -> None:
        """Forgets that the machine was put aside for failures, since something succeeded or a person vouches for it."""
        self.on_trial, self.times_aside, self.trial_at = False, 0, inf
