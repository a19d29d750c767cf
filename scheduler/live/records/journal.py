"""Events and commands as JSON and back, exactly: what is read is equal to what was written.

A `Solve` is recorded by its request id and a digest of everything it asks, not by its arrays: enough for a replay to
tell whether the same question was put. Infinite instants are written as JSON's `Infinity`, which Python reads back.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter

from scheduler.core.commands import Command, Solve
from scheduler.core.events import Event
from scheduler.live.records.rows import JournalRow
from walras.cluster import Pool
from walras.model_facts import ModelFacts
from walras.request import JobRequest

_EVENTS: Mapping[str, type] = {event.__name__: event for event in get_args(Event)}
_COMMANDS: Mapping[str, type] = {command.__name__: command for command in get_args(Command)}
_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)
_FACTS: TypeAdapter[ModelFacts] = TypeAdapter(ModelFacts)
_POOL: TypeAdapter[Pool] = TypeAdapter(Pool)
#: Marks the rows from which a fresh core begins.
GENERATION = "generation"


_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    row_type: TypeAdapter(row_type) for row_type in (*get_args(Event), *get_args(Command)) if row_type is not Solve
}


def encode_event(event: Event) -> JournalRow:
    return JournalRow(event.at, "event", type(event).__name__, _dump(event))


def encode_command(at: float, command: Command) -> JournalRow:
    payload = _describe(command) if isinstance(command, Solve) else _dump(command)
    return JournalRow(at, "command", type(command).__name__, payload)


def decode_event(row: JournalRow) -> Event:
    """The event that was written. Raises ValueError where the payload is not one."""
    event: Event = _ADAPTERS[_EVENTS[row.type]].validate_python(json.loads(row.payload))
    return event


def decode_command(row: JournalRow) -> Command | None:
    """The command that was written; None for a `Solve`, of which only a digest is kept."""
    if row.type == Solve.__name__:
        return None
    command: Command = _ADAPTERS[_COMMANDS[row.type]].validate_python(json.loads(row.payload))
    return command


def dump_request(request: JobRequest) -> str:
    return json.dumps(_REQUEST.dump_python(request, mode="json"), separators=(",", ":"))


def parse_request(text: str) -> JobRequest:
    return _REQUEST.validate_python(json.loads(text))


def dump_facts(facts: ModelFacts) -> str:
    return json.dumps(_FACTS.dump_python(facts, mode="json"), separators=(",", ":"))


def parse_facts(text: str) -> ModelFacts:
    return _FACTS.validate_python(json.loads(text))


def dump_pool(pool: Pool) -> str:
    return json.dumps(_POOL.dump_python(pool, mode="json"), separators=(",", ":"))


def parse_pool(text: str) -> Pool:
    return _POOL.validate_python(json.loads(text))


def plain(event: Event) -> Event:
    """The event as a reader of the journal will see it (tuples inside free-form values have become lists)."""
    return decode_event(encode_event(event))


def _dump(value: Any) -> str:
    return json.dumps(_ADAPTERS[type(value)].dump_python(value, mode="json"), separators=(",", ":"))


def _describe(solve: Solve) -> str:
    digest = hashlib.sha256()
    _feed(digest, (solve.problem, solve.policy, solve.memory, solve.delay_usd_per_h))
    return json.dumps({"request_id": solve.request_id, "digest": digest.hexdigest()}, separators=(",", ":"))


def _feed(digest: Any, value: Any) -> None:
    """Add a value to a digest: arrays by type, shape and bytes, the rest by structure."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for column in fields(value):
            _feed(digest, getattr(value, column.name))
    elif isinstance(value, Mapping):
        _feed(digest, sorted((str(key), item) for key, item in value.items()))
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())
