"""A journal through a fresh core: do the same events give the same commands?

It is how a recorded run is audited and how a changed decision shows itself. A *generation* is a stretch of the journal
that begins with a fresh core: every start of a server begins one (`restart.py`), and each replays on its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.live.records.journal import GENERATION, decode_command, decode_event, encode_command
from scheduler.live.records.rows import JournalRow
from scheduler.live.records.sqlite_store import read_journal

#: Differences told in full; more are only counted.
_TOLD = 20


class Core(Protocol):
    """What turns events into commands."""

    def handle(self, event: Event) -> list[Command]: ...


@dataclass(frozen=True, slots=True)
class Difference:
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
    differences: list[Difference] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.different == 0


def replay(
    rows: Iterable[JournalRow],
    make_core: Callable[[], Core] = SchedulerCore,
) -> ReplayReport:
    """Feed recorded events through fresh cores and compare the commands one to one.

    Events that a core cannot take (a journal that was tampered with) count as differences and end the replay.
    """
    report = ReplayReport()
    core: Core | None = None
    for event_row, recorded in _grouped(rows):
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
            report.differences.append(Difference(event_row, recorded[0] if recorded else None, None))
            return report
        report.events += 1
        _compare(report, event_row, recorded, [encode_command(event.at, command) for command in commands])
    return report


def replay_folder(folder: Path) -> ReplayReport:
    """Replay the whole journal of a data folder (`walras admin replay`); a running server is not disturbed."""
    return replay(read_journal(folder))


def read_run(folder: Path) -> Iterator[tuple[Event, list[Command]]]:
    """The events of a data folder's journal, each with what was commanded (solves left out), for whoever studies it."""
    for event_row, recorded in _grouped(read_journal(folder)):
        if event_row.kind != GENERATION:
            commands = map(decode_command, recorded)
            yield decode_event(event_row), [command for command in commands if command is not None]


def _grouped(rows: Iterable[JournalRow]) -> Iterator[tuple[JournalRow, list[JournalRow]]]:
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
    if len(report.differences) >= _TOLD:
        return
    for index in range(max(len(recorded), len(replayed))):
        old = recorded[index] if index < len(recorded) else None
        new = replayed[index] if index < len(replayed) else None
        if old != new:
            report.differences.append(Difference(event, old, new))
            return
