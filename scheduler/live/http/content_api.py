"""Endpoints for content: chunks and trees by their hashes, sent by users and machines, fetched by machines.

A sender asks which chunks the server lacks (`missing`), sends these, and then commits the tree that needs them; the
tree is durable once the commit is answered. Every step may be repeated. Users may send. Only machines may fetch by
name, since a name opens whatever content it names: users fetch content through the job that it belongs to.
"""

import asyncio
import os

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from scheduler.live.auth.access_control import AgentCaller, UserRole
from scheduler.live.http.job_api import check_attempt_was_here
from scheduler.live.http.requests import LARGE_BODY_BYTES, Audience, RequestContext, Route
from scheduler.live.providers.agent_wheel import packed_wheel
from walras.content import CHUNK_BYTES, PACK_CHUNKS, ChunkName, ContentTree, join_chunks, split_chunks, unpack_chunk
from walras.errors import ClusterError, UserError
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
