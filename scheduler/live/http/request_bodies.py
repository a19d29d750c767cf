"""Reads the bodies of requests, which anybody with a token may make as costly as they like.

A body is counted before anything is built of it: bytes, values, levels. One that is small enough is read in the event
loop, where its worst costs milliseconds. Any other is read in a worker process, with limits of time and memory, and
what it found comes back in pieces, between which the loop runs. Holders take turns; machines have a worker of their
own. A *reader* is a function that a worker can import: it takes the bytes, and returns a message, a list or plain data.

The requests under way are bounded: those that the server works on, and those whose bodies still come. Nobody can make a
body come faster, so a coming body does not count among the requests that are worked on.
"""

import asyncio
import json
import multiprocessing
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scheduler.live.auth.access_control import AgentCaller, Caller, JobCaller, JoinCaller, UserCaller, UserRole
from scheduler.live.holder_shares import HolderShares
from scheduler.live.loop.worker_process import begin_worker
from walras.errors import JobSpecError, UserError, WalrasError
from walras.resources.jobs import JOBS_IN_ONE
from walras.spec.file_model import FileModel, check_model
from walras.spec.job_spec import MAX_SPEC_BYTES, JobSpec, parse_spec
from walras.spec.text_formats import bounded_int, object_of_unique_keys, parse_yaml
from walras.storage.content import ContentTree, content_of

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
FileT = TypeVar("FileT", bound=FileModel)
Reader = Callable[[bytes | bytearray], T]

#: The most levels of a body.
DEPTH_MOST = 64
#: Bodies up to these sizes are read in the loop. YAML is a hundred times slower to read.
_LOOP_BYTES, _LOOP_VALUES, _LOOP_YAML_BYTES = 64 * 1024, 1000, 2 * 1024
#: Seconds that a body may take a worker, and memory that it may add there; above `_KEPT_BYTES` the worker is replaced.
_WORKER_S, _WORKER_BYTES, _KEPT_BYTES = 30.0, 2 * 1024**3, 512 * 1024**2
_PIECE_ITEMS = 128
_COUNTED, _COUNTED_BYTES = (b",", b"[", b"{", b":"), 1024 * 1024
_NO_MODEL = (None, None)


class BodyTooLarge(UserError):
    """The body is larger than the endpoint takes, or takes too long to read."""


# ------------------------------------------------------------------------------------------ readers


async def count_values(body: bytes | bytearray, most: int) -> int:
    """Returns how many values JSON may hold; marks inside texts count too. Raises BodyTooLarge beyond `most`."""
    found = 1
    for start in range(0, len(body), _COUNTED_BYTES):
        found += sum(body.count(mark, start, start + _COUNTED_BYTES) for mark in _COUNTED)
        if found > most:
            raise BodyTooLarge(f"the body has more than {most:,} values", field="body", fix="send it in parts")
        if len(body) > _COUNTED_BYTES:
            await asyncio.sleep(0)
    return found


def json_of_body(body: bytes | bytearray) -> Any:
    """Returns the data in the body. Raises UserError: no JSON, a key given twice, a number too long, too deep."""
    try:
        data = json.loads(body, object_pairs_hook=object_of_unique_keys, parse_int=bounded_int)
    except RecursionError:
        raise _too_deep() from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError("the body is not JSON", field="body", fix="send JSON in UTF-8") from None
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise UserError(f"the body is not JSON: {problem}", field="body", fix=fix) from None
    if body.count(b"[") + body.count(b"{") > DEPTH_MOST and _is_deep(data):
        raise _too_deep()
    return data


def _too_deep() -> UserError:
    return UserError(f"the body is nested deeper than {DEPTH_MOST}", field="body", fix="write it flatter")


def _is_deep(data: Any) -> bool:
    pending = [(data, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict | list):
            if depth > DEPTH_MOST:
                return True
            inner = value.values() if isinstance(value, dict) else value
            pending += [(each, depth + 1) for each in inner if isinstance(each, dict | list)]
    return False


def read_model(model: type[ModelT], body: bytes | bytearray) -> ModelT:
    """Returns JSON bytes as a validated message. Raises UserError naming the first field that is wrong."""
    return validated(model, json_of_body(body))


def validated(model: type[ModelT], data: Any) -> ModelT:
    """Returns data as a validated message. Raises UserError naming the first field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{field}: {first['msg']}", field=field, fix="see /api/v1/openapi.json") from None


def read_file_model(model: type[FileT], source: str, body: bytes | bytearray) -> FileT:
    """Returns JSON bytes as something that could stand in a file. Raises UserError, ConfigError naming the field."""
    return check_model(model, json_of_body(body), source=source)


def read_spec(body: bytes | bytearray) -> JobSpec:
    """Returns the job spec in JSON. Raises UserError, JobSpecError naming the field."""
    return _spec_of(json_of_body(body))


def read_yaml_spec(body: bytes | bytearray) -> JobSpec:
    """Returns the job spec in YAML. Raises ConfigError, JobSpecError naming line or field."""
    return _spec_of(parse_yaml(bytes(body), source="job", max_bytes=MAX_SPEC_BYTES))


def _spec_of(data: Any) -> JobSpec:
    if not isinstance(data, dict):
        raise JobSpecError("a job spec is a mapping of fields", fix='send such as {"run": "python train.py"}')
    return parse_spec(data)


def read_batch(body: bytes | bytearray) -> list[JobSpec | UserError]:
    """Returns the job specs in `{"jobs": [...]}`, with the error in the place of one that has one. Raises UserError."""
    parsed = json_of_body(body)
    given = parsed.get("jobs") if isinstance(parsed, dict) else None
    if not isinstance(given, list) or not 1 <= len(given) <= JOBS_IN_ONE:
        raise UserError(f"`jobs` must be a list of 1 to {JOBS_IN_ONE} specs", field="jobs")
    return [_spec_or_error(each) for each in given]


def _spec_or_error(data: Any) -> JobSpec | UserError:
    try:
        return _spec_of(data)
    except UserError as error:
        return error


def read_tree(body: bytes | bytearray) -> list[Any]:
    """Returns a checked list of files: its name and canonical JSON as bytes, then each chunk with its length."""
    tree = content_of(read_model(ContentTree, body))
    return [tree.name.encode(), tree.encoded, *tree.sizes.items()]


# ------------------------------------------------------------------------------------------ reading


class BodyReaders:
    """Reads bodies for one server."""

    def __init__(self) -> None:
        #: By whether the caller is a machine: heartbeats and checkpoints do not wait for people's bodies.
        self._workers = {False: _Worker(), True: _Worker()}
        self._turns = {False: asyncio.Lock(), True: asyncio.Lock()}
        self._own_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(
        self,
        read: Reader[T],
        body: bytes | bytearray,
        holder: str,
        *,
        most: int,
        is_yaml: bool = False,
    ) -> T:
        """Returns what `read` makes of the body. Raises what it raises, and BodyTooLarge."""
        values = 0 if is_yaml else await count_values(body, most)
        if len(body) <= (_LOOP_YAML_BYTES if is_yaml else _LOOP_BYTES) and values <= _LOOP_VALUES:
            return read(body)
        own, of_machine = self._own_turns[holder], is_machine(holder)
        try:
            async with own, self._turns[of_machine]:
                pieces = await asyncio.to_thread(self._workers[of_machine].ask, read, body)
        finally:
            if not own.locked():
                self._own_turns.pop(holder, None)
        return await _joined(pieces)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers.values():
            worker.end()


async def _joined(pieces: list[Any]) -> Any:
    """Returns what a worker found, letting the loop run between its pieces. Raises the error that it found."""
    (kind, (model, fields_set), fields, given), *rest = pieces
    if kind == "error":
        raise fields
    if kind == "plain":
        return fields
    items: dict[str, list[Any]] = {name: [] for name in given}
    for name, piece in rest:
        items[name] += piece
        await asyncio.sleep(0)
    if kind == "list":
        return items[""]
    listed = {name: tuple(found) if given[name] is tuple else found for name, found in items.items()}
    return model.model_construct(_fields_set=fields_set, **fields, **listed)


def _split(found: Any) -> Iterator[Any]:
    """Yields an answer in pieces: a head, then the name of each list with some of its items."""
    if isinstance(found, WalrasError):
        yield "error", _NO_MODEL, found, {}
    elif isinstance(found, list):
        yield "list", _NO_MODEL, None, {"": list}
        yield from _split_list("", found)
    elif isinstance(found, BaseModel):
        values = {name: getattr(found, name) for name in type(found).model_fields}
        long = {name: each for name, each in values.items() if isinstance(each, list | tuple)}
        rest = {name: each for name, each in values.items() if name not in long}
        kinds = {name: type(each) for name, each in long.items()}
        yield "model", (type(found), found.model_fields_set), rest, kinds
        for name, each in long.items():
            yield from _split_list(name, each)
    else:
        yield "plain", _NO_MODEL, found, {}


def _split_list(name: str, items: Any) -> Iterator[tuple[str, list[Any]]]:
    for first in range(0, len(items), _PIECE_ITEMS):
        yield name, list(items[first : first + _PIECE_ITEMS])


class _Worker:
    """A process that reads one body after the other, started when the first needs it. Its calls block."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Connection | None = None

    def ask(self, read: Reader[Any], body: bytes | bytearray) -> list[Any]:
        """Returns the pieces of the answer. Raises BodyTooLarge where the worker takes too long or dies."""
        until = monotonic() + _WORKER_S
        try:
            connection = self._started()
            connection.send(read)
            connection.send_bytes(body)
            pieces: list[Any] = []
            while True:
                if not connection.poll(max(0.0, until - monotonic())):
                    raise TimeoutError
                if (piece := connection.recv()) is None:
                    break
                pieces.append(piece)
            if connection.recv() > _KEPT_BYTES:
                self.end()
            return pieces
        except (TimeoutError, EOFError, OSError):
            self.end()
            raise BodyTooLarge("the body takes too long, or too much memory, to read", fix="send less") from None

    def _started(self) -> Connection:
        if self._connection is None:
            self._connection, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._process = process
        return self._connection

    def end(self) -> None:
        """Kill the process; the next body starts another."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.join()


def _serve(connection: Connection) -> None:
    """The worker process."""
    begin_worker()
    while True:
        read = connection.recv()  # imports what the reader needs
        body = connection.recv_bytes()
        _limit_memory()
        try:
            found = read(body)
        except WalrasError as error:
            found = error
        except MemoryError:
            found = BodyTooLarge("the body takes too much memory to read", fix="send less")
        for piece in _split(found):
            connection.send(piece)
        connection.send(None)
        del found, body
        connection.send(_used_memory()[1])


def _limit_memory() -> None:
    used, _ = _used_memory()
    if used:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + _WORKER_BYTES, hard))


def _used_memory() -> tuple[int, int]:
    """Returns the bytes of addresses and of memory that this process uses now; 0 where the system does not say.

    The highest use that the system counts (`ru_maxrss`) includes the server's: a new process begins with its parent's.
    """
    status = Path("/proc/self/statm")
    if sys.platform != "linux" or not status.exists():
        return 0, 0
    addresses, resident = status.read_text().split()[:2]
    return int(addresses) * resource.getpagesize(), int(resident) * resource.getpagesize()


class RequestLoad:
    """Counts requests under way. `most`: of those that are worked on, and again of bodies that still come."""

    def __init__(self, most: int) -> None:
        self.worked_on = HolderShares("requests under way", most, has_reserve=True, fix="wait for their answers")
        self.coming = HolderShares("coming bodies", most, has_reserve=True, fix="finish or close these first")

    @contextmanager
    def working(self, holder: str, *, is_reserved: bool = False) -> Iterator[None]:
        """Count a request for as long as the context is open. Raises ShareTaken beyond the holder's share."""
        self.worked_on.take(holder, is_reserved=is_reserved)
        try:
            yield
        finally:
            self.worked_on.give_back(holder)

    @contextmanager
    def receiving(self, holder: str, *, is_reserved: bool = False) -> Iterator[None]:
        """Count a request as a coming body, not as worked on. Raises ShareTaken beyond the holder's share."""
        self.coming.take(holder, is_reserved=is_reserved)
        self.worked_on.give_back(holder)
        try:
            yield
        finally:
            # Its body is here: it is worked on, however many others are.
            self.worked_on.put_back(holder)
            self.coming.give_back(holder)


_MACHINE = "machine "


def holder_of(caller: Caller, address: str) -> str:
    """Returns whose share a request takes: that of the user, the machine or the job; of newcomers, the address's."""
    match caller:
        case UserCaller(name=name):
            return user_holder(name)
        case AgentCaller(node_id=node_id):
            return f"{_MACHINE}{node_id}"
        case JobCaller(job_id=job_id):
            return f"job {job_id}"
        case JoinCaller():
            return f"address {address}"


def user_holder(name: str) -> str:
    return f"user {name}"


def is_machine(holder: str) -> bool:
    return holder.startswith(_MACHINE)


def is_reserved_for(caller: Caller) -> bool:
    """Returns whether a caller may use what is kept: machines, new ones too, and administrators."""
    return isinstance(caller, AgentCaller | JoinCaller) or (
        isinstance(caller, UserCaller) and caller.role >= UserRole.ADMIN
    )
