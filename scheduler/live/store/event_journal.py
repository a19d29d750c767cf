"""The journal: events and commands as JSON and back, exactly, and its replay through a fresh core.

What is read equals what was written. A question (`Solve`, `RankJobs`) is recorded by its request id and a digest of all
it asks, not by its arrays: enough for a replay to tell whether the same question was put. Infinite instants are written
as JSON's `Infinity`, which Python reads back.

A *generation* is a part of the journal that begins with a fresh core: every start of a server begins one
(`assembly.py`), and each replays by itself. A replay audits a recorded run and shows where a changed decision differs;
it also shows which speeds the server believed before it measured them.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter

from scheduler.core.commands import Command, RankJobs, Solve, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, NodeJoined, PolicyChanged, Solved, StateRestored
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.sqlite_store import read_stored_journal
from scheduler.live.store.table_rows import JournalRow
from walras.cluster import Pool
from walras.job_request import JobRequest, kind_within
from walras.model_facts import ModelFacts

_EVENTS: Mapping[str, type] = {event.__name__: event for event in get_args(Event)}
_COMMANDS: Mapping[str, type] = {command.__name__: command for command in get_args(Command)}
#: Commands of which only a digest is kept.
_QUESTIONS = (Solve, RankJobs)
#: The kind of rows from which on a fresh core decides.
GENERATION = "generation"


_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    stored: TypeAdapter(stored)
    for stored in (*get_args(Event), *get_args(Command), JobRequest, ModelFacts, Pool)
    if stored not in _QUESTIONS
}


def encode_event(event: Event) -> JournalRow:
    payload = dump_json(event)
    if isinstance(event, Solved):  # empty fields are left out, so that older journals still read the same
        if not event.proposal.worth_usd:
            payload = payload.replace(',"worth_usd":[]', "")
        if event.proposal.usd_per_h is None:
            payload = payload.replace(',"usd_per_h":null', "")
        if event.proposal.holds_until_at is None:
            payload = payload.replace(',"holds_until_at":null', "")
    if isinstance(event, NodeJoined):
        if not event.machine:
            payload = payload.replace(',"machine":""', "")
        if not event.drained:
            payload = payload.replace(',"drained":false', "")
    return JournalRow(event.at, "event", type(event).__name__, payload)


def encode_command(at: float, command: Command) -> JournalRow:
    payload = _digest_of(command) if isinstance(command, _QUESTIONS) else dump_json(command)
    if isinstance(command, Start) and command.checkpoint_every_s is None:
        # An empty field is left out, so that journals from before it existed still read the same.
        payload = payload.replace(',"checkpoint_every_s":null', "")
    return JournalRow(at, "command", type(command).__name__, payload)


def decode_event(row: JournalRow) -> Event:
    """Returns the event of a row. Raises ValueError where the payload is not one."""
    told = json.loads(row.payload)
    if row.type == PolicyChanged.__name__:
        # Rules without these fields are of a release that planned no intervals, or counted no fetches, and are replayed
        # as that release decided.
        told["rules"].setdefault("plan_checkpoints", False)
        told["rules"].setdefault("count_fetches", False)
        told["rules"].setdefault("use_records", False)
        told["rules"].setdefault("weigh_intervals", False)
    event: Event = _ADAPTERS[_EVENTS[row.type]].validate_python(told)
    return event


def decode_command(row: JournalRow) -> Command | None:
    """Returns the command of a row; None for a question, of which only a digest is kept."""
    if row.type in (question.__name__ for question in _QUESTIONS):
        return None
    command: Command = _ADAPTERS[_COMMANDS[row.type]].validate_python(json.loads(row.payload))
    return command


def dump_json(value: Event | Command | JobRequest | ModelFacts | Pool) -> str:
    """Returns a value as it is stored."""
    return json.dumps(_ADAPTERS[type(value)].dump_python(value, mode="json"), separators=(",", ":"))


def parse_request(text: str) -> JobRequest:
    """Returns a stored request; those of releases before had kinds that all projects shared."""
    request: JobRequest = _ADAPTERS[JobRequest].validate_python(json.loads(text))
    return replace(request, kind=kind_within(request.project, request.kind))


def parse_facts(text: str) -> ModelFacts:
    facts: ModelFacts = _ADAPTERS[ModelFacts].validate_python(json.loads(text))
    return facts


#: How many jobs are encoded at once: meanwhile no other thread of the process runs.
_JOBS_IN_A_BITE = 200


def dump_state(state: StateRestored) -> str:
    """Returns JSON of the state: unchecked tuples, because it has tens of thousands of jobs and is written often."""
    values = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "jobs"}
    bites = (state.jobs[first : first + _JOBS_IN_A_BITE] for first in range(0, len(state.jobs), _JOBS_IN_A_BITE))
    jobs = ",".join(json.dumps(bite, separators=(",", ":"))[1:-1] for bite in bites)
    return f'{json.dumps(values, separators=(",", ":"))[:-1]},"jobs":[{jobs}]}}'


def parse_state(text: str) -> StateRestored:
    """Returns the state that `dump_state` wrote. Raises ValueError for any other text."""
    state: StateRestored = _ADAPTERS[StateRestored].validate_python(json.loads(text))
    return state


def parse_pool(text: str) -> Pool:
    pool: Pool = _ADAPTERS[Pool].validate_python(json.loads(text))
    return pool


def as_journaled(event: Event) -> Event:
    """Returns the event as a reader of the journal will see it (tuples inside free-form values become lists)."""
    return decode_event(encode_event(event))


def _digest_of(question: Solve | RankJobs) -> str:
    digest = hashlib.sha256()
    asked = tuple(getattr(question, field.name) for field in fields(question) if field.name != "request_id")
    _update_digest(digest, asked)
    return json.dumps({"request_id": question.request_id, "digest": digest.hexdigest()}, separators=(",", ":"))


#: Fields that problems got after journals were recorded; where they are empty or None, the digest leaves them out.
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
                continue  # an earlier version put the same question without this field
            _update_digest(digest, item)
    elif isinstance(value, Mapping):
        _update_digest(digest, sorted((str(key), item) for key, item in value.items()))
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _update_digest(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())


#: How many differences are kept whole; more are only counted.
_LISTED_DIFFERENCES = 20


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first command in which the replay of one event differs from the record."""

    event: JournalRow
    recorded: JournalRow | None
    replayed: JournalRow | None


@dataclass(slots=True)
class ReplayReport:
    events: int = 0
    commands: int = 0
    generations: int = 0
    #: How many commands of each type the journal has.
    command_types: dict[str, int] = field(default_factory=dict)
    #: How many events had other commands, and the first of them.
    different: int = 0
    differences: list[ReplayDifference] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.different == 0


def replay_journal(rows: Iterable[JournalRow]) -> ReplayReport:
    """Feed recorded events through fresh cores and compare the commands one by one.

    An event that a core cannot take (of a journal that was tampered with) counts as a difference and ends the replay.
    """
    report = ReplayReport()
    core: SchedulerCore | None = None
    for event_row, recorded in _grouped_by_event(rows):
        if core is None or event_row.kind == GENERATION:
            core = SchedulerCore()
            report.generations += 1
        if event_row.kind == GENERATION:
            continue
        event = decode_event(event_row)
        try:
            commands = core.handle(event)
        except (AssertionError, LookupError, ValueError):
            # Only a journal that this core did not write gets here, and later rows could not be compared.
            report.different += 1
            report.differences.append(ReplayDifference(event_row, recorded[0] if recorded else None, None))
            return report
        report.events += 1
        _compare(report, event_row, recorded, [encode_command(event.at, command) for command in commands])
    return report


def replay_folder(folder: Path) -> ReplayReport:
    """Replay the whole journal of a data folder (`walras admin check --replay`), even beside a running server."""
    return replay_journal(read_stored_journal(folder))


def read_run(folder: Path) -> Iterator[tuple[Event, list[Command]]]:
    """Yields the events of a data folder's journal, each with the core's commands except solves."""
    for event_row, recorded in _grouped_by_event(read_stored_journal(folder)):
        if event_row.kind != GENERATION:
            commands = map(decode_command, recorded)
            yield decode_event(event_row), [command for command in commands if command is not None]


def _grouped_by_event(rows: Iterable[JournalRow]) -> Iterator[tuple[JournalRow, list[JournalRow]]]:
    """Yields each event (or generation mark) with the commands recorded after it."""
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
    """Returns the scored beliefs in the journal of a data folder, even beside a running server."""
    return scored_journal(read_stored_journal(folder))


def scored_journal(rows: Iterable[JournalRow]) -> list[ScoredBelief]:
    """Returns the scored beliefs of all generations: a speed that one has measured, the next need not believe."""
    found: list[ScoredBelief] = []
    core = SchedulerCore()
    for row in rows:
        if row.kind == GENERATION:
            found += core.ledger.table.scored()
            core = SchedulerCore()
        elif row.kind != "command":
            core.handle(decode_event(row))
    return found + core.ledger.table.scored()
