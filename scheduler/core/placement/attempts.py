"""The life of an attempt: granted, prepared, started, revoked, ended.

An attempt's accelerators are free again only when nobody can be alive on them: at `AttemptEnded`, at `NodeLost`, or
when it never got a rank running. How an end is judged (whose fault, what next) is in `endings.py`.
"""

from math import inf

from scheduler.core.commands import Prepare, Revoke, Start
from scheduler.core.cycle import Cycle
from scheduler.core.events import AttemptProgressed, CheckpointRecorded, RoundEnded
from scheduler.core.ledger.fleet import Place
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.speeds import oddities
from walras.cluster import Rendezvous
from walras.ids import NodeId
from walras.reasons import Reason
from walras.states import AttemptState, JobState


def start(cycle: Cycle, job: JobRecord, pool: int, place: Place, beside: JobRecord | None = None) -> None:
    """Grant the place to a waiting job: a new attempt, whose number is the fence of everything it will write.

    `pool` is that of the place, of several the first.

    A gang on several machines is prepared first; a gang on one machine meets on that machine's loopback and starts
    at once. `beside`: it shares the accelerators that this job was given on one machine.
    """
    assert job.waits, f"job {job.job_id} is {job.state} and cannot start"
    ledger, columns, rules = cycle.ledger, cycle.ledger.columns, cycle.standing.rules
    job_class, slot, count = ledger.class_of(job), job.slot, sum([each for _, each in place])
    columns.settle(slot, cycle.now)
    job.attempt += 1
    job.place = place
    if beside is None:
        job.placement = ledger.fleet.take(job.job_id, place, ledger.classes.forms[job_class.form])
    else:
        job.placement = ledger.fleet.share(job.job_id, beside.job_id, place)
    parts = ledger.fleet.parts_of(place) if job.request.spreads else ((pool, count),)
    columns.hold(slot, parts)
    cycle.spending.started(job)
    cycle.spending.close_full()
    job.leased_at, job.running_at, job.start_steps = cycle.now, inf, job.steps
    job.revoked, job.rendezvous, job.start_told, job.saved = None, None, False, False
    job.ends_known = -1
    job.prepared.clear()
    job.lost.clear()
    job.secure = job.sure_pool == pool and len(parts) == 1
    runs_as = columns.runs_as[slot] = ledger.class_over(job, parts)
    columns.since_at[slot] = cycle.now
    job.opportunist = cycle.discipline is not None and not cycle.discipline.is_entitled(job, pool)
    unknown = not ledger.classes.classes[runs_as].measured[pool]
    job.profiling_until = columns.profiling_until[slot] = cycle.now + rules.profiling_s if unknown else -inf
    columns.running_at[slot] = inf
    if unknown:
        ledger.profiling.add(job.job_id)
    cycle.set_job_state(job, JobState.STARTING)
    cycle.set_attempt_state(job, AttemptState.LEASED, placement=job.placement)
    if len(place) > 1:
        cycle.commands.append(Prepare(job.job_id, job.attempt, job.placement))
        cycle.timers.set(cycle.now + rules.prepare_timeout_s, "prepare", job.job_id, job.attempt)
    else:
        _command_start(cycle, job, beside)
    cycle.timers.set(cycle.now + job.request.max_runtime_s, "max_runtime", job.job_id, job.attempt)


def _command_start(cycle: Cycle, job: JobRecord, beside: JobRecord | None = None) -> None:
    assert job.placement is not None
    profiling, partner = job.profiling_until > -inf, None if beside is None else beside.job_id
    cycle.commands.append(
        Start(job.job_id, job.attempt, job.placement, job.rendezvous, job.safe_steps, profiling, partner)
    )


def prepared(cycle: Cycle, job: JobRecord, node_id: NodeId, address: str, port: int) -> None:
    """One machine of a gang holds its part; when all do, the ranks may start."""
    if job.revoked is not None or job.state is not JobState.STARTING or job.placement is None:
        return
    nodes = [part.node_id for part in job.placement.parts]
    if len(nodes) < 2 or node_id not in nodes or node_id in job.prepared:
        return
    job.prepared.add(node_id)
    if node_id == nodes[0]:
        job.rendezvous = Rendezvous(address, port)
    if len(job.prepared) == len(nodes):
        _command_start(cycle, job)


def is_prepared(job: JobRecord) -> bool:
    """True if the ranks may be running: the start command has gone out."""
    return job.placement is not None and (
        len(job.placement.parts) == 1 or len(job.prepared) == len(job.placement.parts)
    )


def running(cycle: Cycle, job: JobRecord) -> None:
    """All ranks are up."""
    if job.state is JobState.STARTING:
        columns = cycle.ledger.columns
        job.running_at = columns.running_at[job.slot] = columns.steps_at[job.slot] = cycle.now
        job.refusals = 0
        cycle.set_job_state(job, JobState.RUNNING)
        cycle.set_attempt_state(job, AttemptState.RUNNING)


def progressed(cycle: Cycle, job: JobRecord, event: AttemptProgressed) -> bool:
    """Take in a progress report. True if it changed the published speed of the job's kind."""
    ledger = cycle.ledger
    running(cycle, job)
    job.steps = max(job.steps, event.steps)
    ledger.columns.steps[job.slot], ledger.columns.steps_at[job.slot] = job.steps, cycle.now
    if event.start_s is not None and not job.start_told:
        job.start_told = True  # once a start, however often it is repeated: the kind's median is over starts
        ledger.costs.saw_start(job.request.kind, event.start_s)
    if event.steps_per_s is None or job.placement is None or ledger.is_spread(job):
        return False  # what is made of several speeds is no speed of one
    shape = ledger.fleet.pools[int(ledger.columns.pool[job.slot])].pool.shape
    key = (ledger.kind_of(job), shape.accelerator, job.placement.accelerators)
    return ledger.table.measure(*key, event.steps_per_s, ledger.classes.nominal)


def checkpointed(cycle: Cycle, job: JobRecord, event: CheckpointRecorded) -> None:
    """These steps survive whatever happens."""
    job.saved, job.loses_work = True, False
    cycle.ledger.columns.loses_work[job.slot] = False
    job.safe_steps = max(job.safe_steps, event.steps)
    if job.safe_steps > job.steps:
        columns = cycle.ledger.columns
        job.steps = columns.steps[job.slot] = job.safe_steps
        if job.running_at < inf:
            columns.steps_at[job.slot] = cycle.now  # counted on from an older report, they would count twice
    cycle.ledger.costs.saw_checkpoint(job.request.kind, event.took_s)


def round_ended(cycle: Cycle, event: RoundEnded) -> None:
    """What all attempts made in a round in step, in one report; their work is saved."""
    jobs = [cycle.ledger.jobs[job_id] for job_id in event.job_ids]
    for job, steps in zip(jobs, event.steps, strict=True):
        job.steps = job.safe_steps = steps
        job.saved, job.loses_work = True, False
    columns, slots = cycle.ledger.columns, [job.slot for job in jobs]
    columns.steps[slots], columns.steps_at[slots] = event.steps, event.at
    columns.loses_work[slots] = False
    cycle.beat = event


def revoke(cycle: Cycle, job: JobRecord, reason: Reason, *, detail: str = "", grace_s: float = inf) -> None:
    """Ask the attempt to checkpoint and stop. Its accelerators stay taken until it has ended."""
    if job.revoked is None:
        cycle.set_attempt_state(job, AttemptState.STOPPING, reason)
    job.revoked = reason
    grace_s = min(grace_s, job.request.grace_s)
    cycle.commands.append(Revoke(job.job_id, job.attempt, reason, grace_s))
    if job.state in (JobState.STARTING, JobState.RUNNING):
        cycle.set_job_state(job, JobState.PREEMPTING, reason, detail)


def release(cycle: Cycle, job: JobRecord) -> None:
    """Nobody of the attempt is alive: its accelerators are free."""
    ledger, columns = cycle.ledger, cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    form = ledger.classes.forms[ledger.class_of(job).form]
    for row, _ in job.place:
        machine = ledger.fleet.machines[row]
        if machine is not None:
            ledger.fleet.give_back(job.job_id, machine, form, cycle.now)
            cycle.freed[row] = None
            if machine.token:
                cycle.emptied[row] = None
    columns.since_at[job.slot], columns.steps_at[job.slot] = cycle.now, inf
    cycle.spending.ended(job)
    columns.let_go(job.slot)
    job.place, job.secure = (), False
    job.ends_known = -1
    job.profiling_until = columns.profiling_until[job.slot] = -inf
    ledger.profiling.discard(job.job_id)
    oddities.forget(cycle, job)
