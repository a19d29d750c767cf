"""Which running jobs would lose what they have done if they were stopped: they keep their places to their ends.

A job that nobody has seen save its work (`JobRequest.unproven`) is taken to save nothing. It may be stopped for others'
benefit only while it is young: its ranks have not been up for longer than a restart of its kind costs, so that the loss
is of the size of any move's cost, and only once. From then on its place is fixed: nothing but its end, people, limits
that its owner set, and the loss of its machines take it away.

A job on a private machine, from which no checkpoint reaches another one, keeps its place too, from its first moment.

Evidence is kept by job and by kind: a checkpoint that was recorded in this or an earlier attempt, or the script's own
word that it has one open (`AttemptProgressed.saves`).
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord, Ledger
from walras.job_request import Kind

#: Said wherever a person asks about such a job.
CANNOT_MOVE = "cannot be moved without loss: nothing shows yet that it saves its work"
CANNOT_MOVE_FIX = (
    "use walras.training.Checkpoint (or write a `checkpoint:` section if the script saves by itself);"
    " `preemptible: always` lets others stop it all the same"
)


#: Said of jobs on private machines.
IS_PRIVATE = "cannot be moved without loss: its machine is private, what it saves there can be had nowhere else"


def may_lose_work(ledger: Ledger, job: JobRecord) -> bool:
    """Whether stopping the job would lose its work, as far as anybody knows."""
    return job.request.unproven and not job.saves and job.request.kind not in ledger.saving_kinds


def is_on_private(ledger: Ledger, job: JobRecord) -> bool:
    """Whether a part of the job runs where what it saves can be had nowhere else."""
    machines = (ledger.fleet.machines[row] for row, _ in job.place)
    return any(machine is not None and machine.is_private for machine in machines)


def why_fixed(ledger: Ledger, job: JobRecord) -> str:
    """What keeps a job in its place that `is_fixed`, to follow its name."""
    return IS_PRIVATE if is_on_private(ledger, job) else CANNOT_MOVE


def why_unmovable(ledger: Ledger, job: JobRecord) -> str:
    """Why stopping the job would lose work, and what its owner can do about it; empty where it would not."""
    if is_on_private(ledger, job):
        return IS_PRIVATE
    return f"{CANNOT_MOVE}; {CANNOT_MOVE_FIX}" if may_lose_work(ledger, job) else ""


def is_fixed(ledger: Ledger, job: JobRecord) -> bool:
    """Whether the job runs and keeps its place: stopping it now would lose more than a move may cost."""
    return bool(ledger.now > ledger.columns.fixed_at[job.slot])


def without_fixed(ledger: Ledger, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """These slots without those of jobs that keep their places."""
    return rows[ledger.columns.fixed_at[rows] >= ledger.now]


def begin_unsaved_run(ledger: Ledger, job: JobRecord, rules: RoundRules) -> None:
    """All ranks are up: from when on the place is fixed. At once for a job that has lost its work before."""
    if is_on_private(ledger, job):
        ledger.columns.fixed_at[job.slot] = job.running_at
    elif may_lose_work(ledger, job):
        spare_s = 0.0 if job.loses_work else ledger.restart_s(job, rules)
        ledger.columns.fixed_at[job.slot] = job.running_at + spare_s


def mark_private(ledger: Ledger, machine: FleetMachine, rules: RoundRules, *, is_private: bool) -> None:
    """A machine is private from now on, or no longer; what runs there is fixed or freed."""
    machine.is_private = is_private
    for job_id in machine.holders:
        job = ledger.jobs[job_id]
        if job.running_at < inf:
            ledger.columns.fixed_at[job.slot] = inf
            begin_unsaved_run(ledger, job, rules)


def saw_saving(ledger: Ledger, job: JobRecord) -> bool:
    """The job has shown that it can save its work; so can others of its kind. Returns whether that is news."""
    if job.saves:
        return False
    job.saves = True
    _free(ledger, job)
    know_saving_kind(ledger, job.request.kind)
    return job.request.unproven


def know_saving_kind(ledger: Ledger, kind: Kind) -> None:
    """Jobs of this kind can save their work: those that run may be moved from now on."""
    if kind in ledger.saving_kinds:
        return
    ledger.saving_kinds.add(kind)
    for job in ledger:
        if job.request.kind == kind:
            _free(ledger, job)


def _free(ledger: Ledger, job: JobRecord) -> None:
    """The job can save its work, which lets it leave unless that stays behind."""
    if not is_on_private(ledger, job):
        ledger.columns.fixed_at[job.slot] = inf
