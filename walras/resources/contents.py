"""Content by its hashes, and the results of jobs: who may send and fetch what (`walras.storage.content_transfer`)."""

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from walras.connection.body import Body, RequestBody
from walras.contract import FILES_MOST
from walras.job_needs import JobOutputs
from walras.resources.endpoint import API, BINARY, CONTENT, LARGE_BODY_BYTES, Call, Calls, Endpoint
from walras.storage.content import CHUNK_BYTES, PACK_CHUNKS, ChunkName, ContentTree
from walras.storage.content_transfer import ContentTransfer

#: Names in one question, and bytes of the longest list of files.
_NAMES_MOST, _TREE_BODY_BYTES = 20_000, 64 * 1024 * 1024


class ChunkQuestion(RequestBody):
    names: list[ChunkName] = Field(max_length=_NAMES_MOST, fail_fast=True)


class PackQuestion(RequestBody):
    names: list[ChunkName] = Field(min_length=1, max_length=PACK_CHUNKS, fail_fast=True)


class ChunksMissing(Body):
    """The chunks that the server does not have."""

    names: list[str]


class ContentPrune(RequestBody):
    dry_run: bool = False
    #: Checkpoints of jobs that ended longer ago than this, seconds, are needed no more; None: all are.
    checkpoints_older_s: float | None = Field(default=None, ge=0, le=1e12)


class ContentPruned(Body):
    """The bytes of content that were deleted, or would be; by holder what several hold counts for each.

    `objects`: how many in object stores; `unanswered`: the places in them that could not be looked at.
    """

    size_bytes: int
    holders: dict[str, int]
    objects: int = 0
    unanswered: list[str] = Field(default=[])


class TreeCommitted(Body):
    """The name under which the tree is now durable."""

    name: str


_CHUNK, _OUTPUTS = CONTENT + "/chunks/{name}", API + "/jobs/{job_id:[0-9]+}/outputs"
_SENT_BYTES = CHUNK_BYTES + 1024
MISSING_CHUNKS = Endpoint(
    "POST", f"{CONTENT}/missing", "Which chunks the server does not have", ChunksMissing, "user or agent",
    ChunkQuestion, query=("job_id",), body_bytes=LARGE_BODY_BYTES, body_values=_NAMES_MOST + 10,
)  # fmt: skip
PUT_CHUNK = Endpoint(
    "PUT", _CHUNK, "Send a chunk", None, "user or agent",
    query=("encoding", "job_id"), status=204, body_bytes=_SENT_BYTES,
)  # fmt: skip
GET_CHUNK = Endpoint("GET", _CHUNK, "Fetch a chunk", BINARY, "agent")
PUT_PACK = Endpoint(
    "POST", f"{CONTENT}/packs", "Send many small chunks", None, "user or agent",
    query=("encoding", "job_id"), status=204, body_bytes=_SENT_BYTES,
)  # fmt: skip
GET_PACK = Endpoint(
    "POST", f"{CONTENT}/packs/fetch", "Fetch many small chunks", BINARY, "agent", PackQuestion,
    body_bytes=LARGE_BODY_BYTES,
)  # fmt: skip
#: Values: of each file four, and its chunks.
COMMIT_TREE = Endpoint(
    "POST", f"{CONTENT}/trees", "Make a folder's list of files durable", TreeCommitted, "user or agent", ContentTree,
    query=("job_id",), body_bytes=_TREE_BODY_BYTES, body_values=20 * FILES_MOST,
)  # fmt: skip
GET_TREE = Endpoint("GET", CONTENT + "/trees/{name}", "A folder's list of files", ContentTree, "agent")
OUTPUTS_TREE = Endpoint("GET", _OUTPUTS + "/trees/{name}", "The files of results", ContentTree)
OUTPUTS_CHUNK = Endpoint("GET", _OUTPUTS + "/chunks/{name}", "A chunk of results", BINARY)


class ContentCalls(Calls):
    """The client's calls about folders that jobs need, and about results that they leave."""

    @Call
    async def send_folder(
        self, folder: Path, tree: ContentTree, told: Callable[[int, int], None] = lambda done, of: None
    ) -> None:
        """Make the files of a folder durable with the server, before a job that names the tree is submitted.

        `told` hears how many pieces have been sent, and of how many.
        """
        await ContentTransfer(self._transport).send(folder, tree, told)

    @Endpoint("POST", f"{API}/content/prune", who="admin", body=ContentPrune, waits=True, repeatable=True)
    async def prune_content(self, *, dry_run: bool = False, checkpoints_older_s: float | None = None) -> ContentPruned:
        """Delete content that nothing refers to. What was sent within half an hour stays; `dry_run`: only say what.

        `checkpoints_older_s`: delete checkpoints of jobs that ended longer ago too, in object stores as well.
        """

    @Endpoint("GET", _OUTPUTS)
    async def outputs(self, job_id: int) -> JobOutputs:
        """What is kept of a job's results. By machine of its gang."""
