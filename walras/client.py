"""The clients of a Walras server, asynchronous and blocking: the command line, scripts and notebooks use them.

    async with Client("http://127.0.0.1:8080", token) as client:
        submitted = await client.submit({"run": "python train.py", "resources": {"accelerators": "a100:1"}})
        async for line in client.logs(submitted.id, follow=True): ...

Every call is bounded in time. After a lost connection the client repeats a call only where doing it twice is harmless;
a submission carries an idempotency key by which the server recognises it, so it too is repeated and makes one job. The
calls about a resource stand with it in `walras.resources`.

Scripts and notebooks that are not asynchronous use `walras.Client`:

    with walras.Client() as client:
        submitted = client.submit({"run": "python train.py", "resources": {"accelerators": "a100:1"}})
        for piece in client.logs(submitted.id, follow=True): ...

It has every call of the asynchronous client, with the same arguments, answers and errors; what is an asynchronous
iterator there is an iterator here. The calls run on an event loop in a thread of its own, so they also work where a
loop runs already, as in a notebook. Several threads may use one client.

Of the kept results of a job, the server has one tree of files for each machine of a gang. Here they are one folder: the
files of the first machine at its root, those of the others below `node-N/`.
"""

import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

from walras.connection.remote_session import MESSAGE_BYTES, SessionAsked, await_ready
from walras.connection.transport import Patience, Transport
from walras.errors import NotFound, UserError
from walras.resources.contents import ContentCalls
from walras.resources.endpoint import API, Blocking, LoopThread, awaited, blocking
from walras.resources.fleet import FleetCalls, ReservationCalls
from walras.resources.jobs import SESSION, FactCalls
from walras.resources.logs import LogCalls
from walras.resources.money import MoneyCalls, UsageCalls
from walras.resources.notifications import NotificationCalls
from walras.resources.overview import OverviewCalls, PolicyCalls
from walras.resources.people import PeopleCalls
from walras.resources.prices import PriceCalls
from walras.resources.what_if import WhatIfCalls
from walras.server_access import server_access
from walras.storage.content import ContentFile, ContentTree
from walras.storage.content_transfer import ContentTransfer


class ClientCalls(
    LogCalls,
    ContentCalls,
    FleetCalls,
    PriceCalls,
    MoneyCalls,
    FactCalls,
    OverviewCalls,
    NotificationCalls,
    PeopleCalls,
    PolicyCalls,
    UsageCalls,
    ReservationCalls,
    WhatIfCalls,
):
    """All calls that an asynchronous and a blocking client share."""


class Client(ClientCalls):
    """Asynchronous calls to one server with one token. Errors are those of `walras.errors`."""

    def __init__(self, url: str, token: str = "", *, patience: Patience | None = None) -> None:
        self._transport = Transport(url, token, patience or Patience())

    @property
    def url(self) -> str:
        return self._transport.url

    @property
    def patience(self) -> Patience:
        return self._transport.patience

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    def outputs_transfer(self, job_id: int) -> ContentTransfer:
        """Returns a transfer that fetches the trees of a job's results."""
        return ContentTransfer(self._transport, f"{API}/jobs/{job_id:d}/outputs")

    async def open_session(self, job_id: int, asked: SessionAsked) -> aiohttp.ClientWebSocketResponse:
        """Opens a session with a running job (its owner, operators). Raises Conflict for a job that does not run."""
        call = SESSION.call({"job_id": job_id, **asked.query()})
        socket = await self._transport.websocket(call.path, call.query, MESSAGE_BYTES)
        await await_ready(socket)
        return socket


@dataclass
class KeptFiles:
    """A job's results by their paths: the gang's first machine at the root, the others below `node-N/`."""

    files: dict[str, ContentFile]
    #: What was left out, and which machines' results cannot be listed.
    problems: list[str]
    attempt: int = 0
    collected_at: str = ""
    trees: dict[str, ContentTree] = field(default_factory=dict)

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        """Returns the files as JSON data."""
        sizes = {path: file.size for path, file in self.files.items()}
        return {"attempt": self.attempt, "collected_at": self.collected_at, "files": sizes, "problems": self.problems}


async def kept_files(client: "Client", job_id: int) -> KeptFiles:
    """Returns what is kept of a job's results; empty if nothing is yet."""
    listed = await client.outputs(job_id)
    transfer = client.outputs_transfer(job_id)
    found = KeptFiles({}, [])
    for each in listed.items:
        where = f"node-{each.node_rank}/" if each.node_rank else ""
        if each.problem:
            found.problems.append(f"{where}{each.problem}")
        if not each.tree:
            continue
        found.attempt = max(found.attempt, each.attempt)
        found.collected_at = max(found.collected_at, each.collected_at)
        tree = found.trees[each.tree] = await transfer.fetch_list(each.tree)
        found.files |= {f"{where}{file.path}": file for file in tree.files}
    return found


async def fetch_outputs(client: "Client", job_id: int, path: str, folder: Path | None) -> KeptFiles:
    """Fetch the files of `path`, or only look where there is no folder. Raises NotFound if there are none."""
    found = await kept_files(client, job_id)
    chosen = {name: file for name, file in found.files.items() if not path or f"{name}/".startswith(f"{path}/")}
    if not chosen:
        is_over = (await client.job(job_id)).state.is_final  # the job may not be there at all
        left = "left no outputs" if is_over else "has left no outputs yet"
        what = f"no {path!r} in the outputs of job {job_id}" if path else f"job {job_id} {left}"
        raise NotFound(
            what, field="path" if path else "job", fix="see `walras show`; `outputs:` in its file names them"
        )
    found.files = chosen
    if folder is not None:
        files = [file.model_copy(update={"path": name}) for name, file in chosen.items()]
        try:
            tree = ContentTree(files=tuple(sorted(files, key=lambda file: file.path)))
        except ValueError as error:
            raise UserError(f"the machines' files do not fit into one folder: {error}", fix="fetch by PATH") from None
        await client.outputs_transfer(job_id).fetch_files(tree, folder)
    return found


T = TypeVar("T")


class BlockingTransfer(Blocking):
    """Does what `walras.storage.content_transfer.ContentTransfer` does, as blocking calls."""

    def __init__(self, thread: LoopThread, transfer: ContentTransfer) -> None:
        self._thread, self._transfer = thread, transfer

    def _reach(self) -> tuple[LoopThread, ContentTransfer]:
        return self._thread, self._transfer

    @property
    def sent_bytes(self) -> int:
        return self._transfer.sent_bytes

    @property
    def fetched_bytes(self) -> int:
        return self._transfer.fetched_bytes

    send = blocking(ContentTransfer.send)
    fetch = blocking(ContentTransfer.fetch)
    fetch_list = blocking(ContentTransfer.fetch_list)
    fetch_files = blocking(ContentTransfer.fetch_files)


class BlockingSession(Blocking):
    """An open session with a job, as messages of `walras.connection.remote_session`; `with` closes it."""

    def __init__(self, thread: LoopThread, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._thread, self._socket = thread, socket

    def _reach(self) -> tuple[LoopThread, aiohttp.ClientWebSocketResponse]:
        return self._thread, self._socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    send_str = blocking(aiohttp.ClientWebSocketResponse.send_str)
    send_bytes = blocking(aiohttp.ClientWebSocketResponse.send_bytes)
    receive = blocking(aiohttp.ClientWebSocketResponse.receive)
    close = blocking(aiohttp.ClientWebSocketResponse.close)


class BlockingClient(Blocking, ClientCalls):
    """Calls to one server with one token, which return once they are answered. Errors are those of `walras.errors`.

    Without an address it is the server of the command line: `WALRAS_SERVER`, `WALRAS_TOKEN` or `WALRAS_TOKEN_FILE`,
    then `~/.config/walras/config.yaml`. It connects at the first call. Raises UserError if no server is named.
    """

    def __init__(self, url: str = "", token: str = "", *, patience: Patience | None = None) -> None:
        if not url:
            access = server_access()
            url, token = access.url, token or access.token
        self._inner = Client(url, token, patience=patience)
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._is_closed = False
        self._finalizer: weakref.finalize[..., BlockingClient] | None = None

    def _reach(self) -> tuple[LoopThread, Client]:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if self._thread is None:
                thread = LoopThread()
                thread.run(self._inner.__aenter__())
                self._thread = thread
                self._finalizer = weakref.finalize(self, _close, thread, self._inner)
            return self._thread, self._inner

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def patience(self) -> Patience:
        return self._inner.patience

    def __enter__(self) -> Self:
        self._reach()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and its thread; further calls raise RuntimeError. Calling it again does nothing."""
        with self._lock:
            self._is_closed = True
        if self._finalizer is not None:
            self._finalizer()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Returns the result of asynchronous work on this client, such as several calls at once."""
        thread, inner = self._reach()
        return thread.run(awaited(work(inner)))

    def fetch_outputs(self, job_id: int, path: str = "", folder: Path | None = None) -> KeptFiles:
        """Fetch what a job left in its `outputs`, or the part below `path`, into a new folder; None: only list it.

        Raises NotFound if there is nothing, FileExistsError for a folder that is there.
        """
        return self.run(lambda client: fetch_outputs(client, job_id, path, folder))

    def outputs_transfer(self, job_id: int) -> BlockingTransfer:
        """Returns a transfer that fetches the trees of a job's results."""
        thread, inner = self._reach()
        return BlockingTransfer(thread, inner.outputs_transfer(job_id))

    def open_session(self, job_id: int, asked: SessionAsked) -> BlockingSession:
        """Opens a session with a running job (its owner, operators). Raises Conflict for a job that does not run."""
        thread, inner = self._reach()
        return BlockingSession(thread, thread.run(inner.open_session(job_id, asked)))


def _close(thread: LoopThread, inner: Client) -> None:
    thread.close(lambda: inner.__aexit__(None, None, None))
