"""Which running jobs would lose their work if they were stopped: they keep their places until they end.

A job that has not been seen to save its work (`JobRequest.unproven`) is assumed to save nothing. It may be stopped for
others' benefit only while it is young: its ranks have been up for at most the restart cost of its kind, so that the
loss is of the size of any move's cost, and only once. From then on its place is fixed: only its end, people, limits
that its owner set, and the loss of its machines end it.

A job on a private machine, from which no checkpoint reaches another machine, keeps its place from its start.

Evidence is kept by job and by kind: a checkpoint recorded in this or an earlier attempt, or the script's report that it
has one open (`AttemptProgressed.saves`).
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord, Ledger
from walras.job_request import Kind

#: Shown wherever a person asks about such a job.
CANNOT_MOVE = "cannot be moved without loss: nothing shows yet that it saves its work"
CANNOT_MOVE_FIX = (
    "use walras.training.Checkpoint (or write a `checkpoint:` section if the script saves by itself);"
    " `preemptible: always` lets others stop it all the same"
)


#: Shown for jobs on private machines.
IS_PRIVATE = "cannot be moved without loss: its machine is private, what it saves there can be had nowhere else"


def may_lose_work(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether stopping the job would lose its work, as far as is known."""
    return job.request.unproven and not job.saves and job.request.kind not in ledger.saving_kinds


def is_on_private(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether a part of the job runs on a machine whose checkpoints can be read nowhere else."""
    machines = (ledger.fleet.machines[row] for row, _ in job.place)
    return any(machine is not None and machine.is_private for machine in machines)


def why_fixed(ledger: Ledger, job: JobRecord) -> str:
    """Returns why a job that `is_fixed` keeps its place, as the rest of a sentence after its name."""
    return IS_PRIVATE if is_on_private(ledger, job) else CANNOT_MOVE


def why_unmovable(ledger: Ledger, job: JobRecord) -> str:
    """Returns why stopping the job would lose work, and what its owner can do about it; empty if it would not."""
    if is_on_private(ledger, job):
        return IS_PRIVATE
    return f"{CANNOT_MOVE}; {CANNOT_MOVE_FIX}" if may_lose_work(ledger, job) else ""


def is_fixed(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the job runs and keeps its place: stopping it now would lose more than a move may cost."""
    return bool(ledger.now > ledger.columns.fixed_at[job.slot])


def without_fixed(ledger: Ledger, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns these slots without those of jobs that keep their places."""
    return rows[ledger.columns.fixed_at[rows] >= ledger.now]


def begin_unsaved_run(ledger: Ledger, job: JobRecord, rules: RoundRules) -> None:
    """Sets when the place becomes fixed, now that all ranks are up; at once for a job that has lost its work before."""
    if is_on_private(ledger, job):
        ledger.columns.fixed_at[job.slot] = job.running_at
    elif may_lose_work(ledger, job):
        spare_s = 0.0 if job.loses_work else ledger.restart_s(job, rules)
        ledger.columns.fixed_at[job.slot] = job.running_at + spare_s


def mark_private(ledger: Ledger, machine: FleetMachine, rules: RoundRules, *, is_private: bool) -> None:
    """Sets whether a machine is private; places of jobs there become fixed or free."""
    machine.is_private = is_private
    for job_id in machine.holders:
        job = ledger.jobs[job_id]
        if job.running_at < inf:
            ledger.columns.fixed_at[job.slot] = inf
            begin_unsaved_run(ledger, job, rules)


def saw_saving(ledger: Ledger, job: JobRecord) -> bool:
    """Notes that the job can save its work, and so can others of its kind. Returns whether that is new."""
    if job.saves:
        return False
    job.saves = True
    _free(ledger, job)
    know_saving_kind(ledger, job.request.kind)
    return job.request.unproven


def know_saving_kind(ledger: Ledger, kind: Kind) -> None:
    """Notes that jobs of this kind can save their work, so that running ones may be moved."""
    if kind in ledger.saving_kinds:
        return
    ledger.saving_kinds.add(kind)
    for job in ledger:
        if job.request.kind == kind:
            _free(ledger, job)


def _free(ledger: Ledger, job: JobRecord) -> None:
    """Lets a job that can save its work be moved, unless its checkpoints cannot leave its machine."""
    if not is_on_private(ledger, job):
        ledger.columns.fixed_at[job.slot] = inf
