"""The journal: events and commands as JSON and back, exactly, and its replay through a fresh core.

What is read is equal to what was written. A `Solve` is recorded by its request id and a digest of everything it asks,
not by its arrays: enough for a replay to tell whether the same question was put. Infinite instants are written as
JSON's `Infinity`, which Python reads back.

A *generation* is a stretch of the journal that begins with a fresh core: every start of a server begins one
(`assembly.py`), and each replays on its own. A replay audits a recorded run and shows where a changed decision differs;
it also tells which speeds the server believed before it measured them.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
from pydantic import TypeAdapter

from scheduler.core.commands import Command, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, NodeJoined, PolicyChanged, Solved, StateRestored
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.sqlite_store import read_stored_journal
from scheduler.live.store.table_rows import JournalRow
from walras.cluster import Pool
from walras.job_request import JobRequest
from walras.model_facts import ModelFacts

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
    payload = _dump(event)
    if isinstance(event, Solved):  # left out where they say nothing, as in journals from before they were there
        if not event.proposal.worth_usd:
            payload = payload.replace(',"worth_usd":[]', "")
        if event.proposal.usd_per_h is None:
            payload = payload.replace(',"usd_per_h":null', "")
    if isinstance(event, NodeJoined) and not event.machine:
        payload = payload.replace(',"machine":""', "")
    return JournalRow(event.at, "event", type(event).__name__, payload)


def encode_command(at: float, command: Command) -> JournalRow:
    payload = _solve_digest(command) if isinstance(command, Solve) else _dump(command)
    if isinstance(command, Start) and command.checkpoint_every_s is None:
        # Left out where it says nothing, so that journals from before it was there still read the same.
        payload = payload.replace(',"checkpoint_every_s":null', "")
    return JournalRow(at, "command", type(command).__name__, payload)


def decode_event(row: JournalRow) -> Event:
    """The event that was written. Raises ValueError where the payload is not one."""
    told = json.loads(row.payload)
    if row.type == PolicyChanged.__name__:
        # Where rules do not say it, they are of a release that planned no intervals, or counted no fetches: it is
        # replayed as it decided.
        told["rules"].setdefault("plan_checkpoints", False)
        told["rules"].setdefault("count_fetches", False)
        told["rules"].setdefault("use_records", False)
    event: Event = _ADAPTERS[_EVENTS[row.type]].validate_python(told)
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


#: Jobs put into words at once: nothing else of the process runs meanwhile, whichever thread does it.
_JOBS_IN_A_BITE = 200


def dump_state(state: StateRestored) -> str:
    """Of up to tens of thousands of jobs, several times a minute: plain tuples, written without being checked anew."""
    values = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "jobs"}
    bites = (state.jobs[first : first + _JOBS_IN_A_BITE] for first in range(0, len(state.jobs), _JOBS_IN_A_BITE))
    jobs = ",".join(json.dumps(bite, separators=(",", ":"))[1:-1] for bite in bites)
    return f'{json.dumps(values, separators=(",", ":"))[:-1]},"jobs":[{jobs}]}}'


def parse_state(text: str) -> StateRestored:
    """Raises ValueError for a text that is none."""
    state: StateRestored = _ADAPTERS[StateRestored].validate_python(json.loads(text))
    return state


def dump_pool(pool: Pool) -> str:
    return json.dumps(_POOL.dump_python(pool, mode="json"), separators=(",", ":"))


def parse_pool(text: str) -> Pool:
    return _POOL.validate_python(json.loads(text))


def as_journaled(event: Event) -> Event:
    """The event as a reader of the journal will see it (tuples inside free-form values have become lists)."""
    return decode_event(encode_event(event))


def _dump(value: Any) -> str:
    return json.dumps(_ADAPTERS[type(value)].dump_python(value, mode="json"), separators=(",", ":"))


def _solve_digest(solve: Solve) -> str:
    digest = hashlib.sha256()
    _update_digest(digest, (solve.problem, solve.policy, solve.memory, solve.delay_usd_per_h))
    return json.dumps({"request_id": solve.request_id, "digest": digest.hexdigest()}, separators=(",", ":"))


#: What problems have had since journals were recorded; where it is empty, or None, it says nothing.
_LATER_FIELDS = frozenset(
    {
        ("Pools", "prepaid"),
        ("Pools", "counted"),
        ("Jobs", "unstoppable"),
        ("Jobs", "usual_weight"),
        ("Problem", "limits"),
    }
)


def _update_digest(digest: Any, value: Any) -> None:
    """Add a value to a digest: arrays by type, shape and bytes, the rest by structure."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for column in fields(value):
            item = getattr(value, column.name)
            if (type(value).__name__, column.name) in _LATER_FIELDS and (item is None or not len(item)):
                continue  # a question that an earlier version put, too
            _update_digest(digest, item)
    elif isinstance(value, Mapping):
        _update_digest(digest, sorted((str(key), item) for key, item in value.items()))
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _update_digest(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())


#: Differences told in full; more are only counted.
_LISTED_DIFFERENCES = 20


class ReplayedCore(Protocol):
    """What turns events into commands."""

    def handle(self, event: Event) -> list[Command]: ...


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first place where one event's commands differ."""

    event: JournalRow
    recorded: JournalRow | None
    replayed: JournalRow | None


@dataclass(slots=True)
class ReplayReport:
    """What a replay found."""

    events: int = 0
    commands: int = 0
    generations: int = 0
    #: Commands by type, to see what the journal exercised.
    command_types: dict[str, int] = field(default_factory=dict)
    #: Events whose commands differ, and the first of them.
    different: int = 0
    differences: list[ReplayDifference] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.different == 0


def replay_journal(
    rows: Iterable[JournalRow],
    make_core: Callable[[], ReplayedCore] = SchedulerCore,
) -> ReplayReport:
    """Feed recorded events through fresh cores and compare the commands one to one.

    Events that a core cannot take (a journal that was tampered with) count as differences and end the replay.
    """
    report = ReplayReport()
    core: ReplayedCore | None = None
    for event_row, recorded in _grouped_by_event(rows):
        if core is None or event_row.kind == GENERATION:
            core = make_core()
            report.generations += 1
        if event_row.kind == GENERATION:
            continue
        event = decode_event(event_row)
        try:
            commands = core.handle(event)
        except (AssertionError, LookupError, ValueError):
            # Only a journal that was not written by this core gets here; nothing after it would mean anything.
            report.different += 1
            report.differences.append(ReplayDifference(event_row, recorded[0] if recorded else None, None))
            return report
        report.events += 1
        _compare(report, event_row, recorded, [encode_command(event.at, command) for command in commands])
    return report


def replay_folder(folder: Path) -> ReplayReport:
    """Replay the whole journal of a data folder (`walras admin replay`); a running server is not disturbed."""
    return replay_journal(read_stored_journal(folder))


def read_run(folder: Path) -> Iterator[tuple[Event, list[Command]]]:
    """The events of a data folder's journal, each with what was commanded (solves left out), for whoever studies it."""
    for event_row, recorded in _grouped_by_event(read_stored_journal(folder)):
        if event_row.kind != GENERATION:
            commands = map(decode_command, recorded)
            yield decode_event(event_row), [command for command in commands if command is not None]


def _grouped_by_event(rows: Iterable[JournalRow]) -> Iterator[tuple[JournalRow, list[JournalRow]]]:
    """Each event (or generation mark) with the commands recorded after it."""
    head: JournalRow | None = None
    commands: list[JournalRow] = []
    for row in rows:
        if row.kind == "command":
            commands.append(row)
            continue
        if head is not None:
            yield head, commands
        head, commands = row, []
    if head is not None:
        yield head, commands


def _compare(report: ReplayReport, event: JournalRow, recorded: list[JournalRow], replayed: list[JournalRow]) -> None:
    report.commands += len(replayed)
    for row in replayed:
        report.command_types[row.type] = report.command_types.get(row.type, 0) + 1
    if recorded == replayed:
        return
    report.different += 1
    if len(report.differences) >= _LISTED_DIFFERENCES:
        return
    for index in range(max(len(recorded), len(replayed))):
        old = recorded[index] if index < len(recorded) else None
        new = replayed[index] if index < len(replayed) else None
        if old != new:
            report.differences.append(ReplayDifference(event, old, new))
            return


def scored_folder(folder: Path) -> list[ScoredBelief]:
    """Of a server's data folder; a running server is not disturbed."""
    return scored_journal(read_stored_journal(folder))


def scored_journal(rows: Iterable[JournalRow]) -> list[ScoredBelief]:
    """Over all generations: what one has measured, the next one believes no longer but knows."""
    found: list[ScoredBelief] = []
    core = SchedulerCore()
    for row in rows:
        if row.kind == GENERATION:
            found += core.ledger.table.scored()
            core = SchedulerCore()
        elif row.kind != "command":
            core.handle(decode_event(row))
    return found + core.ledger.table.scored()
