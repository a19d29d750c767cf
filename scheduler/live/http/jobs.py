"""Jobs over HTTP: submit, list, look, change."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, model_validator

from scheduler.core.answers.conditions import conditions
from scheduler.core.answers.explain import explain
from scheduler.core.books import JobBudgetChanged
from scheduler.core.events import JobCancelled, JobHeld, JobReleased, JobReprioritised
from scheduler.core.speeds.speeds_of import speeds_of
from scheduler.live.access.auth import Role
from scheduler.live.desks.submit import (
    BATCH_LIMIT,
    Draft,
    body_digest,
    draft,
    remember,
    remembered,
    result,
    sibling_positions,
    submission_order,
)
from scheduler.live.desks.target_views import conditions_of
from scheduler.live.http.problems import problem_of
from scheduler.live.http.routing import LARGE_BODY_BYTES, Call, json_list, parse_json
from scheduler.live.records.rows import AnswerRow, JobQuery, JobRow
from scheduler.live.turns.board import LiveJob
from scheduler.live.turns.breath import Breath
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.turn import Turn
from walras.api import BatchResult, ConditionView, Explanation, JobDetail, JobPage, ReasonView, SubmitResult
from walras.errors import Conflict, Forbidden, JobSpecError, NotFound, UserError
from walras.ids import JobId
from walras.job import MAX_SPEC_BYTES
from walras.reasons import Reason
from walras.states import JobState

_KEY_LENGTH = 200
_PAGE = 50
_PAGE_MOST = 1000


class Batch(BaseModel):
    """`POST /jobs:batch`."""

    model_config = ConfigDict(extra="forbid")
    jobs: list[Any] = Field(min_length=1, max_length=BATCH_LIMIT)


class Patch(BaseModel):
    """`PATCH /jobs/{id}`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    priority: int | None = Field(default=None, ge=0, le=100)
    #: In all, over all attempts.
    budget_usd: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)

    @model_validator(mode="after")
    def _says_something(self) -> "Patch":
        if self.priority is None and self.budget_usd is None:
            raise ValueError("say what to change: priority or budget_usd")
        return self


# ------------------------------------------------------------------------------------------ submit


async def submit(call: Call) -> web.StreamResponse:
    body = await call.body()
    if len(body) > MAX_SPEC_BYTES * 2:
        raise JobSpecError(f"the spec is larger than {MAX_SPEC_BYTES:,} bytes", fix="keep data in files of their own")
    key, digest = _key(call), body_digest(b"jobs\n" + body)
    if (known := await _known(call, key, digest)) is not None:
        return _stored(known)
    drafted = draft(_mapping(parse_json(body)), call.user)
    needs, ended = await _dependencies(call, drafted)

    def step(turn: Turn) -> tuple[int, str]:
        if key and (again := remembered(_newest(turn, call, key), digest, turn.at)) is not None:
            return 200, again
        job_id = call.server.admission.admit(turn, drafted, needs, ended, call.user.name)
        answer = result(job_id, drafted.spec).model_dump_json()
        if key:
            remember(turn, call.user.name, key, digest, answer)
        return 201, answer

    status, answer = await call.server.daemon.perform(step)
    return web.Response(status=status, body=answer.encode(), content_type="application/json")


async def submit_batch(call: Call) -> web.StreamResponse:
    body = await call.body(LARGE_BODY_BYTES)
    key, digest = _key(call), body_digest(b"batch\n" + body)
    if (known := await _known(call, key, digest)) is not None:
        return _stored(known)
    parsed = parse_json(body)
    given = parsed.get("jobs") if isinstance(parsed, Mapping) else None
    if not isinstance(given, list) or not 1 <= len(given) <= BATCH_LIMIT:
        raise UserError(f"`jobs` must be a list of 1 to {BATCH_LIMIT} specs", field="jobs")
    batch = _BatchOfJobs(call)
    await batch.read(given)
    await batch.resolve()

    def first(turn: Turn) -> None:
        """Nothing is admitted twice for one key, even if two requests race."""
        batch.again = remembered(_newest(turn, call, key), digest, turn.at) if key else None

    def last(turn: Turn) -> None:
        if key and batch.again is None:
            remember(turn, call.user.name, key, digest, batch.answer())

    await call.server.daemon.perform_all([first, *(batch.step(position) for position in batch.order), last])
    if batch.again is not None:
        return _stored(batch.again)
    return web.Response(body=batch.answer().encode(), content_type="application/json")


class _BatchOfJobs:
    """The items of one batch on their way in: each becomes a job or an error."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.again: str | None = None
        self.order: list[int] = []
        self._results: list[SubmitResult] = []
        self._drafts: list[Draft | None] = []
        self._siblings: list[tuple[int, ...]] = []
        self._earlier: dict[int, tuple[list[JobId], dict[JobId, JobState]]] = {}

    async def read(self, given: Sequence[Any]) -> None:
        """Check the items one by one, and find their order."""
        breath = Breath()
        self._results = [SubmitResult() for _ in given]
        for position, item in enumerate(given):
            self._drafts.append(self._draft(position, item))
            await breath.take()
        self._siblings = sibling_positions([None if each is None else each.spec for each in self._drafts])
        self.order, cyclic = submission_order(self._siblings)
        for position in cyclic:
            error = JobSpecError("its dependencies lead back to itself", field="depends_on", fix="break the cycle")
            self._refuse(position, error)

    async def resolve(self) -> None:
        """Look up what the items depend on outside the batch."""
        for position in self.order:
            each = self._drafts[position]
            if each is None:
                continue
            inside = {self._drafts[p].spec.name for p in self._siblings[position] if self._drafts[p] is not None}  # type: ignore[union-attr]
            try:
                self._earlier[position] = await _dependencies(self._call, each, inside)
            except UserError as error:
                self._refuse(position, error)

    def step(self, position: int) -> Any:
        def admit(turn: Turn) -> None:
            each = self._drafts[position]
            if self.again is not None or each is None:
                return
            try:
                needs = [*self._sibling_ids(position), *self._earlier[position][0]]
                ended = self._earlier[position][1]
                job_id = self._call.server.admission.admit(turn, each, needs, ended, self._call.user.name)
                self._results[position] = result(job_id, each.spec)
            except UserError as error:
                self._refuse(position, error)

        return admit

    def answer(self) -> str:
        return BatchResult(items=self._results).model_dump_json()

    def _sibling_ids(self, position: int) -> list[JobId]:
        ids = []
        for sibling in self._siblings[position]:
            job_id = self._results[sibling].id
            if job_id is None:
                raise JobSpecError(f"item {sibling}, which it depends on, was refused", field="depends_on")
            ids.append(JobId(job_id))
        return ids

    def _draft(self, position: int, item: Any) -> Draft | None:
        try:
            return draft(_mapping(item), self._call.user)
        except UserError as error:
            self._results[position] = SubmitResult(error=problem_of(error))
            return None

    def _refuse(self, position: int, error: UserError) -> None:
        each = self._drafts[position]
        name = "" if each is None else each.spec.name
        self._results[position] = SubmitResult(name=name, error=problem_of(error))
        self._drafts[position] = None


async def _dependencies(
    call: Call, drafted: Draft, siblings: set[str] | None = None
) -> tuple[list[JobId], dict[JobId, JobState]]:
    """Numbers of the earlier jobs a spec names, and how those that are over ended. Raises JobSpecError."""
    needs: list[JobId] = []
    ended: dict[JobId, JobState] = {}
    for named in drafted.spec.depends_on:
        if isinstance(named, str) and siblings is not None and named in siblings:
            continue
        found = (
            await call.server.read(call.server.store.job_named, call.user.name, named)
            if isinstance(named, str)
            else JobId(named)
        )
        row = None if found is None else await call.server.read(call.server.store.job, found)
        if row is None or not call.user.sees(row.project):
            raise JobSpecError(f"no job {named!r} to depend on", field="depends_on", fix="check `walras queue`")
        needs.append(row.job_id)
        if row.state.is_final:
            ended[row.job_id] = row.state
    return needs, ended


def _mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise JobSpecError("a job spec is a mapping of fields", fix='send such as {"run": "python train.py"}')
    return data


def _key(call: Call) -> str:
    key = call.request.headers.get("Idempotency-Key", "")
    if len(key) > _KEY_LENGTH:
        raise UserError(f"longer than {_KEY_LENGTH} characters", field="Idempotency-Key", fix="use a UUID")
    return key


async def _known(call: Call, key: str, digest: str) -> str | None:
    if not key:
        return None
    known = await call.server.read(call.server.store.answer, call.user.name, key)
    return remembered(known, digest, call.server.daemon.clock.now())


def _newest(turn: Turn, call: Call, key: str) -> AnswerRow | None:
    """What this process answered to the key: the store may not know it yet."""
    return turn.board.answers.get((call.user.name, key))


def _stored(answer: str) -> web.Response:
    return web.Response(status=200, body=answer.encode(), content_type="application/json")


# ------------------------------------------------------------------------------------------ look


async def page(call: Call) -> web.StreamResponse:
    query = call.request.query
    states = tuple(word for word in query.get("state", "").upper().split(",") if word)
    for word in states:
        if word not in set(JobState):
            raise UserError(f"no state {word[:40]!r}", field="state", fix=f"one of {', '.join(JobState)}")
    limit = call.number("limit", _PAGE, 1, _PAGE_MOST)
    cursor = call.number("cursor", 0, 0, 2**62)
    asked = JobQuery(
        states=states,
        user=query.get("user", ""),
        project=query.get("project", ""),
        projects=call.user.visible_projects,
        active=call.flag("active"),
        before_id=cursor or None,
        limit=limit + 1,
    )
    rows = await call.server.read(call.server.store.jobs, asked)
    shown = rows[:limit]
    usage = await call.server.read(
        call.server.store.usage, [row.job_id for row in shown], call.server.daemon.clock.now()
    )
    more = str(shown[-1].job_id) if len(rows) > limit else None
    found = JobPage(items=await call.server.views.jobs(shown, usage), next=more)
    # A thousand jobs as text take milliseconds: not in the loop's thread.
    body = await call.server.read(found.model_dump_json)
    return web.Response(body=body.encode(), content_type="application/json")


async def visible_row(call: Call) -> JobRow:
    """The job of the path, if the caller may see it. Raises NotFound otherwise: what is not yours does not exist."""
    row = await call.server.read(call.server.store.job, call.job_id)
    if row is None or (hasattr(call.caller, "projects") and not call.user.sees(row.project)):
        raise NotFound(f"no job {call.job_id}")
    return row


async def detail(call: Call) -> JobDetail:
    row = await visible_row(call)
    store, now = call.server.store, call.server.daemon.clock.now()
    usage = await call.server.read(store.usage, [row.job_id], now)
    spec = await call.server.read(store.spec, row.job_id)
    attempts = await call.server.read(store.attempts, row.job_id)
    return call.server.views.detail(row, usage, "{}" if spec is None else spec.spec, attempts)


async def attempts(call: Call) -> web.StreamResponse:
    row = await visible_row(call)
    rows = await call.server.read(call.server.store.attempts, row.job_id)
    return json_list([call.server.views.attempt(each) for each in rows])


async def explanation(call: Call) -> Explanation:
    row = await visible_row(call)
    lines = explain(call.server.core, row.job_id, call.server.board.expected_machines)
    reasons = [ReasonView(reason=line.reason, detail=line.detail, fix=line.fix) for line in lines]
    if row.state.is_final:
        reasons = call.server.views.ending(row)
    elif reasons and row.reason is not None and row.detail:
        if row.reason is reasons[0].reason:
            # What happened (written down then) before what holds now.
            reasons[0] = reasons[0].model_copy(update={"detail": f"{row.detail}; {reasons[0].detail}"})
        else:
            # What its last attempt came to, which the core does not keep.
            reasons.append(ReasonView(reason=row.reason, detail=row.detail))
    told = [ConditionView(type=each.type, detail=each.detail) for each in conditions(call.server.core, row.job_id)]
    target = call.server.views.target(row)
    return Explanation(
        job_id=row.job_id,
        state=row.state,
        reasons=reasons,
        conditions=told + ([] if target is None else conditions_of(target)),
        target=target,
        speeds=[call.server.views.pool_speed(each) for each in speeds_of(call.server.core, row.job_id)],
    )


# ------------------------------------------------------------------------------------------ change


async def cancel(call: Call) -> JobDetail:
    row = await visible_row(call)
    if row.state.is_final and call.user.may_change(row.user, row.project):
        return await detail(call)  # what was asked for is so: repeating a cancel is harmless
    return await _change(call, lambda turn, job: emit(turn, JobCancelled(turn.at, job.row.job_id, call.user.name)))


async def hold(call: Call) -> JobDetail:
    def step(turn: Turn, job: LiveJob) -> None:
        reason = Reason.HOLD_USER if call.user.name == job.row.user else Reason.HOLD_ADMIN
        emit(turn, JobHeld(turn.at, job.row.job_id, reason))

    return await _change(call, step)


async def release(call: Call) -> JobDetail:
    def step(turn: Turn, job: LiveJob) -> None:
        if job.row.reason is Reason.HOLD_ADMIN and call.user.role < Role.OPERATOR:
            raise Forbidden("an operator holds this job", fix="ask an operator to release it")
        emit(turn, JobReleased(turn.at, job.row.job_id))

    return await _change(call, step)


async def change(call: Call) -> JobDetail:
    """Another priority, another budget, or both."""
    patch = await call.model(Patch)
    before = await detail(call)

    def step(turn: Turn, job: LiveJob) -> None:
        if patch.priority is not None:
            job.row.priority = patch.priority
            emit(turn, JobReprioritised(turn.at, job.row.job_id, patch.priority))
        if patch.budget_usd is not None:
            job.row.budget_usd = patch.budget_usd
            emit(turn, JobBudgetChanged(turn.at, job.row.job_id, patch.budget_usd, before.usd))
        turn.job_changed(job)

    return await _change(call, step)


async def _change(call: Call, step: Any) -> JobDetail:
    """Do something to a job that is not over. Raises NotFound, Forbidden, Conflict."""
    row = await visible_row(call)
    if not call.user.may_change(row.user, row.project):
        raise Forbidden(f"job {row.job_id} belongs to {row.user}")

    def checked(turn: Turn) -> None:
        job = turn.board.jobs.get(call.job_id)
        if job is None:
            state = turn.board.ended.get(call.job_id, row.state)
            raise Conflict(f"job {call.job_id} has ended: {state}", fix="submit it again as a new job")
        step(turn, job)

    await call.server.daemon.perform(checked)
    return await detail(call)
