"""Endpoints that submit jobs: one job, a batch, a dry run.

Each submission may carry an idempotency key: a request that is repeated gets its first answer again. The specs of a
batch are checked one by one, ordered by their dependencies, and admitted in one transaction.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from aiohttp import web

from scheduler.core.events import JobSubmitted
from scheduler.live.http.content_api import content_holder
from scheduler.live.http.request_bodies import read_batch, read_spec, read_yaml_spec, user_holder
from scheduler.live.http.requests import RequestContext, check_text, problem_detail_of, serves
from scheduler.live.loop.event_loop import CooperativeYield, Step
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.job_submission import (
    Dependencies,
    JobDraft,
    SweepPlace,
    body_digest,
    check_feasible,
    draft_job,
    dry_run,
    recall_answer,
    remember_answer,
    sibling_positions,
    submission_order,
    submit_result,
    value_owner,
    with_server_facts,
    with_standing,
)
from scheduler.live.store.store_interface import JobQuery
from walras.errors import JobSpecError, NotFound, UserError
from walras.job_request import JobId, JobRequest
from walras.resources.endpoint import BODY_BYTES
from walras.resources.jobs import DRY_RUN, SUBMIT, SUBMIT_BATCH, BatchResult, DryRun, SubmitResult
from walras.spec.job_groups import needs_of
from walras.spec.job_spec import MAX_SPEC_BYTES, JobSpec
from walras.spec.spec_request import to_request
from walras.spec.sweeps import JOBS_MOST, array_indices, is_sweep, parse_array, sweep_note
from walras.states import JobState
from walras.storage.content import DamagedContent

_KEY_LENGTH = 200


# ------------------------------------------------------------------------------------------ submit


@serves(SUBMIT)
async def submit_job(call: RequestContext) -> web.StreamResponse:
    body = await call.body()
    if len(body) > MAX_SPEC_BYTES * 2:
        raise JobSpecError(f"the spec is larger than {MAX_SPEC_BYTES:,} bytes", fix="keep data in files of their own")
    key = await _Key.of(call, b"jobs\n", body)
    if (known := await key.stored()) is not None:
        return _answered(200, known)
    draft = _draft_of(call, await _read_spec(call, body))
    needs = await _dependencies(call, draft)
    if is_sweep(draft.spec):
        return await _SweepSubmission(call, draft, needs).submit(key)

    def step(transaction: Transaction) -> tuple[int, str]:
        if (again := key.recall(transaction)) is not None:
            return 200, again
        job_id = call.server.admission.admit(transaction, draft, needs, call.user.name)
        call.note_write(transaction, f"job {job_id}", after=_draft_facts(draft), project=draft.project)
        answer = submit_result(transaction.core, job_id, draft).model_dump_json()
        key.remember(transaction, answer)
        return 201, answer

    return _answered(*await call.server.loop.perform(step))


def _answered(status: int, answer: str) -> web.Response:
    return web.Response(status=status, body=answer.encode(), content_type="application/json")


@serves(SUBMIT_BATCH)
async def submit_batch(call: RequestContext) -> bytes:
    body = await call.body()
    key = await _Key.of(call, b"batch\n", body)
    batch = _BatchSubmission(call)
    if (known := await key.stored()) is not None and batch.take_over(known):
        return known.encode()
    await batch.read(await call.read(read_batch, body=body))
    await batch.resolve()

    def first(transaction: Transaction) -> None:
        again = key.recall(transaction)
        if again is not None and again != batch.written:  # reading 500 items takes milliseconds
            batch.take_over(again)

    def last(transaction: Transaction) -> None:
        batch.note(transaction)
        if key.key:  # nobody recalls another
            batch.written = batch.answer()
            key.remember(transaction, batch.written)

    await call.server.loop.perform_in_turns(user_holder(call.user.name), batch.steps(), first=first, last=last)
    return batch.answer().encode()


@dataclass(frozen=True, slots=True)
class _Key:
    """The idempotency key of a request, which has one answer. An empty key remembers none."""

    call: RequestContext
    key: str
    digest: str

    @classmethod
    async def of(cls, call: RequestContext, what: bytes, body: bytes) -> Self:
        """Returns the key of a request of this kind. Raises UserError for one that is no short text."""
        key = call.request.headers.get("Idempotency-Key", "")
        if len(key) > _KEY_LENGTH:
            raise UserError(f"longer than {_KEY_LENGTH} characters", field="Idempotency-Key", fix="use a UUID")
        check_text(key, "Idempotency-Key")
        secret = call.server.secrets.job_tokens.secret
        if len(body) < BODY_BYTES // 8:
            return cls(call, key, body_digest(what + body, secret))
        return cls(call, key, await asyncio.to_thread(lambda: body_digest(what + body, secret)))

    async def stored(self) -> str | None:
        """Returns the answer in the store. Raises KeyReused for the key of another request."""
        if not self.key:
            return None
        known = await self.call.server.read(self.call.server.store.answer, self.call.user.name, self.key)
        return recall_answer(known, self.digest, self.call.server.loop.clock.now())

    def recall(self, transaction: Transaction) -> str | None:
        """Returns the answer that this process gave, which the store may not have yet: asked inside the transaction, so
        that concurrent requests with one key admit their jobs once. Raises KeyReused for the key of another request.
        """
        known = transaction.state.answers.get((self.call.user.name, self.key)) if self.key else None
        return recall_answer(known, self.digest, transaction.at)

    def remember(self, transaction: Transaction, answer: str) -> None:
        """Have the answer written with what it tells of."""
        if self.key:
            remember_answer(transaction, self.call.user.name, self.key, self.digest, answer)


#: The most bytes of all specs of a sweep together, as they are stored.
_SWEEP_BYTES_MOST = 64_000_000


class _SweepSubmission:
    """Admits the jobs of a sweep, all of them in one transaction or none."""

    def __init__(self, call: RequestContext, draft: JobDraft, needs: Dependencies) -> None:
        self._call, self._draft, self._needs = call, draft, needs
        self._indices = array_indices(draft.spec)
        self._at_most = 0 if draft.spec.array is None else parse_array(draft.spec.array).at_most
        self._ids: list[JobId] = []
        self._answer = ""
        size = len(draft.spec.model_dump_json()) * len(self._indices)
        if size > _SWEEP_BYTES_MOST:
            raise JobSpecError(
                f"the specs of {len(self._indices)} jobs come to {size / 1e6:.0f} MB", fix="keep data in files"
            )

    async def submit(self, key: _Key) -> web.StreamResponse:
        call, again = self._call, list[str]()

        def first(transaction: Transaction) -> None:
            """Admit the first job. What refuses one job refuses all: they differ in command and variables alone."""
            known = key.recall(transaction)
            again.extend([] if known is None else [known])
            if not again:
                transaction.state.job_shares.check(call.user.name, len(self._indices))
                self._admit(transaction, self._indices[0])

        def next_one(index: int, transaction: Transaction) -> None:
            if not again:
                self._admit(transaction, index)

        def last(transaction: Transaction) -> None:
            if again:
                return
            told = _draft_facts(self._draft) | {"admitted": len(self._ids)}
            subject = f"jobs {self._ids[0]}-{self._ids[-1]}"
            call.note_write(transaction, subject, after=told, project=self._draft.project)
            result = submit_result(transaction.core, self._ids[0], self._draft)
            self._answer = result.model_copy(update={"jobs": len(self._ids)}).model_dump_json()
            key.remember(transaction, self._answer)

        steps: list[Callable[[Transaction], None]] = [first]
        steps += [partial(next_one, index) for index in self._indices[1:]]
        await call.server.loop.perform_all([*steps, last])
        return _answered(200, again[0]) if again else _answered(201, self._answer)

    def _admit(self, transaction: Transaction, index: int) -> None:
        draft, own = self._draft, {"array_index": index}
        written = None if draft.written is None else draft.written.model_copy(update=own)
        draft = replace(draft, spec=draft.spec.model_copy(update=own), written=written)
        place = SweepPlace(self._ids[0] if self._ids else None, self._at_most)
        admit, name = self._call.server.admission.admit, self._call.user.name
        self._ids.append(admit(transaction, draft, self._needs, name, place))


class _BatchSubmission:
    """Admits the items of one batch, a turn after the other: each becomes a job or an error.

    The answer that is remembered after each turn has neither for the items to come: a request that is sent again goes
    on with those.
    """

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        #: What the items came to, by position, as a request before this one was told or would have been.
        self._known: dict[int, SubmitResult] = {}
        self.order: list[int] = []
        #: The answer that was remembered last.
        self.written: str | None = None
        self._results: list[SubmitResult] = []
        self._drafts: list[JobDraft | None] = []
        self._siblings: list[tuple[int, ...]] = []
        self._earlier: dict[int, Dependencies] = {}
        #: Positions of the jobs that the audit does not have yet.
        self._admitted: list[int] = []

    async def read(self, given: Sequence[JobSpec | UserError]) -> None:
        """Take the items, each a spec or the error in it, and put them in the order of their dependencies."""
        cooperative = CooperativeYield()
        self._results = [self._known.get(position, SubmitResult()) for position in range(len(given))]
        for position, item in enumerate(given):
            self._drafts.append(self._draft(position, item))
            await cooperative.yield_if_due()
        self._siblings = sibling_positions([None if each is None else each.spec for each in self._drafts])
        self.order, cyclic = submission_order(self._siblings)
        for position in cyclic:
            error = JobSpecError("its dependencies lead back to itself", field="depends_on", fix="break the cycle")
            self._refuse(position, error)

    async def resolve(self) -> None:
        """Look up the jobs outside the batch that the items depend on."""
        for position in self.order:
            each = self._drafts[position]
            if each is None or self._results[position].id is not None:
                continue
            inside = {self._drafts[p].spec.name for p in self._siblings[position] if self._drafts[p] is not None}  # type: ignore[union-attr]
            try:
                self._earlier[position] = await _dependencies(self._call, each, inside)
            except UserError as error:
                self._refuse(position, error)

    def steps(self) -> list[Step[None]]:
        """Returns a step for each item that has not come to anything yet."""
        return [self._step(position) for position in self.order if position not in self._known]

    def _step(self, position: int) -> Step[None]:
        def admit(transaction: Transaction) -> None:
            each = self._drafts[position]
            if each is None or self._results[position].id is not None:
                return
            try:
                earlier = self._earlier[position]
                needs = Dependencies([*self._sibling_ids(position), *earlier.jobs], earlier.ended)
                job_id = self._call.server.admission.admit(transaction, each, needs, self._call.user.name)
                self._results[position] = submit_result(transaction.core, job_id, each)
                self._admitted.append(position)
            except UserError as error:
                self._refuse(position, error)

        return admit

    def take_over(self, answer: str) -> bool:
        """Take what a request before this one came to; returns whether it has come to all items."""
        items = BatchResult.model_validate_json(answer).items
        self._known = {n: each for n, each in enumerate(items) if each.id is not None or each.error is not None}
        for position in self._known if self._results else ():
            self._results[position] = self._known[position]
        return len(self._known) == len(items)

    def note(self, transaction: Transaction) -> None:
        """Add an audit row for each project, with the jobs that were admitted since the last one."""
        by_project: dict[str, list[int]] = {}
        for position in self._admitted:
            draft, job_id = self._drafts[position], self._results[position].id
            if draft is not None and job_id is not None:
                by_project.setdefault(draft.project, []).append(job_id)
        self._admitted.clear()
        for project, ids in by_project.items():
            subject = f"jobs {min(ids)}-{max(ids)}"
            self._call.note_write(transaction, subject, after={"admitted": len(ids)}, project=project)

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

    def _draft(self, position: int, item: JobSpec | UserError) -> JobDraft | None:
        try:
            if isinstance(item, UserError):
                raise item
            draft = _draft_of(self._call, item)
            if is_sweep(draft.spec):
                raise JobSpecError("a sweep is no item of a batch", field="array", fix="submit it by itself")
            return draft
        except UserError as error:
            self._results[position] = SubmitResult(error=problem_detail_of(error))
            return None

    def _refuse(self, position: int, error: UserError) -> None:
        each = self._drafts[position]
        name = "" if each is None else each.spec.name
        self._results[position] = SubmitResult(name=name, error=problem_detail_of(error))
        self._drafts[position] = None


def _draft_of(call: RequestContext, spec: JobSpec) -> JobDraft:
    """Returns a validated job with its project's defaults. Raises JobSpecError, Forbidden for a value beyond a cap."""
    return with_standing(draft_job(spec, call.user), call.user, call.server.secrets.people)


async def _check_code(call: RequestContext, tree: str, project: str) -> None:
    holder = replace(content_holder(call), projects=(*call.user.projects, project))
    try:
        await call.server.read(call.server.content.renew_tree, tree, holder)
    except (NotFound, DamagedContent) as error:
        raise JobSpecError(
            f"the job's code is not here: {error}", field="code.tree", fix="submit with `walras submit`, which sends it"
        ) from None


def _draft_facts(draft: JobDraft) -> dict[str, Any]:
    """Returns what the audit row says of a new job; the whole spec is stored with the job."""
    spec = draft.spec
    told = {"name": spec.name, "priority": spec.priority, "secrets": sorted(spec.secrets)}
    return told | {"variables": sorted(spec.envs), "hold": spec.hold}


async def _dependencies(call: RequestContext, draft: JobDraft, siblings: set[str] | None = None) -> Dependencies:
    """Returns the earlier jobs that a spec depends on.

    Raises JobSpecError for a job, or a snapshot of code, that is not there.
    """
    if draft.spec.code is not None:
        await _check_code(call, draft.spec.code.tree, draft.project)
    needs: list[JobId] = []
    ended: dict[JobId, JobState] = {}
    for named in draft.spec.depends_on:
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
        rows = [row]
        if row.sweep is not None and (isinstance(named, str) or row.sweep == row.job_id):  # the job names a whole sweep
            rows = await call.server.read(call.server.store.jobs, JobQuery(sweep=row.sweep, limit=JOBS_MOST))
        needs += [each.job_id for each in rows]
        ended |= {each.job_id: each.state for each in rows if each.state.is_final}
    return Dependencies(needs, ended)


async def _read_spec(call: RequestContext, body: bytes) -> JobSpec:
    """Returns the spec in a body of JSON, or of YAML (as job files are) where the request's content type says so."""
    is_yaml = call.request.content_type == "application/yaml"
    return await call.read(read_yaml_spec if is_yaml else read_spec, is_yaml=is_yaml, body=body)


@serves(DRY_RUN)
async def dry_run_endpoint(call: RequestContext) -> DryRun:
    server = call.server
    spec = await _read_spec(call, await call.body())
    draft, request = tried_request(call, spec, JobId(server.state.next_job_id))
    found = dry_run(server.core, request).model_copy(update={"defaults": list(draft.defaults)})
    note = "; ".join(filter(None, (found.note, sweep_note(spec))))
    event = JobSubmitted(server.loop.clock.now(), request)
    forecast = await server.start_forecasts.foresee_job(event, request.job_id)
    told = {"value_by": value_owner(found.value_by, draft.defaults), "forecast": forecast, "note": note}
    return found.model_copy(update=told)


def tried_request(call: RequestContext, spec: JobSpec, job_id: JobId) -> tuple[JobDraft, JobRequest]:
    """Returns the job that this spec would submit, under a number not in use. Raises JobSpecError, Forbidden."""
    draft = _draft_of(call, spec)
    if is_sweep(draft.spec):  # the first job of the sweep stands for all
        first = array_indices(draft.spec)[0]
        draft = replace(draft, spec=draft.spec.model_copy(update={"array_index": first}))
    server, now = call.server, call.server.loop.clock.now()
    request = to_request(
        draft.spec,
        job_id,
        user=call.user.name,
        project=draft.project,
        at=now,
        now_wall=server.loop.clock.unix(now),
    )
    request = with_server_facts(request, draft.spec)
    check_feasible(server.core, server.state, request, needs_of(draft.spec))
    return draft, request
