"""Endpoints for content: chunks and trees by their hashes, and the results of jobs, which are such trees.

A sender asks which chunks the server lacks (`missing`), sends these, and then commits the tree that needs them; the
tree is durable once the commit is answered. Every step may be repeated. Users and machines may send. A user who asks
learns only of content of its projects: what others have is sent once more, and found to be there. Only machines may
fetch by name, since a name opens whatever content it names: users fetch content through the job that it belongs to, and
only trees that are its results, and the chunks of these trees.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

from aiohttp import web

from scheduler.live.auth.access_control import AgentCaller, UserCaller
from scheduler.live.http.job_api import check_attempt_was_here, visible_job_row
from scheduler.live.http.request_bodies import holder_of, is_reserved_for, read_tree, user_holder
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.transaction import Transaction
from scheduler.live.providers.machine_boot import packed_wheel
from scheduler.live.services.content_sweep import SUPERSEDED_KEPT_S, drop_expired_objects, sweep_content
from scheduler.live.services.views import view_of
from scheduler.live.store.content_store import Holder
from scheduler.live.store.table_rows import OutputsRow
from walras.errors import ClusterError, Conflict, NotFound, UserError
from walras.job_needs import JobOutputs, OutputsCollected, OutputsView
from walras.job_request import JobId
from walras.resources.contents import (
    COMMIT_TREE,
    GET_CHUNK,
    GET_PACK,
    GET_TREE,
    MISSING_CHUNKS,
    OUTPUTS_CHUNK,
    OUTPUTS_TREE,
    PUT_CHUNK,
    PUT_PACK,
    ChunkQuestion,
    ChunksMissing,
    ContentCalls,
    ContentPrune,
    ContentPruned,
    PackQuestion,
    TreeCommitted,
)
from walras.resources.fleet import SEND_OUTPUTS, STORE_ACCESS, WHEEL
from walras.storage.checkpoint_store import StoreAccess, StoreAccessRequest
from walras.storage.content import (
    CHUNK_BYTES,
    DamagedContent,
    TreeContent,
    join_chunks,
    split_chunks,
    unpack_chunk,
)

#: Bytes that are written to the connection at once.
_SENT_BYTES = 256 * 1024


@serves(MISSING_CHUNKS)
async def ask_missing(call: RequestContext) -> ChunksMissing:
    question = await call.model(ChunkQuestion)
    return ChunksMissing(
        names=await call.server.read(call.server.content.missing, question.names, content_holder(call))
    )


def content_holder(call: RequestContext) -> Holder:
    """Returns who holds what the caller sends: a user; of a job that runs on the calling machine, the job's user."""
    caller, is_reserved = call.caller, is_reserved_for(call.caller)
    if isinstance(caller, UserCaller):
        return Holder(holder_of(caller, ""), caller.projects, caller.visible_projects is None, is_reserved)
    job = call.server.state.jobs.get(JobId(call.number("job_id", 0, 0, 10**18 - 1)))
    parts = {} if job is None or job.attempt is None else job.attempt.parts
    if job is not None and isinstance(caller, AgentCaller) and caller.node_id in parts:
        return Holder(user_holder(job.row.user), (job.row.project,), sees_all=True, is_reserved=True)
    return Holder(holder_of(caller, ""), sees_all=True, is_reserved=is_reserved)


@serves(PUT_CHUNK)
async def put_chunk(call: RequestContext) -> None:
    name = call.request.match_info["name"]
    await _keep(call, lambda content, holder: call.server.content.put(name, content, holder))


@serves(PUT_PACK)
async def put_pack(call: RequestContext) -> None:
    """Takes many small chunks at once: a folder of 100,000 files would take as many requests."""
    await _keep(call, lambda content, holder: call.server.content.put_many(split_chunks(content), holder))


async def _keep(call: RequestContext, put: Callable[[bytes, Holder], None]) -> None:
    """Unpack the body and store it. Raises what `put` raises, and ClusterError where the disk refuses."""
    body, holder, encoding = await call.body(), content_holder(call), call.request.query.get("encoding", "plain")

    def keep() -> None:
        try:
            put(unpack_chunk(body, encoding), holder)
        except OSError as error:
            raise ClusterError(f"the content cannot be kept: {os.strerror(error.errno or 0)}") from None

    await asyncio.to_thread(keep)  # it waits for the disk, so it must not take one of the few reader threads


@serves(GET_PACK)
async def get_pack(call: RequestContext) -> bytes:
    question = await call.model(PackQuestion)

    def read() -> bytes:
        chunks, size = [], 0
        for name in question.names:
            chunks.append((name, call.server.content.get(name, check=False)))
            size += len(chunks[-1][1])
            if size > CHUNK_BYTES:
                raise UserError(f"more than {CHUNK_BYTES:,} bytes in one pack", field="names", fix="ask for fewer")
        return join_chunks(chunks)

    return await call.server.read(read)


@serves(GET_CHUNK)
async def get_chunk(call: RequestContext) -> web.StreamResponse:
    # The receiver compares the bytes with their name, which finds what the disk has damaged: not checked here too.
    content = await call.server.read(call.server.content.get, call.request.match_info["name"], check=False)
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = len(content)
    await response.prepare(call.request)
    view = memoryview(content)
    for start in range(0, len(content), _SENT_BYTES):
        await response.write(view[start : start + _SENT_BYTES])
    await response.write_eof()
    return response


@serves(COMMIT_TREE)
async def commit_tree(call: RequestContext) -> TreeCommitted:
    name, encoded, *sizes = await call.read(read_tree)
    tree = TreeContent(name.decode(), encoded, dict(sizes))
    return TreeCommitted(name=await call.server.read(call.server.content.commit_tree, tree, content_holder(call)))


@serves(GET_TREE)
async def get_tree(call: RequestContext) -> bytes:
    name = call.request.match_info["name"]
    return await call.server.read(lambda: call.server.content.tree(name).encoded())


@serves(ContentCalls.prune_content)
async def prune_content(call: RequestContext) -> ContentPruned:
    asked = await call.model(ContentPrune)
    keep_s, is_dry = asked.checkpoints_older_s, asked.dry_run
    swept = await sweep_content(call.server, keep_s, SUPERSEDED_KEPT_S, is_dry=is_dry)
    pruned = ContentPruned(size_bytes=swept.size_bytes, holders=dict(swept.of_holders.most_common()))
    if keep_s is not None:
        ever_s = call.server.loop.clock.now()
        objects, unanswered = await drop_expired_objects(call.server, keep_s, ever_s, is_dry=is_dry)
        pruned = pruned.model_copy(update={"objects": objects, "unanswered": unanswered})
    if not is_dry:
        told = {"size_bytes": pruned.size_bytes, "objects": pruned.objects}
        await call.server.loop.perform(lambda transaction: call.note_write(transaction, "content", after=told))
    return pruned


@serves(WHEEL)
async def get_wheel(call: RequestContext) -> bytes:
    """Returns the wheel of this release, for rented machines. It is all that an enrolment token may fetch."""
    return (await call.server.read(packed_wheel)).content


@serves(STORE_ACCESS)
async def hand_out_access(call: RequestContext) -> StoreAccess:
    """Returns credentials for the place of one of the machine's attempts in an object store."""
    assert isinstance(call.caller, AgentCaller)
    request = await call.model(StoreAccessRequest)
    if request.job_id:
        await check_attempt_was_here(call, JobId(request.job_id), request.attempt)
    return await call.server.store_access.open_for(call.caller.node_id, request)


# ------------------------------------------------------------------------------------------ results of jobs


@serves(SEND_OUTPUTS)
async def receive_outputs(call: RequestContext) -> None:
    """Records the results that a machine collected; their tree is kept as long as the job's record.

    Raises Conflict for a tree that is not in the content store, and where a later attempt has left results already.
    """
    told = await call.model(OutputsCollected)
    job_id = JobId(told.job_id)
    await check_attempt_was_here(call, job_id, told.attempt)
    if told.tree:
        try:
            await call.server.read(call.server.content.renew_tree, told.tree)
        except (NotFound, DamagedContent) as error:
            raise Conflict(f"the results are not here: {error}", fix="send them first") from None

    known = {row.node_rank: row for row in await call.server.read(call.server.store.outputs, job_id)}
    before = known.get(told.node_rank)
    if before is not None and before.attempt > told.attempt:
        raise Conflict(f"attempt {before.attempt} of job {job_id} has left results already")

    def step(transaction: Transaction) -> None:
        transaction.batch.put(_merged(told, before, transaction.at))

    await call.server.loop.perform(step)


def _merged(told: OutputsCollected, before: OutputsRow | None, at: float) -> OutputsRow:
    """Returns the row to store: where nothing could be collected, the earlier results stay, with the new problem."""
    if not told.tree and before is not None:
        return replace(before, problem=told.problem)
    job_id, rank = JobId(told.job_id), told.node_rank
    return OutputsRow(job_id, rank, told.attempt, told.tree, told.files, told.size_bytes, at, told.problem)


@serves(ContentCalls.outputs)
async def list_outputs(call: RequestContext) -> JobOutputs:
    row = await visible_job_row(call)
    shown = call.server.loop.clock.shown
    return JobOutputs(
        items=[
            view_of(OutputsView, each, collected_at=shown(each.collected_at))
            for each in await call.server.read(call.server.store.outputs, row.job_id)
        ]
    )  # fmt: skip


@serves(OUTPUTS_TREE)
async def get_outputs_tree(call: RequestContext) -> bytes:
    """Returns the list of files of one of the job's result trees. Raises NotFound for any other tree."""
    name = call.request.match_info["name"]
    if name not in await _trees_of_job(call):
        raise NotFound(f"no results {name[:12]!r} of this job")
    return await call.server.read(lambda: call.server.content.tree(name).encoded())


@serves(OUTPUTS_CHUNK)
async def get_outputs_chunk(call: RequestContext) -> bytes:
    """Returns a chunk of one of the job's result trees. Raises NotFound for any other chunk."""
    name = call.request.match_info["name"]
    for tree in await _trees_of_job(call):
        if name in await call.server.read(call.server.content.chunks_of, tree):
            return await call.server.read(call.server.content.get, name)
    raise NotFound(f"no chunk {name[:12]!r} in the results of this job")


async def _trees_of_job(call: RequestContext) -> list[str]:
    row = await visible_job_row(call)
    return [each.tree for each in await call.server.read(call.server.store.outputs, row.job_id) if each.tree]
