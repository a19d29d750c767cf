"""Endpoints for content: chunks and trees by their hashes, and the results of jobs, which are such trees.

A sender asks which chunks the server lacks (`missing`), sends these, and then commits the tree that needs them; the
tree is durable once the commit is answered. Every step may be repeated. Users and machines may send. Only machines may
fetch by name, since a name opens whatever content it names: users fetch content through the job that it belongs to, and
only trees that are its results, and the chunks of these trees.
"""

import asyncio
import os
from dataclasses import replace

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from scheduler.live.auth.access_control import AgentCaller, UserRole
from scheduler.live.http.job_api import check_attempt_was_here, visible_job_row
from scheduler.live.http.requests import LARGE_BODY_BYTES, Audience, RequestContext, Route
from scheduler.live.loop.transaction import Transaction
from scheduler.live.providers.machine_boot import packed_wheel
from scheduler.live.store.table_rows import OutputsRow
from walras.content import (
    CHUNK_BYTES,
    PACK_CHUNKS,
    ChunkName,
    ContentTree,
    DamagedContent,
    join_chunks,
    split_chunks,
    unpack_chunk,
)
from walras.errors import ClusterError, Conflict, NotFound, UserError
from walras.job_needs import JobOutputs, OutputsCollected, OutputsView
from walras.job_request import JobId
from walras.store_access import StoreAccess, StoreAccessRequest

#: Names in one question, and bytes of the longest list of files.
_NAMES_MOST, _TREE_BODY_BYTES = 20_000, 64 * 1024 * 1024
#: Bytes that are written to the connection at once.
_SENT_BYTES = 256 * 1024


class ChunkQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: list[ChunkName] = Field(max_length=_NAMES_MOST)


class PackQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: list[ChunkName] = Field(min_length=1, max_length=PACK_CHUNKS)


class ChunksMissing(BaseModel):
    """The chunks that the server does not have."""

    names: list[str]


class TreeCommitted(BaseModel):
    """The name under which the tree is now durable."""

    name: str


async def ask_missing(call: RequestContext) -> ChunksMissing:
    question = await call.model(ChunkQuestion, LARGE_BODY_BYTES)
    return ChunksMissing(names=await call.server.read(call.server.content.missing, question.names))


async def put_chunk(call: RequestContext) -> web.StreamResponse:
    body = await call.body(CHUNK_BYTES + 1024)
    name, encoding = call.request.match_info["name"], call.request.query.get("encoding", "plain")

    def keep() -> None:
        try:
            call.server.content.put(name, unpack_chunk(body, encoding))
        except OSError as error:
            raise ClusterError(f"the content cannot be kept: {os.strerror(error.errno or 0)}") from None

    await asyncio.to_thread(keep)  # it waits for the disk, so it must not take one of the few reader threads
    return web.Response(status=204)


async def put_pack(call: RequestContext) -> web.StreamResponse:
    """Takes many small chunks at once: a folder of 100,000 files would take as many requests."""
    body = await call.body(CHUNK_BYTES + 1024)
    encoding = call.request.query.get("encoding", "plain")

    def keep() -> None:
        try:
            call.server.content.put_many(split_chunks(unpack_chunk(body, encoding)))
        except OSError as error:
            raise ClusterError(f"the content cannot be kept: {os.strerror(error.errno or 0)}") from None

    await asyncio.to_thread(keep)
    return web.Response(status=204)


async def get_pack(call: RequestContext) -> web.StreamResponse:
    question = await call.model(PackQuestion, LARGE_BODY_BYTES)

    def read() -> bytes:
        chunks, size = [], 0
        for name in question.names:
            chunks.append((name, call.server.content.get(name, check=False)))
            size += len(chunks[-1][1])
            if size > CHUNK_BYTES:
                raise UserError(f"more than {CHUNK_BYTES:,} bytes in one pack", field="names", fix="ask for fewer")
        return join_chunks(chunks)

    return web.Response(body=await call.server.read(read), content_type="application/octet-stream")


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


async def commit_tree(call: RequestContext) -> TreeCommitted:
    # Checking a long list takes time, so it is not done in the event loop's thread.
    body = await call.body(_TREE_BODY_BYTES)
    tree = await asyncio.to_thread(call.checked, ContentTree, body)
    return TreeCommitted(name=await call.server.read(call.server.content.commit_tree, tree))


async def get_tree(call: RequestContext) -> web.StreamResponse:
    name = call.request.match_info["name"]
    encoded = await call.server.read(lambda: call.server.content.tree(name).encoded())
    return web.Response(body=encoded, content_type="application/json")


async def get_wheel(call: RequestContext) -> web.StreamResponse:
    """Returns the wheel of this release, for rented machines. It is all that an enrolment token may fetch."""
    wheel = await call.server.read(packed_wheel)
    return web.Response(body=wheel.content, content_type="application/octet-stream")


async def hand_out_access(call: RequestContext) -> StoreAccess:
    """Returns credentials for the place of one of the machine's attempts in an object store."""
    assert isinstance(call.caller, AgentCaller)
    request = await call.model(StoreAccessRequest)
    if request.job_id:
        await check_attempt_was_here(call, JobId(request.job_id), request.attempt)
    return await call.server.store_access.open_for(call.caller.node_id, request)


def content_routes() -> list[Route]:
    """Returns the routes about content: users and machines send, machines fetch."""
    both, agent, base = Audience.USER_OR_AGENT, Audience.AGENT, "/content/v1"
    chunk = f"{base}/chunks/{{name}}"
    return [
        Route("POST", f"{base}/missing", ask_missing, "Which chunks the server does not have", both,
              role=UserRole.USER, request=ChunkQuestion, response=ChunksMissing),
        Route("PUT", chunk, put_chunk, "Send a chunk", both, role=UserRole.USER, query=("encoding",), status=204),
        Route("GET", chunk, get_chunk, "Fetch a chunk", agent, response="application/octet-stream"),
        Route("POST", f"{base}/packs", put_pack, "Send many small chunks", both, role=UserRole.USER,
              query=("encoding",), status=204),
        Route("POST", f"{base}/packs/fetch", get_pack, "Fetch many small chunks", agent, request=PackQuestion,
              response="application/octet-stream"),
        Route("POST", f"{base}/trees", commit_tree, "Make a folder's list of files durable", both,
              role=UserRole.USER, request=ContentTree, response=TreeCommitted),
        Route("GET", "/agent/v1/wheel", get_wheel, "The release that rented machines install", Audience.JOIN,
              response="application/octet-stream"),
        Route("POST", "/agent/v1/store-access", hand_out_access, "What opens a job's place in an object store", agent,
              request=StoreAccessRequest, response=StoreAccess, query=("cluster_id", "incarnation", "granted_by"),
              waits=True),
        Route("GET", f"{base}/trees/{{name}}", get_tree, "A folder's list of files", agent,
              response=ContentTree),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ results of jobs


async def receive_outputs(call: RequestContext) -> web.StreamResponse:
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
        transaction.batch.outputs.append(_merged(told, before, transaction.at))

    await call.server.loop.perform(step)
    return web.Response(status=204)


def _merged(told: OutputsCollected, before: OutputsRow | None, at: float) -> OutputsRow:
    """Returns the row to store: where nothing could be collected, the earlier results stay, with the new problem."""
    if not told.tree and before is not None:
        return replace(before, problem=told.problem)
    job_id, rank = JobId(told.job_id), told.node_rank
    return OutputsRow(job_id, rank, told.attempt, told.tree, told.files, told.size_bytes, at, told.problem)


async def list_outputs(call: RequestContext) -> JobOutputs:
    row = await visible_job_row(call)
    shown = call.server.loop.clock.shown
    return JobOutputs(
        items=[
            OutputsView(
                node_rank=each.node_rank, attempt=each.attempt, tree=each.tree, files=each.files,
                size_bytes=each.size_bytes, collected_at=shown(each.collected_at), problem=each.problem,
            )
            for each in await call.server.read(call.server.store.outputs, row.job_id)
        ]
    )  # fmt: skip


async def get_outputs_tree(call: RequestContext) -> web.StreamResponse:
    """Returns the list of files of one of the job's result trees. Raises NotFound for any other tree."""
    name = call.request.match_info["name"]
    if name not in await _trees_of_job(call):
        raise NotFound(f"no results {name[:12]!r} of this job")
    encoded = await call.server.read(lambda: call.server.content.tree(name).encoded())
    return web.Response(body=encoded, content_type="application/json")


async def get_outputs_chunk(call: RequestContext) -> web.StreamResponse:
    """Returns a chunk of one of the job's result trees. Raises NotFound for any other chunk."""
    name = call.request.match_info["name"]
    for tree in await _trees_of_job(call):
        if name in await call.server.read(call.server.content.chunks_of, tree):
            content = await call.server.read(call.server.content.get, name)
            return web.Response(body=content, content_type="application/octet-stream")
    raise NotFound(f"no chunk {name[:12]!r} in the results of this job")


async def _trees_of_job(call: RequestContext) -> list[str]:
    row = await visible_job_row(call)
    return [each.tree for each in await call.server.read(call.server.store.outputs, row.job_id) if each.tree]


def outputs_routes() -> list[Route]:
    """Returns the routes about results: machines report them, users who see the job list and fetch them."""
    base = "/api/v1/jobs/{job_id:[0-9]+}/outputs"
    binary = "application/octet-stream"
    return [
        Route("POST", "/agent/v1/outputs", receive_outputs, "Results of an attempt, which the content store has",
              Audience.AGENT, request=OutputsCollected, status=204,
              query=("cluster_id", "incarnation", "granted_by")),
        Route("GET", base, list_outputs, "What is kept of a job's results", response=JobOutputs),
        Route("GET", f"{base}/trees/{{name}}", get_outputs_tree, "The files of results", response=ContentTree),
        Route("GET", f"{base}/chunks/{{name}}", get_outputs_chunk, "A chunk of results", response=binary),
    ]  # fmt: skip
