"""May this job be stopped? The one rule: what protects a job from which kind of stop.

Cancellation, a hold, the job's own limits and budgets, and the loss of its machine stop every job. Everything else is
for others' benefit and asks `may_be_stopped`; `attempt_lifecycle.ask_to_leave` is the one way to carry it out. Which of
the jobs that may be stopped has to leave is a matter of classes, arrears, ranks and values (`ordering/`).

A running job that would lose its work keeps its place until it ends. One that has not been seen to save its work
(`JobRequest.unproven`) is assumed to save nothing. It may be stopped for others' benefit only while it is young: its
ranks have been up for at most the restart cost of its kind, so that the loss is of the size of any move's cost, and
only once. From then on its place is fixed: only its end, people, limits that its owner set, and the loss of its
machines end it.

A job on a private machine, from which no checkpoint reaches another machine, keeps its place from its start.

Evidence is kept by job and by kind: a checkpoint recorded in this or an earlier attempt, or the script's report that it
has one open (`AttemptProgressed.saves`).

What restarts for the benefit of others took of the time that jobs got is bounded (`Protection.RESTARTS`):

    taken + cost of a stop  <=  CUT_PART x (time that ended jobs had, that active jobs had, and that they still need)

All in accelerator-seconds; what ended is halved every day. A job of unknown length counts as needing as much again.
Stops for a higher class are not counted: they come before any economy.
"""

from collections.abc import Callable, Iterable
from enum import Enum, StrEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import remaining_on_best_s
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Kind
from walras.states import JobState

#: Shown wherever a person asks about such a job.
CANNOT_MOVE = "cannot be moved without loss: nothing shows yet that it saves its work"
CANNOT_MOVE_FIX = (
    "use walras.training.Checkpoint (or write a `checkpoint:` section if the script saves by itself);"
    " `preemptible: always` lets others stop it all the same"
)


#: Shown for jobs on private machines.
IS_PRIVATE = "cannot be moved without loss: what it saves stays on its private machine"


def may_lose_work(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether stopping the job would lose its work, as far as is known."""
    return job.request.unproven and not job.saves and job.request.kind not in ledger.saving_kinds


def is_on_private(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether a part of the job runs on a machine whose checkpoints can be read nowhere else."""
    machines = (ledger.fleet.machines[row] for row, _ in job.place)
    return any(machine is not None and machine.is_private for machine in machines)


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


# ------------------------------------------------------------------------------------------------ restarts


#: The most that restarts may take of the time of jobs that plans stop for others of their class, or move.
CUT_PART = 0.05


def stop_cost_s(ledger: Ledger, job: JobRecord) -> float:
    """Returns the accelerator-seconds that a restart of the job takes where it is."""
    return ledger.columns.count.item(job.slot) * ledger.restart_s(job, ledger.policy.rules)


def is_outclassed(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether a job of a higher class waits."""
    return len(ledger.columns.waiting_above(job.request.priority_class)) > 0


def is_on_rented(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the job holds rented machines."""
    return bool(job.place) and ledger.fleet.pools[ledger.columns.pool.item(job.slot)].rented


def have_had_their_part(ledger: Ledger, jobs: Iterable[JobRecord]) -> bool:
    """Returns whether stops of these jobs for others, all of one exchange, would take more than the part that restarts
    may take.

    Not of those on rented machines, whether these are worth their price comes first, nor while a higher class waits.
    """
    if not ledger.policy.plans:
        return False
    cost_s = sum(stop_cost_s(ledger, job) for job in jobs if _is_weighed(ledger, job))
    account = ledger.restarts
    return cost_s > 0 and account.taken_s * account.kept(ledger.now) + cost_s > CUT_PART * _time_of_jobs_s(ledger)


def _is_weighed(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the account bounds stops of the job."""
    weighs = not ledger.policy.weighs_stops_of(job.request)
    return weighs and not is_on_rented(ledger, job) and not is_outclassed(ledger, job)


def note_stop(ledger: Ledger, job: JobRecord) -> None:
    """Records that the job is stopped for others, or moved."""
    if not is_outclassed(ledger, job):
        ledger.restarts.add(ledger.now, taken_s=stop_cost_s(ledger, job))


def _time_of_jobs_s(ledger: Ledger) -> float:
    """Returns the accelerator-seconds that jobs had, and that active ones need by what is known."""
    account, columns = ledger.restarts, ledger.columns
    if account.known_at_event != ledger.event_number:
        rows = columns.active.nonzero()[0]
        had_s = columns.attained_s[rows] + columns.count[rows] * (ledger.now - columns.settled_at[rows])
        left_s = remaining_on_best_s(ledger, rows) * columns.gang[rows]
        account.known_at_event = ledger.event_number
        account.known_s = float((had_s + np.where(np.isfinite(left_s), left_s, had_s)).sum())
    return account.ended_s * account.kept(ledger.now) + account.known_s


# ------------------------------------------------------------------------------------------------ the rule


#: A job keeps its place among equals as long as another stop would be more than so many, and more than so many per hour
#: since its submission: under shares and orders for the time that such a rate leaves it from each start, as those that
#: are owed turns would pay.
_STOPS_MAX, _STOPS_PER_H = 6, 1.5
#: An elastic job is resized or moved so often by plans as they like; the others of `_STOPS_MAX` are spread over time.
_STOPS_AT_ONCE = 3
#: A restart that takes less is no reason to keep a job.
_COSTS_NOTHING_S = 1.0


#: Words of `Protection` where they are said of several jobs.
_OF_SEVERAL = {"is": "are", "was": "were", "runs": "run", "saves": "save", "its": "their", "it": "they"}


class Protection(StrEnum):
    """What keeps a job in its place, as the rest of a sentence after its name."""

    ASKED = "is leaving already"
    NOT_RUNNING = "is not running"
    OWNER = "may not be stopped (`preemptible: false`)"
    DEADLINE = "is kept there for its deadline"
    PRIVATE = IS_PRIVATE
    UNSAVED = CANNOT_MOVE
    UNPROVEN = "would lose its work: nothing shows that it saves any"
    LOST_ONCE = "lost its work at a stop before, and would again"
    MEASURED = "is being measured"
    STOPPED_OFTEN = "was stopped too often"
    OWNED = "is on accelerators that its project owns"
    RAN_TOO_SHORT = "is protected by the policy's rules"
    RESTARTS = "stays because restarts have had their part of the time"
    POLICY = "runs under a policy that stops no job"

    def said_of(self, jobs: int) -> str:
        """Returns the rest of the sentence after the names of so many jobs."""
        return self if jobs == 1 else " ".join(_OF_SEVERAL.get(word, word) for word in self.split(" "))


class StopFor(Enum):
    """For whom or what a job would be stopped, each with what protects it from that, in the order asked."""

    #: A job of a higher class takes the place, or its turn has come (`TURN` is asked too), or the job moves there.
    PLACE = (Protection.ASKED, Protection.NOT_RUNNING, Protection.OWNER, Protection.DEADLINE, Protection.UNSAVED)
    #: It is another's turn by shares, ranks or a plan: what a job loses beside a restart counts too.
    TURN = (
        *(Protection.OWNER, Protection.LOST_ONCE, Protection.UNSAVED),
        *(Protection.STOPPED_OFTEN, Protection.OWNED, Protection.RESTARTS),
    )
    #: It moves to end before its deadline.
    OWN_DEADLINE = (Protection.NOT_RUNNING, Protection.OWNER, Protection.UNSAVED)
    #: It holds a place lent to it: reserved for a gang, beside another job, or on machines that are booked later.
    LENDER = (Protection.OWNER, Protection.LOST_ONCE, Protection.UNPROVEN)
    #: It holds accelerators of another project, which has them back when its jobs come.
    LOAN = (Protection.OWNER, Protection.DEADLINE, Protection.UNPROVEN)
    #: The gang wants back what it lent: the job was to end before.
    RETURN = (Protection.OWNER, Protection.UNSAVED, Protection.STOPPED_OFTEN)
    #: Who pays wants the machine, or the market takes it back.
    MARKET = (Protection.OWNER, Protection.LOST_ONCE, Protection.STOPPED_OFTEN)
    #: Its speed on an unknown pool is measured, and the pool may be slow.
    MEASURING = (Protection.UNPROVEN,)
    #: Its machine is booked.
    BOOKING = (Protection.OWNER,)
    #: Its machine is drained gently, or a device there is at fault.
    MACHINE = (Protection.OWNER, Protection.UNPROVEN, Protection.PRIVATE)
    #: Its machine is gone, or will be.
    LOSS = ()


def may_be_stopped(ledger: Ledger, job: JobRecord, why: StopFor) -> Protection | None:
    """Returns what protects the job from such a stop, now or once it runs; None if nothing does."""
    for protection in why.value:
        if _PROTECTS[protection](ledger, job):
            return Protection.PRIVATE if protection is Protection.UNSAVED and is_on_private(ledger, job) else protection
    return None


def _counts_as_running(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether all its ranks are up, or should have been for long."""
    return job.state is JobState.RUNNING or (job.state is JobState.STARTING and ledger.now >= job.protected_from)


def is_stopped_often(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether another stop is one too many, now or once it runs.

    Failures of the job and of machines do not count. Nothing counts where turns are to be strict (`tolerated_lag: 0`)
    or a restart costs nothing. Plans spread the stops of an elastic job over the time in which it may have as many:
    used up at once, they would leave it small for hours. On rented machines its size follows their prices.
    """
    stops, rules = job.attempt - job.restarts - job.infra_failures + (not job.place), ledger.policy.rules
    is_spread = bool(job.request.sizes) and ledger.policy.plans
    if ledger.policy.weighs_stops_of(job.request) or (is_spread and (not job.place or is_on_rented(ledger, job))):
        return False
    if stops <= (_STOPS_AT_ONCE if is_spread else _STOPS_MAX):
        return False
    if rules.tolerated_lag == 0 or ledger.restart_s(job, rules) < _COSTS_NOTHING_S:
        return False
    since_h = (ledger.now - ledger.columns.submitted_at.item(job.slot)) / SECONDS_PER_HOUR
    if is_spread and stops <= _STOPS_MAX:
        spread_over_h = (_STOPS_MAX + 1) / _STOPS_PER_H
        return since_h < spread_over_h * (stops - _STOPS_AT_ONCE) / (_STOPS_MAX + 1 - _STOPS_AT_ONCE)
    may_pass = job.place and not ledger.policy.plans and ledger.now - job.leased_at >= SECONDS_PER_HOUR / _STOPS_PER_H
    return stops > _STOPS_PER_H * since_h and not may_pass


def _is_on_own(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether it is on accelerators that its project owns, and others could use."""
    owned = ledger.usage.owned
    return bool(owned.claims) and owned.stays(ledger, job, ledger.restart_s(job, ledger.policy.rules))


_PROTECTS: dict[Protection, Callable[[Ledger, JobRecord], bool]] = {
    Protection.ASKED: lambda ledger, job: job.revoked is not None,
    Protection.NOT_RUNNING: lambda ledger, job: not _counts_as_running(ledger, job),
    Protection.OWNER: lambda ledger, job: not job.request.preemptible,
    Protection.DEADLINE: lambda ledger, job: job.is_secured,
    Protection.PRIVATE: is_on_private,
    Protection.UNSAVED: is_fixed,
    Protection.UNPROVEN: may_lose_work,
    Protection.STOPPED_OFTEN: is_stopped_often,
    Protection.OWNED: _is_on_own,
    Protection.LOST_ONCE: lambda ledger, job: job.loses_work,
    Protection.RESTARTS: lambda ledger, job: have_had_their_part(ledger, (job,)),
}
