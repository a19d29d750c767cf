"""Endpoints for results: machines report what they collected of a job, and users who see the job fetch it.

A name of content opens whatever it names, so users fetch through the job: only trees that are its results, and only the
chunks of these trees.
"""

from dataclasses import replace

from aiohttp import web

from scheduler.live.http.job_api import check_attempt_was_here, visible_job_row
from scheduler.live.http.requests import Audience, RequestContext, Route
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import OutputsRow
from walras.content import ContentTree, DamagedContent
from walras.errors import Conflict, NotFound
from walras.job_needs import JobOutputs, OutputsCollected, OutputsView
from walras.job_request import JobId


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
