"""Endpoints about jobs that exist: list, show, explain, change, redirect, cancel; their logs; facts of their kinds."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from aiohttp import web

from scheduler.core.events import JobBudgetChanged, JobCancelled, JobHeld, JobRedirected, JobReleased, JobReprioritised
from scheduler.core.explain.feasibility import possible_remedies, without_failing
from scheduler.core.explain.job_conditions import AT_RISK, believed_speeds, job_conditions
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.auth.access_control import AgentCaller, Caller, UserCaller, UserRole
from scheduler.live.auth.job_privacy import spec_shown_to
from scheduler.live.http.request_bodies import read_file_model
from scheduler.live.http.requests import RequestContext, problem_detail_of, serves
from scheduler.live.loop.apply_commands import emit, record_kind_facts
from scheduler.live.loop.live_state import LiveJob
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_identity import check_log_sender
from scheduler.live.services.job_changes import (
    change_deadline,
    changed_deadline,
    changed_project,
    changed_terms,
    reassign_job,
    shown_deadline,
)
from scheduler.live.services.job_submission import (
    check_feasible,
    default_worth,
    dump_defaults,
    followable,
    parse_defaults,
    paying_project,
)
from scheduler.live.services.job_watch import why_late
from scheduler.live.services.views import QUEUE_ORDER, jobs_in_turn, target_conditions
from scheduler.live.store.data_folder import LogPlace
from scheduler.live.store.event_journal import dump_json, parse_request
from scheduler.live.store.sql_store import NEWEST_FIRST, check_sort, cursor_after, parse_cursor
from scheduler.live.store.store_interface import JobQuery, JobUsage
from scheduler.live.store.table_rows import JobRow, SpecRow
from walras.contract import NEXT_OFFSET_HEADER
from walras.errors import Conflict, Forbidden, NotFound, UserError
from walras.job_request import GangRequest, JobId, JobRequest, Kind, group_fields, kind_within, plain_kind, project_of
from walras.resources.fleet import SEND_LOG, LogAccepted
from walras.resources.jobs import (
    CANCEL,
    CANCEL_ALL,
    CHANGE_JOB,
    JOBS,
    LARGEST_NUMBER,
    AttemptView,
    CancelResult,
    CancelResults,
    ConditionView,
    Explanation,
    FactCalls,
    FactsView,
    JobCalls,
    JobDetail,
    JobPage,
    JobsCancelled,
    KindStated,
    Patch,
    ReasonView,
    Redirection,
)
from walras.resources.logs import LOG, LOG_START, LogStart
from walras.spec.job_groups import needs_of
from walras.spec.job_spec import JobSpec, gang_sizes_of, parse_spec, spec_mapping
from walras.states import JobState, Reason

_PAGE = 50
_PAGE_MOST = 1000
_LONGEST_NAME_PART = 200


# ------------------------------------------------------------------------------------------ look


@serves(JOBS)
async def list_jobs(call: RequestContext) -> bytes:
    query = call.request.query
    states = tuple(word for word in query.get("state", "").upper().split(",") if word)
    for word in states:
        if word not in set(JobState):
            raise UserError(f"no state {word[:40]!r}", field="state", fix=f"one of {', '.join(JobState)}")
    limit = call.number("limit", _PAGE, 1, _PAGE_MOST)
    sort, cursor = query.get("sort", NEWEST_FIRST), query.get("cursor", "")
    in_turn = sort == QUEUE_ORDER
    # The order moves while pages are read, so that a page begins behind so many jobs, not behind one.
    skipped = call.number("cursor", 0, 0, 2**31) if in_turn and cursor else 0
    asked = JobQuery(
        states=states,
        user=query.get("user", ""),
        project=query.get("project", ""),
        projects=call.user.visible_projects,
        active=call.flag("active"),
        name_part=query.get("name", "")[:_LONGEST_NAME_PART],
        sort=sort if in_turn else check_sort(sort),
        after=None if in_turn else parse_cursor(cursor, sort),
        sweep=call.number("sweep", 0, 0, 2**62) or None,
        fold_sweeps=query.get("sweeps") == "folded",
        limit=skipped + limit + 1,
    )
    now, store = call.server.loop.clock.now(), call.server.store
    ordered = (await jobs_in_turn(call.server.core, call.server.state.jobs, asked))[skipped:] if in_turn else None

    def look() -> tuple[list[JobRow], list[JobUsage], dict[JobId, dict[str, int]]]:
        rows = store.jobs(asked) if ordered is None else ordered
        folded = [row.sweep for row in rows[:limit] if row.sweep is not None] if asked.fold_sweeps else []
        return rows, store.usage([row.job_id for row in rows[:limit]], now), store.sweep_states(folded)

    rows, usage, sweeps = await call.server.read(look)  # at once: in a busy server each read waits for its turn
    shown, more = rows[:limit], None
    if len(rows) > limit:
        more = str(skipped + limit) if in_turn else cursor_after(shown[-1], sort)
    found = JobPage(items=await call.server.views.jobs(shown, usage, sweeps), next=more)
    if len(shown) <= _PAGE:
        return found.model_dump_json().encode()
    # Encoding a thousand jobs takes milliseconds, so it is not done in the loop's thread.
    return (await call.server.read(found.model_dump_json)).encode()


async def visible_job_row(call: RequestContext) -> JobRow:
    """Returns the job of the path. Raises NotFound where there is none, or the caller may not see it."""
    row = await call.server.read(call.server.store.job, call.job_id)
    if row is None or not _sees(call.caller, row.project):
        raise NotFound(f"no job {call.job_id}")
    return row


def _sees(caller: Caller | None, project: str) -> bool:
    """Returns whether the caller may see jobs of a project; a job's own token opens its job alone."""
    return caller.sees(project) if isinstance(caller, UserCaller) else caller is not None


@serves(JobCalls.job)
async def show_job(call: RequestContext) -> JobDetail:
    row = await visible_job_row(call)
    store, now = call.server.store, call.server.loop.clock.now()
    usage = await call.server.read(store.usage, [row.job_id], now)
    attempts = await call.server.read(store.attempts, row.job_id)
    written = await _written_spec(call, row)
    newest = await call.server.read(store.checkpoint, row.job_id)
    return call.server.views.detail(row, usage, spec_shown_to(call.caller, row.user, written), attempts, newest)


@serves(JobCalls.attempts)
async def list_attempts(call: RequestContext) -> list[AttemptView]:
    row, server = await visible_job_row(call), call.server
    return [server.views.attempt(each) for each in await server.read(server.store.attempts, row.job_id)]


async def _tried_remedies(call: RequestContext, row: JobRow) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the changes that may start a waiting job now, and those that did start it on a copy of the state."""
    core = call.server.core
    job = core.ledger.jobs.get(row.job_id)
    if job is None or job.holds:
        return frozenset(), frozenset()
    looks = possible_remedies(core, job)
    helps = await call.server.start_forecasts.changes_that_help(row.job_id, looks) if looks else None
    return frozenset(each.text for each in looks), helps or frozenset()


async def _written_spec(call: RequestContext, row: JobRow) -> dict[str, Any]:
    stored = await call.server.read(call.server.store.spec, row.job_id)
    found: dict[str, Any] = json.loads("{}" if stored is None else stored.spec)
    return found


@serves(JobCalls.explain)
async def explain_job(call: RequestContext) -> Explanation:
    asked, people = await visible_job_row(call), call.server.secrets.people
    tried, written = await _tried_remedies(call, asked), await _written_spec(call, asked)
    # All that follows is of one instant: the job may have started or ended meanwhile.
    if (live := call.server.state.jobs.get(asked.job_id)) is None:
        await call.server.loop.settled()
    row = await visible_job_row(call) if live is None else live.row
    lines = pending_reasons(call.server.core, row.job_id, call.server.state.expected_machines)
    lines = tuple(replace(line, fix=without_failing(line.fix, *tried)) for line in lines)
    reasons = [
        ReasonView(
            reason=line.reason,
            detail=line.detail,
            fix=followable(line, call.user, people, row.project),
            figures=line.figures,
        )
        for line in lines
    ]
    if row.state.is_final:
        reasons = call.server.views.ending(row)
    elif reasons and row.reason is not None and row.detail:
        if row.reason is reasons[0].reason:
            # The detail of the row says what happened; it comes before what holds now.
            detail = "; ".join(filter(None, (row.detail, reasons[0].detail)))
            reasons[0] = reasons[0].model_copy(update={"detail": detail})
        else:
            # The core does not keep why the last attempt ended: the row does.
            reasons.append(ReasonView(reason=row.reason, detail=row.detail))
    told = [ConditionView(type=each.type, detail=each.detail) for each in job_conditions(call.server.core, row.job_id)]
    if not row.state.is_final and AT_RISK not in (each.type for each in told):
        deadline_at = call.server.core.ledger.jobs[row.job_id].request.deadline_at
        late = why_late(call.server.loop.clock, deadline_at, call.server.start_forecasts.view(row.job_id))
        told += [ConditionView(type=AT_RISK, detail=late)] if late else []
    told += call.server.views.stalls(row) + call.server.views.idle(row)
    in_force = call.server.policies.in_force
    if in_force.put_back and not row.state.is_final:
        told.append(ConditionView(type="policy_failed", detail=f"{in_force.spec.name} decides: {in_force.put_back}"))
    if row.state is JobState.RUNNING:
        told += call.server.views.off_plan(row, written)
    target = call.server.views.target(row)
    return Explanation(
        job_id=row.job_id,
        state=row.state,
        why=call.server.views.why(row),
        reasons=reasons,
        conditions=told + ([] if target is None else target_conditions(target)),
        target=target,
        speeds=[call.server.views.pool_speed(each) for each in believed_speeds(call.server.core, row.job_id)],
    )


# ------------------------------------------------------------------------------------------ change


def _standing(job: LiveJob) -> dict[str, Any]:
    """Returns what people can change of a job, as audit rows show it before and after."""
    row = job.row
    found: dict[str, Any] = {"state": row.state.value, "reason": None if row.reason is None else row.reason.value}
    return found | {"priority": row.priority, "budget_usd": row.budget_usd, "project": row.project}


@serves(CANCEL)
async def cancel_job(call: RequestContext) -> JobDetail:
    """Ends the job, whether it waits or runs. Returns the job as it is then."""
    row = await visible_job_row(call)
    if row.state.is_final and call.user.may_change(row.user, row.project):
        return await show_job(call)  # cancelling an ended job again is no error
    by = call.user.name
    return await change_live_job(call, lambda step, job: emit(step, JobCancelled(step.at, job.row.job_id, by)))


@serves(CANCEL_ALL)
async def cancel_jobs(call: RequestContext) -> CancelResults:
    """Ends many jobs in one batch, in the order given; each is cancelled or refused on its own."""
    wanted = [JobId(number) for number in (await call.model(JobsCancelled)).jobs]
    rows: dict[JobId, JobRow | None] = {}
    for job_id in wanted:
        live = call.server.state.jobs.get(job_id)
        rows[job_id] = live.row if live is not None else await call.server.read(call.server.store.job, job_id)

    def cancel(job_id: JobId, transaction: Transaction) -> CancelResult:
        try:
            return CancelResult(id=job_id, state=_cancel(call, transaction, job_id, rows[job_id]))
        except UserError as error:
            return CancelResult(id=job_id, error=problem_detail_of(error))

    return CancelResults(items=await call.server.loop.perform_all([partial(cancel, job_id) for job_id in wanted]))


def _cancel(call: RequestContext, transaction: Transaction, job_id: JobId, row: JobRow | None) -> JobState:
    """Ends the job unless it has ended; returns its state then. Raises NotFound, Forbidden."""
    if row is None or not call.user.sees(row.project):
        raise NotFound(f"no job {job_id}")
    if not call.user.may_change(row.user, row.project):
        raise Forbidden(f"job {job_id} belongs to {row.user}")
    job = transaction.state.jobs.get(job_id)
    if job is None:
        return transaction.state.ended.get(job_id, row.state)

    def step(transaction: Transaction) -> None:
        emit(transaction, JobCancelled(transaction.at, job_id, call.user.name))

    call.audited(f"job {job_id}", lambda _: _standing(job), step, job.row.project)(transaction)
    return job.row.state


@serves(JobCalls.hold)
async def hold_job_endpoint(call: RequestContext) -> JobDetail:
    def step(transaction: Transaction, job: LiveJob) -> None:
        reason = Reason.HOLD_USER if call.user.name == job.row.user else Reason.HOLD_ADMIN
        if (reason, job.held_by) != (Reason.HOLD_USER, Reason.HOLD_ADMIN):  # an operator's hold stays
            emit(transaction, JobHeld(transaction.at, job.row.job_id, reason))

    return await change_live_job(call, step)


@serves(JobCalls.release)
async def release_job_endpoint(call: RequestContext) -> JobDetail:
    def step(transaction: Transaction, job: LiveJob) -> None:
        if job.held_by is Reason.HOLD_ADMIN and call.user.role < UserRole.OPERATOR:
            raise Forbidden("an operator holds this job", fix="ask an operator to release it")
        emit(transaction, JobReleased(transaction.at, job.row.job_id))

    return await change_live_job(call, step)


@serves(CHANGE_JOB)
async def change_job(call: RequestContext) -> JobDetail:
    """Changes priority, budget, deadline or project of a job that has not ended; returns the job as it is then."""
    patch = await call.model(Patch)
    async with call.server.changing_specs:
        return await _changed_job(call, patch)


async def _changed_job(call: RequestContext, patch: Patch) -> JobDetail:
    before, people = await show_job(call), call.server.secrets.people
    may = call.user.may_change(before.user, before.project)
    if patch.priority is not None and may and patch.project in (None, before.project):  # else by those of the new one
        people.check(call.user, before.project, {"priority": patch.priority})
    clock, dated, moved = call.server.loop.clock, None, None
    stored = await call.server.read(call.server.store.spec, JobId(before.id))
    live = call.server.state.jobs.get(call.job_id) if may and patch.project != before.project else None
    if stored is not None and live is not None and patch.project is not None:
        moved = changed_project(stored, live, patch, call.user, people)
        stored = moved.stored
    if stored is not None:
        stored = changed_terms(stored, patch.priority, patch.budget_usd)
    if stored is not None and patch.deadline is not None:
        dated = changed_deadline(stored, patch.deadline, clock)

    def step(transaction: Transaction, job: LiveJob) -> None:
        if moved is not None:
            told = reassign_job(transaction, job, moved, call.server.admission)
            call.note_write(transaction, f"job {call.job_id}", **told, project=job.row.project)
        if patch.priority is not None:
            job.row.priority = patch.priority
            kept = json.loads(job.row.defaults)
            job.row.defaults = json.dumps({name: each for name, each in kept.items() if name != "priority"})
            emit(transaction, JobReprioritised(transaction.at, job.row.job_id, patch.priority))
        if patch.budget_usd is not None:
            job.row.budget_usd = patch.budget_usd
            emit(transaction, JobBudgetChanged(transaction.at, job.row.job_id, patch.budget_usd, before.usd))
        if dated is not None:
            change_deadline(transaction, dated)
        elif stored is not None:
            transaction.batch.put(stored)
        transaction.job_changed(job)

    def also(transaction: Transaction) -> dict[str, Any]:
        return {} if dated is None else {"deadline": shown_deadline(transaction, dated, clock)}

    return await change_live_job(call, step, also)


async def change_live_job(
    call: RequestContext, step: Any, also: Callable[[Transaction], dict[str, Any]] = lambda _: {}
) -> JobDetail:
    """Apply a step to a job that has not ended, with an audit row.

    `also`: what the row says besides `_standing`, before and after. Raises NotFound, Forbidden, Conflict.
    """
    row = await visible_job_row(call)
    if not call.user.may_change(row.user, row.project):
        raise Forbidden(f"job {row.job_id} belongs to {row.user}")

    def checked(transaction: Transaction) -> None:
        job = transaction.state.jobs.get(call.job_id)
        if job is None:
            state = transaction.state.ended.get(call.job_id, row.state)
            raise Conflict(f"job {call.job_id} has ended: {state}", fix="submit it again as a new job")
        call.audited(
            f"job {call.job_id}",
            lambda transaction: _standing(job) | also(transaction),
            lambda transaction: step(transaction, job),
            job.row.project,
        )(transaction)

    await call.server.loop.perform(checked)
    return await show_job(call)


#: Most bytes of one answer, or of one piece of a followed log.
_PIECE_BYTES = 1024 * 1024
_LOOK_S = 0.25
#: Agents send the last bytes a moment after an attempt has ended: the log ends after this many looks without bytes.
_TRAILING_LOOKS = 8


@serves(SEND_LOG)
async def receive_log(call: RequestContext) -> LogAccepted:
    """Appends bytes that an agent sends of a log, for an attempt that is or was on its machine."""
    job_id = JobId(call.number("job_id", 0, 1, LARGEST_NUMBER))
    attempt, rank = call.number("attempt", 0, 1, LARGEST_NUMBER), call.number("rank", 0, 0, 1_000_000)
    offset = call.number("offset", 0, 0, LARGEST_NUMBER)
    place = LogPlace(job_id, attempt, rank, await check_attempt_was_here(call, job_id, attempt))
    live = call.server.state.jobs.get(job_id)
    row = await call.server.read(call.server.store.job, job_id) if live is None else live.row
    holder = "" if row is None else row.user
    taken = await call.server.read(call.server.logs.append, place, offset, await call.body(), holder)
    return LogAccepted(next=taken.next_offset, full=taken.full)


async def check_attempt_was_here(call: RequestContext, job_id: JobId, attempt: int) -> str:
    """Returns the incarnation that granted the attempt that an agent reports on. Raises Forbidden where the attempt
    never was on that machine, and what `check_log_sender` raises.
    """
    assert isinstance(call.caller, AgentCaller)
    live = call.server.state.attempt(job_id, attempt)
    here = call.caller.node_id
    check_log_sender(call.server.state.identity, here, call.request.query)
    known = live is not None and here in live.parts
    if not known and not await call.server.read(call.server.store.attempt_was_on, job_id, attempt, here):
        raise Forbidden(f"attempt {attempt} of job {job_id} was never on {here}")
    granted_by = await _incarnation_of(call, job_id, attempt)
    if call.request.query.get("granted_by", "") not in ("", granted_by):
        raise Forbidden(f"attempt {attempt} of job {job_id} on {here} is another one, of another incarnation")
    return granted_by


async def _incarnation_of(call: RequestContext, job_id: JobId, attempt: int) -> str:
    """Returns the incarnation that granted the attempt, under which its log lies; this one for an unknown attempt."""
    live = call.server.state.attempt(job_id, attempt)
    if live is not None:
        return live.row.incarnation
    rows = await call.server.read(call.server.store.attempts, job_id)
    known = (row.incarnation for row in rows if row.attempt == attempt)
    return next(known, call.server.state.identity.incarnation)


async def _log_place(call: RequestContext, row: JobRow) -> LogPlace:
    """Returns the log of the attempt and the rank that the query names: the newest attempt, the first rank."""
    attempt, rank = call.number("attempt", row.attempts, 0, LARGEST_NUMBER), call.number("rank", 0, 0, 1_000_000)
    return LogPlace(row.job_id, attempt, rank, await _incarnation_of(call, row.job_id, attempt))


@serves(LOG)
async def show_log(call: RequestContext) -> web.StreamResponse:
    """Returns the log of one rank from an offset on; with `follow`, until the attempt has ended."""
    row, logs = await visible_job_row(call), call.server.logs
    place, offset = await _log_place(call, row), call.number("offset", 0, 0, LARGEST_NUMBER)
    if place.attempt > row.attempts:
        raise NotFound(f"job {row.job_id} has had {row.attempts} attempts", field="attempt")
    if tail := call.number("tail", 0, 0, _PIECE_BYTES):
        offset = max(0, await call.server.read(logs.size, place) - tail)
    if call.flag("follow"):
        return await _follow_log(call, row.project, place, offset)
    data = await call.server.read(logs.read, place, offset, _PIECE_BYTES)
    return web.Response(body=data, headers=_log_headers(offset + len(data)))


@serves(LOG_START)
async def find_log_start(call: RequestContext) -> LogStart:
    """Returns where the last `tail` lines begin, or what came in the last `since_s` seconds; of both, the later."""
    place, query = await _log_place(call, await visible_job_row(call)), call.request.query
    lines = call.number("tail", 0, 0, 10_000_000) if "tail" in query else None
    since_s = float(call.number("since_s", 0, 0, 10**10)) if "since_s" in query else None
    return LogStart(offset=await call.server.read(call.server.logs.start, place, lines=lines, since_s=since_s))


async def _follow_log(call: RequestContext, project: str, place: LogPlace, offset: int) -> web.StreamResponse:
    """Sends the log as it grows, while the caller may see it; its next call says why it may not."""
    response = web.StreamResponse(headers=_log_headers(offset))
    await response.prepare(call.request)
    settled_looks = 0
    while settled_looks < _TRAILING_LOOKS:
        # Asked before reading, so that the last read comes after the end of the attempt.
        over = await _is_over(call, place.attempt)
        data = await call.server.read(call.server.logs.read, place, offset, _PIECE_BYTES)
        if not _sees(call.caller_now(), project):
            break
        if data:
            offset += len(data)
            await response.write(data)
            settled_looks = 0
            continue
        settled_looks += over
        await asyncio.sleep(_LOOK_S)
    await response.write_eof()
    return response


async def _is_over(call: RequestContext, attempt: int) -> bool:
    """Returns True once no more output is expected: the attempt has ended, or the job has ended without it."""
    live = call.server.state.jobs.get(call.job_id)
    if live is None:
        return True
    return 0 < attempt < live.row.attempts or (attempt == live.row.attempts > 0 and live.attempt is None)


def _log_headers(next_offset: int) -> dict[str, str]:
    # Logs hold untrusted bytes: browsers must show them as text and never run them.
    return {
        "Content-Type": "text/plain",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        NEXT_OFFSET_HEADER: str(next_offset),
    }


@serves(FactCalls.state_facts)
async def state_kind_facts(call: RequestContext) -> FactsView:
    """Records stated facts of a kind; returns what is believed of the kind then."""
    stated = await call.read(partial(read_file_model, KindStated, "facts"))
    kind = kind_within(paying_project(stated.project, call.user), Kind(stated.kind))
    facts = stated.facts.facts(stated.batch)

    def step(transaction: Transaction) -> None:
        record_kind_facts(transaction, kind, facts, call.user.name)

    def look(transaction: Transaction) -> Any:
        known = transaction.core.ledger.facts.of(kind)
        return None if known is None else asdict(known)

    await call.server.loop.perform(call.audited(f"facts of kind {kind}", look, step))
    return _facts_view(call, kind)


@serves(FactCalls.facts)
async def list_kind_facts(call: RequestContext) -> list[FactsView]:
    """Lists the facts of kinds of one name, or of all. Raises NotFound for a name of which nothing is known."""
    asked = call.request.query.get("kind")
    seen = (kind for kind in sorted(call.server.core.ledger.facts.kinds()) if call.user.sees(project_of(kind)))
    found = [_facts_view(call, kind) for kind in seen if asked in (None, plain_kind(kind))]
    if asked is not None and not found:
        raise NotFound(f"nothing is known of kind {asked[:100]!r}", field="kind", fix="walras cloud profile facts")
    return found


def _facts_view(call: RequestContext, kind: Kind) -> FactsView:
    book = call.server.core.ledger.facts
    facts = book.of(kind)
    assert facts is not None, f"nothing is known of {kind}"
    known = {name: value for name, value in asdict(facts).items() if isinstance(value, int | float)}
    source = "counted" if book.is_counted(kind) else "stated"
    return FactsView(
        kind=plain_kind(kind),
        project=project_of(kind),
        source=source,
        facts=known,
        precision=facts.precision,
        family=facts.family,
    )


# ------------------------------------------------------------------------------------------ redirect


@serves(JobCalls.redirect)
async def redirect_job(call: RequestContext) -> JobDetail:
    """Changes the machines of a held job; returns the job as it is then.

    Raises NotFound, Forbidden, Conflict for a job that is not held, JobSpecError where nothing could run it so.
    """
    asked = await call.read(partial(read_file_model, Redirection, "redirect"))
    async with call.server.changing_specs:
        return await _redirected_job(call, asked)


async def _redirected_job(call: RequestContext, asked: Redirection) -> JobDetail:
    row = await visible_job_row(call)
    stored = await call.server.read(call.server.store.spec, row.job_id)
    if stored is None:
        raise Conflict(f"job {row.job_id} is not kept any more")
    people = call.server.secrets.people
    if call.user.may_change(row.user, row.project) and asked.value_usd_per_h is not None:
        people.check(call.user, row.project, {"value_usd_per_h": asked.value_usd_per_h})
    request = parse_request(stored.request)
    spec = redirected_spec(json.loads(stored.spec), asked, request)
    request = redirected_request(request, spec)
    worth = default_worth(call.user, row.project, people) if spec.value_usd_per_h is None else None
    if worth is not None:
        request = replace(request, value_usd_per_h=float(worth.value))

    def step(transaction: Transaction, job: LiveJob) -> None:
        if job.row.state is not JobState.HELD or job.attempt is not None:
            raise Conflict(
                f"job {job.row.job_id} is {job.row.state}: only a held job can be sent elsewhere",
                field="state",
                fix=f"walras hold {job.row.job_id}",
            )
        check_feasible(transaction.core, transaction.state, request, needs_of(spec))
        job.row.accelerators = min(demand.count for demand in request.demands)
        kept_defaults = [each for each in parse_defaults(job.row.defaults) if each.field != "value_usd_per_h"]
        job.row.defaults = dump_defaults([*kept_defaults, *([] if worth is None else [worth])])
        job.launch = call.server.admission.launch(job.row.job_id, job.row.project, spec, job.row.sweep)
        kept = SpecRow(job.row.job_id, json.dumps(spec_mapping(spec)), dump_json(request))
        transaction.batch.put(kept)
        gang = request.gang_request
        emit(
            transaction,
            JobRedirected(transaction.at, job.row.job_id, gang, request.value_usd_per_h, request.declared),
        )
        transaction.job_changed(job)

    def machines(transaction: Transaction) -> dict[str, Any]:
        known = transaction.core.ledger.jobs.get(row.job_id)
        return {} if known is None else {"machines": known.request.text}

    return await change_live_job(call, step, machines)


def redirected_spec(stored: dict[str, Any], asked: Redirection, request: JobRequest) -> JobSpec:
    """Returns the stored spec with the fields that are asked for; the job's kind stays.

    Raises Conflict for a job that is elastic, forked or mixed, or that has several plans: it chooses its machines
    itself.
    """
    for field in ("elastic", "fork", "mixed", "plans", "roles"):
        if field in stored:
            raise Conflict(
                f"a job with `{field}` chooses its machines itself", field=field, fix=f"submit it without {field}"
            )
    changes = asked.model_dump(mode="json", exclude_defaults=True)
    kept = {name: value for name, value in stored.items() if name not in Redirection.model_fields}
    return parse_spec({**kept, **changes, "profile": plain_kind(request.kind)}, source="redirect")


def redirected_request(request: JobRequest, spec: JobSpec) -> JobRequest:
    """Returns the scheduler's view of the job with the gang of this spec.

    What this spec cannot change stays, such as the tools that its machines must have.
    """
    gang = replace(spec.resources.gang_request(spec.num_nodes, gang_sizes_of(spec)), tools=request.tools)
    return replace(
        request,
        value_usd_per_h=spec.value_usd_per_h,
        declared=tuple(sorted(spec.throughput.items())),
        **group_fields(gang, GangRequest),
    )
