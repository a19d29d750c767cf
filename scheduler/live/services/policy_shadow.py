"""A second policy beside the one in force: kept over restarts, run in a process of its own with a share of one core.

What is stored is the policy and the state of the core at the start, as events. Each run simulates both policies
(`run_shadow`) on all that the journal has recorded since, with what is known by then of how long jobs are. So nothing
of a run is kept between runs, and a restarted server continues where it was. The process ends with its run: a policy
that raises, hangs or exits there becomes the shadow's fault and disturbs nothing here.
"""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from optimizer.policy import PolicySpec
from scheduler.core.booking_events import BookingsDeclared
from scheduler.core.events import Event, MoneyRestated, PolicyChanged
from scheduler.core.restore_events import JobRestored, StateRestored
from scheduler.core.rules import RoundRules, dump_policy
from scheduler.core.share_events import SharesDeclared
from scheduler.core.state.throughput import NetworkTable, RestartCosts, ThroughputTable
from scheduler.forecast.core_copy import CoreSnapshot
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.recorded_period import WANTED_TYPES, PeriodReader
from scheduler.forecast.shadow_run import ShadowAnswer, run_shadow
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction
from scheduler.live.loop.worker_process import ask_worker_process
from scheduler.live.services.policy_service import PolicyService
from scheduler.live.services.start_forecasts import take_snapshot
from scheduler.live.store.event_journal import decode_command, decode_event, encode_event
from scheduler.live.store.store_interface import Store
from scheduler.live.store.table_rows import JournalRow, ShadowRow
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import Conflict, NotFound

log = logging.getLogger(__name__)

#: The share of one core that shadows may take in the long run; the least time between two runs, and the most processor
#: time of one, seconds.
SHADOW_CORE_SHARE, SHADOW_EVERY_S, SHADOW_CPU_S = 0.02, 60.0, 120.0
#: The nice value of the process.
_NICE = 15
#: The most rows of the journal that a run may read, and rows per piece.
_ROWS_MOST, _PIECE = 300_000, 200

#: Called in the transaction of a change, with the policy files before and after; None stands for no shadow.
NoteShadow = Callable[[Transaction, dict[str, Any] | None, dict[str, Any] | None], None]
AskProcess = Callable[[Callable[["ShadowQuestion"], ShadowAnswer], "ShadowQuestion", float], Awaitable[ShadowAnswer]]


@dataclass(frozen=True, slots=True)
class ShadowSetting:
    """The policy in the shadow, since when it is, and who started it. `body` is the stored text."""

    spec: PolicySpec
    rules: RoundRules
    since_at: float
    by: str
    body: str

    @property
    def written(self) -> dict[str, Any]:
        """The content of its policy file."""
        return dump_policy(self.spec, self.rules)


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """What the process gets: the stored setting, the core as it is now, and the journal in pieces of JSON."""

    body: str
    now: CoreSnapshot
    pieces: tuple[str, ...]
    past: PastJobs = field(default_factory=PastJobs)
    cpu_s: float = SHADOW_CPU_S


def answer_shadow(question: ShadowQuestion) -> ShadowAnswer:
    """Runs in the process: returns the outcome of both policies on what was recorded."""
    begin, policy = decode_beginning(question.body)
    reader = PeriodReader(begin)
    for piece in question.pieces:
        for values in json.loads(piece):
            row = JournalRow(*values)
            if row.kind == "command":
                command = decode_command(row)
                if command is not None:
                    reader.command(row.at, command)
            else:
                reader.event(decode_event(row))
    return run_shadow(reader.period(question.now.at), question.now, policy, question.past, question.cpu_s)


def answer_shadow_politely(question: ShadowQuestion) -> ShadowAnswer:
    """As `answer_shadow`, at a low priority, for a process of its own."""
    os.nice(_NICE)
    return answer_shadow(question)


def encode_beginning(snapshot: CoreSnapshot, spec: PolicySpec, rules: RoundRules, by: str) -> str:
    """Returns JSON of what a shadow begins with; speeds and costs are left out, since each run takes the newest."""
    told: Iterable[Event] = (
        snapshot.policy, snapshot.shares, BookingsDeclared(snapshot.at, snapshot.bookings), snapshot.money,
        *snapshot.fleet, snapshot.remembered, *snapshot.jobs,
    )  # fmt: skip
    rows = [encode_event(event) for event in told]
    body = {
        "at": snapshot.at,
        "by": by,
        "policy": encode_event(PolicyChanged(snapshot.at, spec, rules)).payload,
        "fleet": len(snapshot.fleet),
        "told": [[row.type, row.payload] for row in rows],
        "had_s": [[job_id, had_s] for job_id, had_s in snapshot.had_s.items()],
    }
    return json.dumps(body, separators=(",", ":"))


def decode_beginning(body: str) -> tuple[CoreSnapshot, tuple[PolicySpec, RoundRules]]:
    """Returns the snapshot, without speeds, and the policy. Raises ValueError for any other text."""
    stored = json.loads(body)
    at, many = stored["at"], stored["fleet"]
    told = [decode_event(JournalRow(at, "event", kind, payload)) for kind, payload in stored["told"]]
    policy, shares, booked, money, *rest = told
    remembered, *jobs = rest[many:]
    assert isinstance(policy, PolicyChanged)
    assert isinstance(shares, SharesDeclared)
    assert isinstance(booked, BookingsDeclared)
    assert isinstance(money, MoneyRestated)
    assert isinstance(remembered, StateRestored)
    had_s = dict(stored["had_s"])
    active = tuple(job for job in jobs if isinstance(job, JobRestored))
    tables = ThroughputTable(), RestartCosts(), NetworkTable()
    known = policy, shares, booked.bookings, money, tuple(rest[:many]), remembered, active
    snapshot = CoreSnapshot(at, *known, *tables, had_s, revocations_per_h={})
    wanted = decode_event(JournalRow(at, "event", PolicyChanged.__name__, stored["policy"]))
    assert isinstance(wanted, PolicyChanged)
    return snapshot, (wanted.policy, wanted.rules)


class PolicyShadow:
    """Starts, stops and runs the shadow. `stored` is the row of a shadow that was there when the server began."""

    def __init__(
        self,
        loop: ServerLoop,
        store: Store,
        policies: PolicyService,
        past: Callable[[], PastJobs],
        stored: ShadowRow | None = None,
        clocks: Clocks = SYSTEM_CLOCKS,
        ask: AskProcess = ask_worker_process,
    ) -> None:
        self._loop, self._store, self._policies = loop, store, policies
        self._past, self._clocks, self._ask = past, clocks, ask
        self.setting: ShadowSetting | None = None
        self.answer: ShadowAnswer | None = None
        #: Why the last run failed; empty: it did not.
        self.fault = ""
        self._is_starting = False
        if stored is not None and stored.body:
            self._take_up(stored.body)

    def _take_up(self, body: str) -> None:
        told = json.loads(body)
        try:
            policy = decode_event(JournalRow(told["at"], "event", PolicyChanged.__name__, told["policy"]))
            assert isinstance(policy, PolicyChanged)
        except (ValueError, KeyError, AssertionError):
            log.warning("the policy in the shadow was stored by another version and is not run", exc_info=True)
            return
        self.setting = ShadowSetting(policy.policy, policy.rules, told["at"], told["by"], body)

    # ------------------------------------------------------------------------------------------------ at people's wish

    async def start(self, data: Any, by: str, note: NoteShadow | None = None) -> None:
        """Start a shadow. Raises ConfigError for an invalid policy, Conflict where one is running already."""
        self._check_none_runs()
        if isinstance(data, dict) and "rules" not in data:
            in_force = self._policies.in_force
            data = data | {"rules": dump_policy(in_force.spec, in_force.rules)["rules"]}
        spec, rules = self._policies.check(data)
        self._is_starting = True
        try:
            snapshot = await take_snapshot(self._loop)
            body = await asyncio.get_running_loop().run_in_executor(None, encode_beginning, snapshot, spec, rules, by)
            setting = ShadowSetting(spec, rules, snapshot.at, by, body)
            await self._loop.perform(lambda transaction: self._put(transaction, setting, note))
        finally:
            self._is_starting = False

    async def stop(self, note: NoteShadow | None = None) -> None:
        """Stop the shadow. Raises NotFound where none is running."""
        if self.setting is None:
            raise NotFound("no policy is run in the shadow", fix="start one: walras policy shadow start NAME")
        await self._loop.perform(lambda transaction: self._put(transaction, None, note))

    def _check_none_runs(self) -> None:
        if self.setting is not None or self._is_starting:
            name = "another policy" if self.setting is None else f"'{self.setting.spec.name}'"
            raise Conflict(f"{name} is run in the shadow", fix="stop it first: walras policy shadow stop")

    def _put(self, transaction: Transaction, setting: ShadowSetting | None, note: NoteShadow | None) -> None:
        before = None if self.setting is None else self.setting.written
        if note is not None:
            note(transaction, before, None if setting is None else setting.written)
        transaction.batch.policy_shadow.append(ShadowRow("" if setting is None else setting.body))
        self.setting, self.answer, self.fault = setting, None, ""

    # ------------------------------------------------------------------------------------------------ kept fresh

    async def watch(self) -> None:
        """Run the shadow for ever, at most at its share of one core."""
        while True:
            await asyncio.sleep(SHADOW_EVERY_S)
            if self.setting is None or self.fault:
                continue
            began = self._clocks.monotonic()
            spent_s = await self.refresh()
            took_s = self._clocks.monotonic() - began
            await asyncio.sleep(max(0.0, spent_s / SHADOW_CORE_SHARE - took_s - SHADOW_EVERY_S))

    async def refresh(self) -> float:
        """Run once. Returns the processor time that it took, seconds."""
        setting = self.setting
        if setting is None:
            return 0.0
        await self._loop.settled()
        snapshot = await take_snapshot(self._loop)
        try:
            pieces = await asyncio.get_running_loop().run_in_executor(None, self._read, setting.since_at)
        except LookupError:
            self._fail(setting, "the journal of the beginning was deleted (keep.journal); stop it and start it anew")
            return 0.0
        if pieces is None:
            self._fail(setting, f"more than {_ROWS_MOST:,} things happened since; stop it and start it anew")
            return 0.0
        question = ShadowQuestion(setting.body, snapshot, pieces, self._past())
        try:
            answer = await self._ask(answer_shadow_politely, question, 30.0 + 4 * SHADOW_CPU_S)
        except TimeoutError:
            self._fail(setting, "the policy gave no answer in time")
            return SHADOW_CPU_S
        except BrokenProcessPool:
            self._fail(setting, "the process in which the policy ran has ended")
            return SHADOW_CPU_S
        except Exception as error:  # outermost handler of that process
            log.warning("policy in the shadow: no answer", exc_info=True)
            self._fail(setting, f"{type(error).__name__}: {error}"[:300])
            return 0.0
        if self.setting is setting:
            self.fault = answer.fault
            self.answer = None if answer.fault else answer
        return answer.cpu_s

    def _fail(self, setting: ShadowSetting, fault: str) -> None:
        if self.setting is setting:
            self.fault, self.answer = fault, None

    def _read(self, since_at: float) -> tuple[str, ...] | None:
        """Returns the journal since then, in pieces; None if it is too long. Blocks on the disk."""
        rows = self._store.journal_after(since_at, WANTED_TYPES, _ROWS_MOST + 1)
        pieces, count = [], 0
        while piece := list(islice(rows, _PIECE)):
            count += len(piece)
            pieces.append(json.dumps([[row.at, row.kind, row.type, row.payload] for row in piece]))
        return tuple(pieces) if count <= _ROWS_MOST else None
