"""An endpoint of the REST API, declared once: the server's route with its authorisation and limits, the OpenAPI
description, the client's calls and the tables of `docs/api.md` are made of it.

    class MoneyCalls(Calls):
        @Endpoint("GET", f"{API}/money")
        async def money(self, by: str = "project", *, month: str = "") -> MoneyReport:
            \"\"\"What was spent. ...\"\"\"

declares an endpoint with its query and answer, and both clients' call; a handler of the server says
`@serves(MoneyCalls.money)`. Where the call has content of its own, the endpoint is a value that it asks.

Each call is written once: awaited on the asynchronous client, answered at once on the blocking one. A class of calls is
a `Calls` whose asynchronous methods are each a `Call`, or a `Stream` if they yield. A client that is `Blocking` has the
same classes and runs their methods on an event loop in a thread of its own.
"""

import asyncio
import contextlib
import inspect
import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from walras.connection.body import ApiCall

if TYPE_CHECKING:
    from walras.connection.transport import Transport


P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class Calls:
    """Methods that call a server."""

    _transport: "Transport"


class Blocking:
    """An object whose asynchronous calls run on a loop thread."""

    def _reach(self) -> "tuple[LoopThread, Any]":
        """Returns the thread and the asynchronous object."""
        raise NotImplementedError


class Call(Generic[P, T]):
    """A method of `Calls` that is awaited, or, on a `Blocking` client, returns once it is answered."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], endpoint: Any = None) -> None:
        self._function, self._blocking = function, blocking(function)
        #: What it asks, where that is all that it does.
        function.endpoint = endpoint  # type: ignore[attr-defined]

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Calls, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        found: Any = self._blocking if issubclass(owner, Blocking) else self._function
        return found if instance is None else found.__get__(instance, owner)


class Stream(Generic[P, T]):
    """A method of `Calls` that is an asynchronous generator, or, on a `Blocking` client, a generator."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._function, self._iterating = function, _iterating(function)

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Calls, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        found: Any = self._iterating if issubclass(owner, Blocking) else self._function
        return found if instance is None else found.__get__(instance, owner)


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


def blocking(call: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns an asynchronous method as one that blocks."""

    @wraps(call)
    def answered(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread: LoopThread
        thread, inner = self._reach()
        return thread.run(awaited(call(inner, *args, **kwargs)))

    return answered


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


async def awaited(work: Awaitable[T]) -> T:
    return await work


async def _next_of(items: AsyncIterator[T]) -> object:
    return await anext(items, _END)


API, AGENT, CONTENT = "/api/v1", "/agent/v1", "/content/v1"
#: The largest body of most requests and of those with many jobs, names or reports, bytes; the most values of a body.
BODY_BYTES, LARGE_BODY_BYTES, BODY_VALUES = 1024 * 1024, 16 * 1024 * 1024, 20_000
BINARY = "application/octet-stream"
#: Whose tokens an endpoint accepts: users from a role on, and others. `owner`: a user who may change the job.
Who = Literal["viewer", "user", "owner", "operator", "admin", "viewer or job", "user or agent", "agent", "join token"]
_PLACE = re.compile(r"\{(\w+)(?::[^{}]*)?\}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What callers may ask a server. As a decorator it makes a call of the client from a method without content, which
    states the rest: the answer, the text and, of a GET, the query.
    """

    method: str
    #: With the names of its parts in braces: `/api/v1/users/{name}`.
    path: str
    #: What it does. The first sentence is its summary, for `docs/api.md`; the OpenAPI has the whole.
    text: str = ""
    #: The model of the answer, or a list of it; the content type of an answer that is no JSON; None: no content.
    answer: Any = None
    who: Who = "viewer"
    #: The model of the body; None: no body, or one that the handler reads itself.
    body: Any = None
    #: Names of the query parameters.
    query: tuple[str, ...] = ()
    status: int = 200
    #: Whether the answer may take long: the request does not count among those that are worked on.
    waits: bool = False
    #: Whether asking again after a lost answer does nothing twice; None: unless it is a POST.
    repeatable: bool | None = None
    #: The largest body, bytes, and the most values in it.
    body_bytes: int = BODY_BYTES
    body_values: int = BODY_VALUES

    @property
    def summary(self) -> str:
        return self.text.partition(". ")[0].removesuffix(".")

    @property
    def role(self) -> str:
        """The least role of a user; empty: it is for no user."""
        word = self.who.partition(" or ")[0]
        return {"owner": "user", "agent": "", "join token": ""}.get(word, word)

    @property
    def plain_path(self) -> str:
        """The path without patterns: `/jobs/{job_id:[0-9]+}` becomes `/jobs/{job_id}`."""
        return _PLACE.sub(r"{\1}", self.path)

    @property
    def places(self) -> list[str]:
        """The names of the parts of its path."""
        return [found[1] for found in _PLACE.finditer(self.path)]

    def __call__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Call[P, T]:
        signature = inspect.signature(method)
        endpoint = self if self.text else self._of(method.__doc__ or "", signature)
        more = [each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD]

        async def call(self_: Calls, /, *args: P.args, **kwargs: P.kwargs) -> T:
            bound = signature.bind(self_, *args, **kwargs)
            bound.apply_defaults()
            given = dict([*bound.arguments.items()][1:])
            for name in more:
                given |= given.pop(name)
            found: T = await endpoint.ask(self_, given)
            return found

        call.__name__, call.__doc__ = method.__name__, method.__doc__
        call.__signature__ = signature  # type: ignore[attr-defined]
        return Call(call, endpoint)

    def _of(self, text: str, signature: inspect.Signature) -> "Endpoint":
        """Returns the endpoint with what a method states, the first paragraph of its text included."""
        names = [*signature.parameters][1:]
        query = tuple(name for name in names if name not in self.places) if self.method == "GET" else self.query
        said = " ".join(text.partition("\n\n")[0].split())
        return replace(self, text=said, query=query, answer=signature.return_annotation)

    def call(self, given: Mapping[str, Any], headers: Mapping[str, str] = {}) -> ApiCall:
        """Returns the request with values for the path, the query and the body; empty ones of the query are left out,
        and None everywhere. A single mapping or message that is no field of the body is the body.
        """
        left = dict(given)
        path = _PLACE.sub(lambda place: quote(str(left.pop(place[1])), safe=""), self.path)
        query = {name: _text(value) for name in self.query if not _is_empty(value := left.pop(name, None))}
        body: Any = {name: value for name, value in left.items() if value is not None} or None
        if len(left) == 1 and not set(left) & set(getattr(self.body, "model_fields", ())):
            (body,) = left.values()
            is_model = isinstance(body, BaseModel)
            body = body.model_dump(mode="json", exclude_defaults=True) if is_model else dict(body)
        repeatable = self.method != "POST" if self.repeatable is None else self.repeatable
        return ApiCall(self.method, path, query=query, body=body, headers=headers, repeatable=repeatable)

    async def ask(self, client: Calls, given: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Any:
        """Returns the answer to a `call`."""
        return _reader(self.answer).validate_python(await client._transport.json(self.call(given, headers)))


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value == ""


def _text(value: Any) -> str:
    """Returns a value as a query has it; lengths of time are whole seconds."""
    if isinstance(value, bool):
        return "true"
    return str(max(1, round(value))) if isinstance(value, float) else str(value)


@cache
def _reader(answer: Any) -> TypeAdapter[Any]:
    return TypeAdapter(answer)
