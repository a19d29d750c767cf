"""Turns the reports of agents into events for the core: each once, in order, and only under the attempt's fence.

A report about an attempt that is not the job's current one is ignored and counted. A gang counts as started when all
its parts have started, and as ended when no part is left; its exit code is the one of the part that failed first.
Progress reaches the core at most once per interval; the first figures and the last ones before an end always do. Facts
that a job counted of its model are kept for its kind, unless they cannot be believed; then the log says why.

After a restore the backup is older than the world: agents report the newest checkpoint and the end of the attempts that
they know. An attempt of a job in the tables, with a higher number than theirs, is newer than all they know. So its
checkpoint is the newest one, and if it finished, the job has finished: such a job is held, and its detail says why, so
that people decide.

The attempts that an agent reports on its machine are compared with those that the tables expect there. An expected
attempt that is not there has ended unnoticed, unless its start is still on its way. An attempt that is there and not
expected is fenced. After a restore the tables are older than the world: no machine in them gets anything new until all
of them have reported what they run and ran, or their leases have run out. Attempts that still run and are known
continue, reports are sent again, and numbers that were given out after the backup are skipped.
"""

import json
import logging

from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    AttemptStarted,
    CheckpointRecorded,
    EndCause,
    JobHeld,
    NodeBack,
    NodeLeaving,
    NodeUncordoned,
    Prepared,
)
from scheduler.core.handlers.speed_reports import is_speed_outlier
from scheduler.core.speed_events import NetworkMeasured, SpeedDiffers
from scheduler.live.loop.apply_commands import emit, end_part, record_kind_facts, share_speeds, stop_other_parts
from scheduler.live.loop.departures import end_notice, leave_with_pool
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_identity import highest_number_told
from scheduler.live.services.checkpoint_records import give_up_checkpoint, is_inside, keep_checkpoint, lose_checkpoint
from scheduler.live.services.unconfirmed_starts import (
    hold_for_people,
    is_stopped_late,
    is_withdrawn,
    refuse_start,
    refuse_withdrawn,
    tell_refused,
)
from scheduler.live.store.table_rows import CheckpointRow, NetworkRow, PartRow, RestartCostRow, SpeedRow
from walras.cluster import PoolId
from walras.contract import (
    BANDWIDTH_VALUE,
    DATA_WAIT_VALUE,
    EXIT_CHECKPOINT_LOST,
    EXIT_CHECKPOINTED,
    SAVES_AS_STATED,
    SAVES_VALUE,
)
from walras.job_request import JobId, Kind, kind_within, project_of
from walras.model_facts import believed_facts
from walras.states import AttemptState, Reason
from walras.wire import (
    AnyReport,
    AttemptHere,
    AttemptReport,
    CommandRefusedReport,
    CommittedReport,
    EndedReport,
    Heartbeat,
    HintReport,
    NoticeReport,
    PrepareCommand,
    PreparedReport,
    ProgressReport,
    RefusedReport,
    StartCommand,
    StartedReport,
    UnknownReport,
)

log = logging.getLogger(__name__)


def record_counted_facts(transaction: Transaction, job: LiveJob, attempt: LiveAttempt, told: dict[str, float]) -> None:
    """Record the facts that the job's first rank counted, once an attempt: each report repeats them."""
    if attempt.facts_recorded:
        return
    attempt.facts_recorded = True
    batch = job.launch.env.get("WALRAS_BATCH", "")
    found = believed_facts(
        told, attempt.row.accelerators, float(batch) if batch.isascii() and batch.isdigit() else None
    )
    for why in found.ignored:
        log.warning("job %d: a fact of kind %s is not believed: %s", job.row.job_id, job.launch.kind, why)
    if found.facts is not None:
        record_kind_facts(transaction, job.kind, found.facts, "")


#: The most unknown types of reports that the log names.
_TYPES_TOLD = 100
#: Plausible bandwidths, bytes per second; a job's other figures are ignored.
_NETWORK_LEAST, _NETWORK_MOST = 1.0, 1e15
#: The most (kind, accelerator type, count) of which data waits are kept.
_DATA_WAITS_MOST = 5_000
#: The grace of the other parts of a gang after one has failed, seconds.
_GANG_GRACE_S = 5.0


def process_reports(transaction: Transaction, node: LiveNode, reports: list[AnyReport]) -> None:
    """Handle the reports that are new, in the order of their ids."""
    for report in sorted(reports, key=lambda report: report.report_id):
        if report.report_id <= node.row.reports_acked:
            continue
        node.row.reports_acked = report.report_id
        transaction.node_changed(node)
        if isinstance(report, NoticeReport):
            begin_node_departure(transaction, node, report.gone_in_s)
        elif isinstance(report, HintReport):
            node.row.detail = node.row.detail or report.detail
        elif isinstance(report, CommandRefusedReport):
            log.warning("%s does not know command %d: %s", node.row.node_id, report.command_id, report.detail)
        elif isinstance(report, UnknownReport):
            _skip_report(transaction, node, report)
        else:
            _process_report(transaction, node, report)


def _skip_report(transaction: Transaction, node: LiveNode, report: UnknownReport) -> None:
    """Skip and count a report of a newer agent's type, which this release does not know; log each type once."""
    counters = transaction.state.counters
    counters.unknown_reports += 1
    if report.told not in counters.unknown_types and len(counters.unknown_types) < _TYPES_TOLD:
        counters.unknown_types.add(report.told)
        log.warning(
            "the agent of %s (release %s) sends reports of type %r, which this release does not know: they are skipped",
            node.row.node_id, node.row.version or "unknown", report.told,
        )  # fmt: skip


def _process_report(transaction: Transaction, node: LiveNode, report: AttemptReport) -> None:
    job_id = JobId(report.job_id)
    attempt = transaction.state.attempt(job_id, report.attempt)
    if attempt is not None and report.incarnation not in ("", attempt.row.incarnation):
        attempt = None  # the number was given out twice, and this is another attempt
    if attempt is None and (former := job_of_former_life(transaction.state, report)) is not None:
        recover_report(transaction, former, report)
        return
    part = None if attempt is None else attempt.parts.get(node.row.node_id)
    if attempt is None or part is None or part.ended:
        transaction.state.counters.stale_reports += 1
        transaction.state.counters.stale_commits += isinstance(report, CommittedReport)
        return
    job = transaction.state.jobs[job_id]
    if isinstance(report, PreparedReport):
        part.prepared, part.address, part.port = True, report.address, report.port
        transaction.part_changed(part)
        emit(
            transaction, Prepared(transaction.at, job_id, report.attempt, node.row.node_id, report.address, report.port)
        )
    elif isinstance(report, RefusedReport):
        if is_withdrawn(part):
            refuse_withdrawn(transaction, part)
            return
        is_code = bool(report.lost) and report.lost == job.launch.code  # after a restore without content
        if report.lost and not is_code:
            lose_checkpoint(transaction, job, attempt, report.lost, report.detail)
        refuse_start(transaction, part, report.detail, lost_code=report.lost if is_code else "")
    elif isinstance(report, StartedReport):
        _started(transaction, attempt, part, report.brings)
    elif isinstance(report, ProgressReport):
        _progressed(transaction, job, attempt, report)
    elif isinstance(report, CommittedReport):
        _record_checkpoint(transaction, job, attempt, part, report)
    elif isinstance(report, EndedReport):
        _part_ended(transaction, job, attempt, part, report)


def _started(transaction: Transaction, attempt: LiveAttempt, part: PartRow, brings: bool) -> None:
    if part.started and (brings or not part.brings):
        return  # reported again after a restore
    part.started, part.brings = True, brings
    transaction.part_changed(part)
    if _has_started(attempt):
        emit(transaction, AttemptStarted(transaction.at, attempt.row.job_id, attempt.row.attempt))
        forward_progress(transaction, transaction.state.jobs[attempt.row.job_id], attempt)


def _has_started(attempt: LiveAttempt) -> bool:
    """Returns whether ranks run on each of its machines."""
    return all(each.started and not each.brings for each in attempt.parts.values())


# ------------------------------------------------------------------------------------------ progress, checkpoints


def _progressed(transaction: Transaction, job: LiveJob, attempt: LiveAttempt, report: ProgressReport) -> None:
    earlier = job.progress
    if earlier is not None and report.start_s is None:
        # The start time is reported once; a later report must keep it until the core was told.
        report = report.model_copy(update={"start_s": earlier.start_s if not job.progress_forwarded else None})
    attempt.evidence.reported.hear(transaction.at, report.steps)
    attempt.evidence.speed = _believed_speed(transaction, job, attempt, report.steps_per_s)
    says_saves, job.states_interval = _take_word_on_saving(report)
    is_news, job.says_saves = says_saves and not job.says_saves, says_saves
    job.progress, job.progress_forwarded = report, False
    if report.first_values and job.row.first_values == "{}":
        job.row.first_values = json.dumps(report.first_values)
    if report.values:
        job.row.last_values = json.dumps(report.values)
        _forward_network_speed(transaction, attempt, project_of(job.kind), report.values.get(BANDWIDTH_VALUE))
        _record_target_value(transaction, job, report)
        _record_data_wait(transaction, attempt, job.kind, report.values.get(DATA_WAIT_VALUE))
    if report.facts:
        record_counted_facts(transaction, job, attempt, report.facts)
    is_first = earlier is None
    is_first_speed = attempt.evidence.speed is not None and not job.speed_forwarded
    if attempt.evidence.speed is not None:
        _forward_unusual_speed(transaction, job, attempt, report, is_first=is_first_speed)
    if (
        is_first
        or is_first_speed
        or is_news
        or transaction.at >= job.progress_forwarded_at + transaction.progress_interval_s
    ):
        forward_progress(transaction, job, attempt)


def _believed_speed(transaction: Transaction, job: LiveJob, attempt: LiveAttempt, claim: float | None) -> float | None:
    if claim is None:
        return None
    gang = attempt.row.accelerator, attempt.row.accelerators
    return attempt.evidence.believed(claim, job.kind, gang, transaction.core.ledger)


def _take_word_on_saving(report: ProgressReport) -> tuple[bool, bool]:
    """Returns whether the script says that it can save its work, and whether it states itself how often it does.

    The value is removed from the report: it is for the scheduler, and not shown.
    """
    report.first_values.pop(SAVES_VALUE, None)
    word = report.values.pop(SAVES_VALUE, 0.0)
    return word > 0, word == SAVES_AS_STATED


def _record_target_value(transaction: Transaction, job: LiveJob, report: ProgressReport) -> None:
    """Keep the reported values of the target in memory; they are written as often as the progress is."""
    if job.target is not None:
        job.target = job.target.with_report(report.steps, report.values)
        if job.target.is_worth_a_forecast:
            transaction.state.to_forecast.setdefault(job.row.job_id)


def _record_data_wait(transaction: Transaction, attempt: LiveAttempt, kind: Kind, share: float | None) -> None:
    """Keep the share of steps that wait for data, for predictions; rounded, so that noise causes no new prediction."""
    if share is None or not 0.0 <= share <= 1.0:
        return
    waits, tenths = transaction.state.data_waits, round(10 * share)
    cell = kind, attempt.row.accelerator, attempt.row.accelerators
    if waits.get(cell) != tenths and (cell in waits or len(waits) < _DATA_WAITS_MOST):
        waits[cell] = tenths
        transaction.state.data_waits_version += 1


def _forward_network_speed(
    transaction: Transaction, attempt: LiveAttempt, project: str, bytes_per_s: float | None
) -> None:
    """Tell the core the measured bandwidth, once an attempt: each report repeats it."""
    if bytes_per_s is None or not _NETWORK_LEAST <= bytes_per_s <= _NETWORK_MOST:
        return
    if not attempt.network_forwarded and len(attempt.parts) > 1:
        attempt.network_forwarded = True
        emit(transaction, NetworkMeasured(transaction.at, attempt.row.job_id, attempt.row.attempt, bytes_per_s))
        planned = transaction.core.ledger.networks.planned(project, attempt.row.pool_id)
        if planned is not None:
            own = PoolId(kind_within(project, Kind(attempt.row.pool_id)))
            transaction.batch.put(NetworkRow(own, planned))


def forward_progress(transaction: Transaction, job: LiveJob, attempt: LiveAttempt) -> None:
    """Tell the core the newest progress, unless it was told already; of a gang once it runs on all its machines."""
    report = job.progress
    if report is None or job.progress_forwarded or not _has_started(attempt):
        return
    job.progress_forwarded, job.progress_forwarded_at = True, transaction.at
    job.row.steps = max(job.row.steps, report.steps)
    job.row.steps_per_s = report.steps_per_s
    transaction.job_changed(job)
    transaction.target_changed(job)
    speed = attempt.evidence.speed
    if speed is not None:
        job.speed_forwarded = True
        if _is_usual(transaction, job) and (gang := _measured_gang(transaction, attempt)):
            transaction.batch.put(SpeedRow(job.kind, gang, attempt.row.accelerators, speed))
    emit(
        transaction,
        AttemptProgressed(
            transaction.at,
            attempt.row.job_id,
            attempt.row.attempt,
            report.steps,
            speed,
            report.samples,
            report.start_s,
            job.says_saves,
        ),
    )
    if speed is not None and (known := transaction.core.ledger.jobs.get(job.row.job_id)) is not None:
        share_speeds(transaction, known.request.program)
    _keep_pair_speed(transaction, job, attempt)
    table = transaction.core.ledger.table
    if table.judged > transaction.state.scores_stored:
        transaction.batch.put(*table.scored(since=transaction.state.scores_stored))
        transaction.state.scores_stored = table.judged
    if report.start_s is not None:
        store_restart_cost(transaction, job)


def _measured_gang(transaction: Transaction, attempt: LiveAttempt) -> str:
    """Returns of which gang the attempt's speed is one: its type, or those of several with their counts, as
    `ThroughputMeasured` has them; empty where it measures none.
    """
    ledger, job_id = transaction.core.ledger, attempt.row.job_id
    if (job := ledger.jobs.get(job_id)) is None or not ledger.is_spread(job):
        return attempt.row.accelerator
    held = ledger.classes.types_of(ledger.parts_of(job))
    return ",".join(f"{name}:{held[name]}" for name in sorted(held)) if job.request.is_measured_spread else ""


def _keep_pair_speed(transaction: Transaction, job: LiveJob, attempt: LiveAttempt) -> None:
    """Write the measured speed of the job's kind beside the kind with which it shares an accelerator."""
    core = transaction.core
    if job.row.job_id not in core.cycle.sharing.pairs:
        return
    kind = core.ledger.kind_of(core.ledger.jobs[job.row.job_id])
    known = core.ledger.table.measured(kind, attempt.row.accelerator, 1)
    if known is not None:
        transaction.batch.put(SpeedRow(kind, attempt.row.accelerator, 1, known))


def _forward_unusual_speed(
    transaction: Transaction, job: LiveJob, attempt: LiveAttempt, report: ProgressReport, *, is_first: bool
) -> None:
    """Tell the core if the speed differs from what the kind reached on such accelerators before this attempt."""
    row, own = attempt.row, attempt.evidence.speed
    if "WALRAS_BATCH_MAX" in job.launch.env:
        return  # it chooses its batch size, and is slower than its kind until it has found it
    if is_first:
        attempt.usual_steps_per_s = transaction.core.ledger.table.measured(job.kind, row.accelerator, row.accelerators)
    if own is not None and not attempt.is_unusual and is_speed_outlier(attempt.usual_steps_per_s, own, report.samples):
        attempt.is_unusual = True
        usual = attempt.usual_steps_per_s or own
        emit(transaction, SpeedDiffers(transaction.at, row.job_id, row.attempt, usual, own))


def _is_usual(transaction: Transaction, job: LiveJob) -> bool:
    """Returns whether the job's speed stands for its kind.

    It does not on slow or badly connected machines, nor on an accelerator that the job shares or shared until now.
    """
    known = transaction.core.ledger.jobs.get(job.row.job_id)
    if not transaction.core.cycle.sharing.is_settled(job.row.job_id):
        return False
    if known is None:
        return True
    ledger = transaction.core.ledger
    if known.placement is not None and ledger.slow_machines.any_slow(known.placement, project_of(job.kind)):
        return False
    return ledger.kind_of(known) == known.request.kind


def _record_checkpoint(
    transaction: Transaction, job: LiveJob, attempt: LiveAttempt, part: PartRow, report: CommittedReport
) -> None:
    """Record a checkpoint under the fence: the attempt is the current one, and its part here has not ended."""
    manifest, row = report.manifest, attempt.row
    if not _may_commit(job, attempt, part, report) or keep_checkpoint(transaction, job, report) is None:
        transaction.state.counters.stale_commits += 1
        return
    attempt.committed_by = part.node_rank
    attempt.evidence.saved.hear(transaction.at, manifest.step)
    row.checkpoint_step = manifest.step
    transaction.attempt_changed(attempt)
    job.row.steps = max(job.row.steps, manifest.step)
    transaction.job_changed(job)
    took_s, lag_s = report.took_s, report.lag_s
    emit(transaction, CheckpointRecorded(transaction.at, row.job_id, row.attempt, manifest.step, took_s, lag_s=lag_s))
    store_restart_cost(transaction, job)


def _may_commit(job: LiveJob, attempt: LiveAttempt, part: PartRow, report: CommittedReport) -> bool:
    """Returns whether this machine's commit counts for the gang.

    The first machine's does. A survivor's does if every rank has the whole state, and it is of a later step than what
    the attempt has, or of the same and from a lower machine.
    """
    if part.node_rank == 0 or report.layout != "replicated":
        return part.node_rank == 0
    known, step = job.checkpoint, report.manifest.step
    if known is None or known.attempt != report.attempt or step > known.step:
        return True
    return step == known.step and part.node_rank < attempt.committed_by


def store_restart_cost(transaction: Transaction, job: LiveJob) -> None:
    """Write the restart time that the core has learned of this kind, for the next start of the server."""
    restart_s = transaction.core.ledger.costs.restart_s(job.kind, 0.0)
    if restart_s > 0:
        transaction.batch.put(RestartCostRow(job.kind, restart_s))


# ------------------------------------------------------------------------------------------ ends


def _part_ended(
    transaction: Transaction, job: LiveJob, attempt: LiveAttempt, part: PartRow, report: EndedReport
) -> None:
    was_asked_to_stop = part.stopped or attempt.row.state is AttemptState.STOPPING
    # The server asked for this end before its tables were restored, so these do not show it.
    is_forgotten = report.asked and report.cause == "exited" and not was_asked_to_stop
    is_late = (is_stopped_late(part) or is_forgotten) and (report.exit_code is None or report.unfinished)
    if is_late:
        # Our stop ended its ranks, so the job is queued again, as after a preemption.
        report = report.model_copy(update={"exit_code": EXIT_CHECKPOINTED, "signal": None, "failed_rank": None})
    # The tables may be older than the request to withdraw the start.
    never_began = report.cause == "exited" and not part.started and not was_asked_to_stop
    if report.exit_code is None and report.signal is None and (is_withdrawn(part) or never_began):
        refuse_withdrawn(transaction, part)
        return
    part.exit_code, part.signal, part.failed_rank = report.exit_code, report.signal, report.failed_rank
    part.steps, part.exceeded = report.steps, report.exceeded
    attempt.loss_witnessed = attempt.loss_witnessed or report.witnessed
    attempt.is_unfinished = attempt.is_unfinished or report.unfinished
    attempt.own_fault = attempt.own_fault or report.own_fault
    end_part(transaction, part, report.cause)
    if is_late or (_has_failed(part) and part.exit_code != EXIT_CHECKPOINTED):
        stop_other_parts(transaction, attempt, min(_GANG_GRACE_S, job.launch.grace_s), "a part of the gang has failed")
    if attempt.is_over:
        end_attempt(transaction, job, attempt)


def end_vanished_part(transaction: Transaction, part: PartRow) -> None:
    """End a part that its restarted agent does not know any more: its supervisor and ranks are gone."""
    attempt = transaction.state.attempt(part.job_id, part.attempt)
    if attempt is None or part.ended:
        return
    end_part(transaction, part, EndCause.SUPERVISOR_LOST)
    stop_other_parts(transaction, attempt, _GANG_GRACE_S, "a part of the gang is lost")
    if attempt.is_over:
        end_attempt(transaction, transaction.state.jobs[part.job_id], attempt)


def end_attempt(transaction: Transaction, job: LiveJob, attempt: LiveAttempt) -> None:
    """Tell the core that all parts of the attempt have ended, with the cause of the part that failed first."""
    if tell_refused(transaction, attempt):
        return
    forward_progress(transaction, job, attempt)
    ended = sorted(
        attempt.parts.values(),
        # Survivors of a gang that saved for it did not break it.
        key=lambda part: (part.stopped, part.exit_code == EXIT_CHECKPOINTED, part.ended_at or 0.0, part.node_rank),
    )
    failed = next((part for part in ended if _has_failed(part)), None)
    row = attempt.row
    steps = max((part.steps for part in ended if part.steps is not None), default=None)
    if failed is None:
        row.exit_code = 0
        emit(
            transaction,
            AttemptEnded(
                transaction.at,
                row.job_id,
                row.attempt,
                EndCause.EXITED,
                exit_code=0,
                steps=steps,
                unfinished=attempt.is_unfinished,
            ),
        )
        return
    row.exit_code, row.signal, row.failed_rank = failed.exit_code, failed.signal, failed.failed_rank
    if failed.exit_code == EXIT_CHECKPOINT_LOST:
        lose_checkpoint(transaction, job, attempt, "", "its ranks found it torn")
    cause = EndCause(failed.cause) if failed.cause in set(EndCause) else EndCause.SUPERVISOR_LOST
    emit(
        transaction,
        AttemptEnded(
            transaction.at,
            row.job_id,
            row.attempt,
            cause,
            failed.exit_code,
            failed.signal,
            failed.node_id,
            steps,
            attempt.loss_witnessed and cause is EndCause.SUPERVISOR_LOST,
            failed.exceeded,
            attempt.is_unfinished,
            attempt.own_fault,
        ),
    )


def _has_failed(part: PartRow) -> bool:
    return part.cause != EndCause.EXITED or part.exit_code != 0 or part.signal is not None or bool(part.exceeded)


# ------------------------------------------------------------------------------------------ after a restore


def job_of_former_life(state: LiveState, report: AttemptReport) -> LiveJob | None:
    """Returns the job that a report of a former incarnation is about, if it is the same job and the report is news.

    Returns None too where the number was given to another job since, or where an attempt of this incarnation runs: it
    began from what was known here, and earlier attempts say nothing about it.
    """
    job = state.jobs.get(JobId(report.job_id))
    if job is None or report.incarnation not in state.former or job.row.incarnation == state.identity.incarnation:
        return None
    newest = 0 if job.attempt is None else job.attempt.row.attempt
    grown_here = job.attempt is not None and job.attempt.row.incarnation == state.identity.incarnation
    return None if grown_here or report.attempt <= newest else job


def recover_report(transaction: Transaction, job: LiveJob, report: AttemptReport) -> None:
    """Record what a former attempt saved or finished.

    The core is not told: it counts attempts that it granted. A later start resumes from the checkpoint.
    """
    if isinstance(report, CommittedReport):
        is_of_last_life = report.incarnation == transaction.state.former[-1]
        while is_of_last_life and is_inside(job, report) and _began_before(job.checkpoint, report):
            give_up_checkpoint(transaction, job, "an attempt after it began with an earlier one")
        if (row := keep_checkpoint(transaction, job, report)) is not None:
            log.info("job %d: a checkpoint at step %g made after the backup counts", row.job_id, row.step)
    elif isinstance(report, EndedReport) and report.cause == "exited" and report.exit_code == 0:
        _hold_finished(transaction, job, report.attempt)


def _began_before(known: CheckpointRow | None, report: CommittedReport) -> bool:
    """Returns whether an attempt after the checkpoint's began without it: it was lost by then."""
    return known is not None and report.attempt > known.attempt and report.manifest.step < known.step


def _hold_finished(transaction: Transaction, job: LiveJob, attempt: int) -> None:
    """Hold a job that a later attempt than the tables know has finished: people decide whether it is to run again."""
    ended = f"attempt {attempt} ended with exit code 0 after the backup was made"
    hold_for_people(transaction, job, f"{ended}: release it to run it again")


# ------------------------------------------------------------------------------------------ notices


#: Seconds after the end that a notice told for which the machine is still expected to go.
OUTLIVED_S = 600.0


def begin_node_departure(transaction: Transaction, node: LiveNode, gone_in_s: float) -> None:
    """Drain a machine that will be taken away in `gone_in_s`; another notice before it is gone changes nothing."""
    if node.is_member and node.row.notice_s is None:
        emit(transaction, NodeLeaving(transaction.at, node.row.node_id, transaction.at + gone_in_s))
        node.outlives_at = transaction.at + gone_in_s + OUTLIVED_S


def outlives_notice(node: LiveNode) -> bool:
    """Returns whether a machine was heard `OUTLIVED_S` after the end that a notice told, or nobody knows when that is.

    It was not taken away, or it was stopped and came back, or the notice was late.
    """
    has_notice = node.is_member and node.row.notice_s is not None
    return has_notice and (node.outlives_at is None or node.heard_at > node.outlives_at)


def end_outlived_notice(transaction: Transaction, node: LiveNode) -> None:
    """Let a machine that `outlives_notice` take jobs again, unless it or its pool is drained.

    A notice that was told to a server before this one counts as if it were told now.
    """
    if node.outlives_at is None:
        node.outlives_at = transaction.at + OUTLIVED_S
    elif node.row.drained_by or transaction.state.pools[node.row.pool_id].drained:
        end_notice(node)
        if not node.row.drained_by:
            leave_with_pool(node)
        transaction.node_changed(node)
    else:
        log.warning("%s has outlived the notice of its end and takes jobs again", node.row.node_id)
        emit(transaction, NodeUncordoned(transaction.at, node.row.node_id))


def compare_machine(transaction: Transaction, node: LiveNode, message: Heartbeat) -> None:
    """End the expected attempts that the agent does not have: it has just started, and says all that runs there."""
    node.sent_id = 0  # commands on their way may be lost: send them again
    here = {(here.job_id, here.attempt) for here in message.here if is_expected(transaction.state, node, here)}
    # Commands of this transaction are in no outbox yet, such as the start of an attempt that this message's reports
    # cause.
    posted = [command for node_id, command in transaction.effects.posts if node_id == node.row.node_id]
    coming = {
        (command.job_id, command.attempt)
        for command in (*node.outbox.values(), *posted)
        if isinstance(command, (StartCommand, PrepareCommand))
    }
    for job_id, number in sorted(node.expected):
        attempt = transaction.state.attempt(job_id, number)
        if attempt is None or (job_id, number) in here or (job_id, number) in coming:
            continue
        part = attempt.parts[node.row.node_id]
        if is_withdrawn(part):
            refuse_withdrawn(transaction, part)
        elif part.ordered:
            end_vanished_part(transaction, part)


def is_expected(state: LiveState, node: LiveNode, here: AttemptHere) -> bool:
    """Returns whether the tables expect this very attempt there; its number may have been given out twice."""
    job_id = JobId(here.job_id)
    attempt = state.attempt(job_id, here.attempt)
    return (job_id, here.attempt) in node.expected and (
        attempt is None or here.incarnation in ("", attempt.row.incarnation)
    )


def unexpected_here(state: LiveState, node: LiveNode, message: Heartbeat) -> list[AttemptHere]:
    """Returns the attempts that the agent must stop at once."""
    return [here for here in message.here if not is_expected(state, node, here)]


# ------------------------------------------------------------------------------------------ after a restore


def begin_after_restore(state: LiveState, former: tuple[str, ...]) -> None:
    """Mark machines that must still be compared with the tables, if the database was ever restored."""
    state.former = former
    for node in state.nodes.values():
        node.must_meet = bool(former) and node.is_member and node.row.incarnation != state.identity.incarnation
        if node.must_meet:
            node.row.state = "unreachable"


def is_settled(state: LiveState) -> bool:
    """Returns whether every machine of the tables was compared or is lost, so that nothing can be started twice.

    Looks at every machine, so no heartbeat of one that is up should ask.
    """
    return not any(node.must_meet and node.is_member for node in state.nodes.values())


def meet_machine(transaction: Transaction, node: LiveNode, message: Heartbeat, after_restore: str) -> None:
    """Take what an agent reports after a restore; its reports about attempts have been taken already.

    The machine stays marked until the attempts that the tables do not know have ended there: their jobs may be about to
    start elsewhere.
    """
    state, row = transaction.state, node.row
    unknown = unexpected_here(state, node, message)
    if not node.has_told:
        node.has_told = True
        state.next_job_id = max(state.next_job_id, highest_number_told(state, message) + 1)
        for each in unknown:
            log.warning(
                "%s runs attempt %d of job %d (incarnation %s), which the restored tables do not know: it is stopped",
                row.node_id, each.attempt, each.job_id, each.incarnation or "unknown",
            )  # fmt: skip
        if after_restore == "stop":
            _hold_for_peoples_on(transaction, node)
    if not unknown:
        node.must_meet, row.incarnation = False, state.identity.incarnation
        transaction.node_changed(node)
        log.info("%s has said what it has after the restore", row.node_id)


def _hold_for_peoples_on(transaction: Transaction, node: LiveNode) -> None:
    for job_id, _ in sorted(node.expected):
        log.warning("job %d is held after the restore: release it to let it go on", job_id)
        emit(transaction, JobHeld(transaction.at, job_id, Reason.HOLD_ADMIN))


def settle_machines(transaction: Transaction, unreachable_s: float) -> None:
    """Let reachable machines take jobs again, once every machine was compared."""
    if not is_settled(transaction.state):
        return
    for node in list(transaction.state.nodes.values()):
        if node.row.state == "unreachable" and transaction.at - node.heard_at <= unreachable_s:
            welcome_back(transaction, node)


def welcome_back(transaction: Transaction, node: LiveNode) -> None:
    """Mark a machine as up that was heard again before its leases ran out."""
    node.row.state = "up"
    transaction.node_changed(node)
    log.info("%s is back", node.row.node_id)
    emit(transaction, NodeBack(transaction.at, node.row.node_id))
