"""The client for scripts and notebooks that are not asynchronous: `walras.Client`.

    with walras.Client() as client:
        submitted = client.submit({"run": "python train.py", "resources": {"accelerators": "a100:1"}})
        for piece in client.logs(submitted.id, follow=True): ...

It has every call of the asynchronous client, with the same arguments, answers and errors; what is an asynchronous
iterator there is an iterator here. The calls run on an event loop in a thread of its own, so they also work where a
loop runs already, as in a notebook. Several threads may use one client.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import aiohttp

from walras.client import Client
from walras.content_transfer import ContentTransfer
from walras.kept_outputs import KeptFiles, fetch_outputs
from walras.remote_session import SessionAsked
from walras.server_access import server_access
from walras.transport import Patience

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class LoopThread:
    """An event loop that runs in a daemon thread until it is closed."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._serve, name="walras-client", daemon=True)
        self._thread.start()
        self._started.wait()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._started.set()
            self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what the coroutine returns, and raises what it raises; an interrupt cancels it.

        Raises RuntimeError after `close`, in a forked process, and on the loop's own thread, where it would never end.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call on the client's own event loop would never end")
        self._check_running(work)
        tasks, is_stopped = list[asyncio.Task[Any] | None](), threading.Event()

        async def stoppable() -> T:
            tasks.append(asyncio.current_task())
            if is_stopped.is_set():
                work.close()
                raise asyncio.CancelledError
            return await work

        try:
            return self.start(stoppable()).result()
        except BaseException:
            # An interrupt may come before the future of the call is known here: the call is reached without it.
            is_stopped.set()
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks if task is not None])
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begins the coroutine and returns its future. Raises RuntimeError as `run`."""
        self._check_running(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _check_running(self, work: Coroutine[Any, Any, Any]) -> None:
        """Closes the coroutine and raises RuntimeError where there is no loop that could run it."""
        if os.getpid() != self._process or not self._thread.is_alive():
            work.close()
            is_forked = os.getpid() != self._process
            raise RuntimeError("make a client in each process" if is_forked else "the client is closed")

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the last work on the loop and ends the thread. Does nothing if that has happened already."""

        async def finish() -> None:
            try:
                await last()
            finally:
                self._loop.stop()

        with contextlib.suppress(RuntimeError):
            self.start(finish())
            # The garbage collector may call this on the thread itself.
            if threading.current_thread() is not self._thread:
                self._thread.join()


class _Blocking:
    """An object whose asynchronous calls run on a loop thread."""

    def _reach(self) -> tuple[LoopThread, Any]:
        """Returns the thread and the asynchronous object."""
        raise NotImplementedError


def _blocking(call: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns an asynchronous method as one that blocks."""

    @wraps(call)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread: LoopThread
        thread, inner = self._reach()
        return thread.run(_awaited(call(inner, *args, **kwargs)))

    return blocking


def _iterating(call: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Returns a method that is an asynchronous generator as one that is a generator."""

    @wraps(call)
    def iterating(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        thread, inner = self._reach()
        items = cast(AsyncGenerator[T, None], call(inner, *args, **kwargs))
        try:
            while (item := thread.run(_next_of(items))) is not _END:
                yield cast(T, item)
        finally:
            # Not awaited: this may be reached on the thread itself, or after the client was closed.
            with contextlib.suppress(RuntimeError):
                thread.start(items.aclose())

    return iterating


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _next_of(items: AsyncIterator[T]) -> object:
    return await anext(items, _END)


class BlockingTransfer(_Blocking):
    """Does what `walras.content_transfer.ContentTransfer` does, as blocking calls."""

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

    send = _blocking(ContentTransfer.send)
    fetch = _blocking(ContentTransfer.fetch)
    fetch_list = _blocking(ContentTransfer.fetch_list)
    fetch_files = _blocking(ContentTransfer.fetch_files)


class BlockingSession(_Blocking):
    """An open session with a job, as messages of `walras.remote_session`; `with` closes it."""

    def __init__(self, thread: LoopThread, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._thread, self._socket = thread, socket

    def _reach(self) -> tuple[LoopThread, aiohttp.ClientWebSocketResponse]:
        return self._thread, self._socket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    send_str = _blocking(aiohttp.ClientWebSocketResponse.send_str)
    send_bytes = _blocking(aiohttp.ClientWebSocketResponse.send_bytes)
    receive = _blocking(aiohttp.ClientWebSocketResponse.receive)
    close = _blocking(aiohttp.ClientWebSocketResponse.close)


class BlockingClient(_Blocking):
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        return thread.run(_awaited(work(inner)))

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

    send_folder = _blocking(Client.send_folder)
    outputs = _blocking(Client.outputs)
    submit = _blocking(Client.submit)
    submit_batch = _blocking(Client.submit_batch)
    dry_run = _blocking(Client.dry_run)
    jobs = _iterating(Client.jobs)
    job = _blocking(Client.job)
    attempts = _blocking(Client.attempts)
    explain = _blocking(Client.explain)
    logs = _iterating(Client.logs)
    log_start = _blocking(Client.log_start)
    cancel = _blocking(Client.cancel)
    cancel_all = _blocking(Client.cancel_all)
    hold = _blocking(Client.hold)
    redirect = _blocking(Client.redirect)
    release = _blocking(Client.release)
    reprioritise = _blocking(Client.reprioritise)
    rebudget = _blocking(Client.rebudget)
    redate = _blocking(Client.redate)
    reassign = _blocking(Client.reassign)
    overview = _blocking(Client.overview)
    overviews = _iterating(Client.overviews)
    nodes = _blocking(Client.nodes)
    drain_node = _blocking(Client.drain_node)
    resume_node = _blocking(Client.resume_node)
    forget_node = _blocking(Client.forget_node)
    pools = _blocking(Client.pools)
    add_pool = _blocking(Client.add_pool)
    change_pool = _blocking(Client.change_pool)
    remove_pool = _blocking(Client.remove_pool)
    prices = _blocking(Client.prices)
    money = _blocking(Client.money)
    state_facts = _blocking(Client.state_facts)
    facts = _blocking(Client.facts)
    revoke_pool = _blocking(Client.revoke_pool)
    whoami = _blocking(Client.whoami)
    audit = _blocking(Client.audit)
    held_history = _blocking(Client.held_history)
    node_history = _blocking(Client.node_history)
    health = _blocking(Client.health)
    users = _blocking(Client.users)
    add_user = _blocking(Client.add_user)
    change_user = _blocking(Client.change_user)
    remove_user = _blocking(Client.remove_user)
    projects = _blocking(Client.projects)
    add_project = _blocking(Client.add_project)
    change_project = _blocking(Client.change_project)
    remove_project = _blocking(Client.remove_project)
    roles = _blocking(Client.roles)
    change_role = _blocking(Client.change_role)
    create_token = _blocking(Client.create_token)
    tokens = _blocking(Client.tokens)
    revoke_token = _blocking(Client.revoke_token)
    share = _blocking(Client.share)
    reserve = _blocking(Client.reserve)
    budgets = _blocking(Client.budgets)
    credits = _blocking(Client.credits)
    add_credit = _blocking(Client.add_credit)
    reservations = _blocking(Client.reservations)
    cancel_reservation = _blocking(Client.cancel_reservation)
    channels = _blocking(Client.channels)
    add_channel = _blocking(Client.add_channel)
    remove_channel = _blocking(Client.remove_channel)
    test_channel = _blocking(Client.test_channel)
    policy = _blocking(Client.policy)
    policy_versions = _blocking(Client.policy_versions)
    set_policy = _blocking(Client.set_policy)
    report = _blocking(Client.report)
    usage = _blocking(Client.usage)
    what_if = _blocking(Client.what_if)
    quote = _blocking(Client.quote)
    worth = _blocking(Client.worth)


def _close(thread: LoopThread, inner: Client) -> None:
    thread.close(lambda: inner.__aexit__(None, None, None))
