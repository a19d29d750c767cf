"""Builds the answers of the API from rows and the live state. It only reads; only here do instants become text.

The order of the queue, which the overview, the page, `walras top` and `GET /jobs?sort=queue` all show.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from optimizer.prediction.loss_curve import LEAST_POINTS, TargetForecast
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.slow_pools import slow_machine_text
from scheduler.core.explain.job_conditions import PoolSpeed
from scheduler.core.explain.pending_reasons import dominant_reason, first_pending_reason
from scheduler.core.explain.share_standing import realised_fraction
from scheduler.core.placement.checkpoint_intervals import checkpoint_text
from scheduler.core.rules import changed_rules
from scheduler.core.state.ledger import JobRecord
from scheduler.live.loop import billing
from scheduler.live.loop.departures import departure_text
from scheduler.live.loop.event_loop import Clock, CooperativeYield, ServerLoop
from scheduler.live.loop.live_state import LEASE_MARGIN_S, JobTarget, LiveJob, LiveNode, LiveState, parse_target
from scheduler.live.services.job_submission import parse_defaults, value_owner
from scheduler.live.store.store_interface import JobQuery, JobUsage
from scheduler.live.store.table_rows import AttemptRow, CheckpointRow, JobRow, PolicyRow
from walras.cluster import Pool, PoolId
from walras.contract import DATA_WAIT_VALUE
from walras.job_request import JobId
from walras.resources.fleet import NodeView
from walras.resources.jobs import (
    WARM_REPORTS,
    AttemptView,
    CheckpointView,
    ConditionView,
    ForecastView,
    JobDetail,
    JobView,
    ReasonView,
    SpeedView,
    TargetOutlook,
    TargetView,
    planned_speed,
)
from walras.resources.overview import PolicyView
from walras.resources.people import EntityPriceView
from walras.resources.prices import CertificateView, PriceList, PriceView
from walras.states import JobState, Reason
from walras.units import format_count, format_length

#: Samples of devices are shown for this long, seconds; agents send them every ten.
_DEVICES_SHOWN_S = 60.0
#: From this share of its steps on, a job is said to wait for its data.
_WAITS_LEAST = 0.15
_LOOK = "look at `walras logs {job_id}`"
#: What people can do about an end, by its reason.
_END_FIXES = {
    Reason.USER_EXIT_CODE: f"{_LOOK}; `retry.max_restarts` would have it tried again",
    Reason.USER_SIGNAL: f"{_LOOK}; where it ran out of memory, ask for more `resources.memory`",
    Reason.USER_DEPENDENCY_FAILED: "look at the job it depended on, or depend with `condition: finished`",
    Reason.POLICY_MAX_RUNTIME: "raise `limits.max_runtime`, or submit it again to go on from its last checkpoint",
    Reason.POLICY_MAX_QUEUE_TIME: "raise `limits.max_queue_time`, or its priority",
}


ViewT = TypeVar("ViewT", bound=BaseModel)


def view_of(view: type[ViewT], source: Any, /, **fields: Any) -> ViewT:
    """Returns a view with these fields; the others come from attributes of the source that have the same name. Instants
    never do, because rows count them from the cluster's epoch.
    """
    same = {name: getattr(source, name) for name in _same_names(view, source.__class__) if name not in fields}
    return view(**same, **fields)


@cache
def _same_names(view: Any, source: Any) -> tuple[str, ...]:
    known = {each.name for each in fields_of(source)} if is_dataclass(source) else set()
    return tuple(name for name in view.model_fields if name in known and not name.endswith("_at"))


def _private_text(node: LiveNode) -> str:
    """Returns why the machine is private; empty where it shares what its jobs save."""
    return f"private: {node.private_why or 'it does not reach the store of checkpoints'}" if node.row.private else ""


class ApiViews:
    """Builds views from rows, the clock, and the live state and the core for what is newer than the rows."""

    def __init__(
        self, clock: Clock, loop: ServerLoop, forecast: Callable[[JobId], ForecastView | None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._forecast = forecast
        self._loop = loop

    @property
    def _state(self) -> LiveState:
        return self._loop.state

    # ---------------------------------------------------------------- jobs

    async def jobs(
        self, rows: Iterable[JobRow], usage: Iterable[JobUsage], sweeps: Mapping[JobId, dict[str, int]] | None = None
    ) -> list[JobView]:
        """Returns views of many jobs, yielding between them. `sweeps`: state counts where one job is its sweep's."""
        by_job: dict[JobId, list[JobUsage]] = {}
        for used in usage:
            by_job.setdefault(used.job_id, []).append(used)
        found, cooperative = [], CooperativeYield()
        for row in rows:
            folded = {} if row.sweep is None or sweeps is None else sweeps.get(row.sweep, {})
            found.append(view_of(JobView, row, **self._job(row, by_job.get(row.job_id, [])), sweep_states=folded))
            await cooperative.yield_if_due()
        return found

    def detail(
        self,
        row: JobRow,
        usage: Iterable[JobUsage],
        spec: dict[str, Any],
        attempts: Iterable[AttemptRow],
        checkpoint: CheckpointRow | None = None,
    ) -> JobDetail:
        views, ledger = [self.attempt(attempt) for attempt in attempts], self._loop.core.ledger
        known = ledger.jobs.get(row.job_id)
        value, said_by = (None, "") if known is None else ledger.policy.rules.value_of(known.request)
        by = value_owner(said_by, parse_defaults(row.defaults))
        former = row.incarnation if row.incarnation != self._state.identity.incarnation else ""
        return view_of(
            JobDetail, row, **self._job(row, list(usage)), why=self._shown_why(row), spec=spec, incarnation=former,
            target=self.target(row), attempt_list=views, value_usd_per_h=value, value_by=by,
            checkpoint=self._checkpoint(checkpoint), **self._checkpoints(row.job_id),
        )  # fmt: skip

    def why(self, row: JobRow) -> str:
        """Returns a sentence: why the job waits; what became of one that is over; why a running one has its plan."""
        if row.state.is_final:
            return row.detail
        return dominant_reason(self._loop.core, row.job_id, self._state.expected_machines)

    def _shown_why(self, row: JobRow) -> str:
        return self.why(row) or "; ".join(each.detail for each in self.idle(row))

    def _checkpoint(self, row: CheckpointRow | None) -> CheckpointView | None:
        if row is None:
            return None
        return view_of(CheckpointView, row, recorded_at=self._clock.shown(row.recorded_at), stored=bool(row.content))

    def _checkpoints(self, job_id: JobId) -> dict[str, Any]:
        """Returns how often its running attempt saves, and why; nothing without a running attempt."""
        known, live = self._loop.core.ledger.jobs.get(job_id), self._state.jobs.get(job_id)
        if known is None or live is None or not known.holds:
            return {}
        detail = "as its script states" if live.states_interval else checkpoint_text(self._loop.core.ledger, known)
        every_s = None if live.states_interval else known.checkpoint_every_s
        return {"checkpoint_every_s": every_s, "checkpoint_detail": detail}

    def target(self, row: JobRow) -> TargetView | None:
        """Returns how far the job is from its target; None where it has none."""
        live = self._state.jobs.get(row.job_id)
        target = parse_target(row.target) if live is None else live.target
        if target is None:
            return None
        done = row.steps if live is None or live.progress is None else max(row.steps, live.progress.steps)
        speed = None if live is None else _current_speed(live)
        reported = tuple(json.loads(row.last_values if live is None else live.row.last_values))
        view = view_target(target, TargetProgress(done, row.steps_total, speed, reported, is_over=live is None))
        if view.left_s is None:
            return view
        return view.model_copy(update={"expected_at": self._clock.shown(self._clock.now() + view.left_s)})

    def _job(self, row: JobRow, usage: list[JobUsage]) -> dict[str, Any]:
        """Returns what a view does not take from the row as it is."""
        live = self._state.jobs.get(row.job_id)
        progress = live.progress if live is not None else None
        attempt = live.attempt if live is not None else None
        reason, detail = self._why(row)
        return {
            "id": row.job_id,
            "reason": reason,
            "detail": detail,
            "pool": attempt.row.pool_id if attempt is not None else None,
            "accelerator": attempt.row.accelerator if attempt is not None else None,
            "steps": row.steps if progress is None else max(row.steps, progress.steps),
            # For an active job, the speed of its running attempt, and not that of an earlier one.
            "steps_per_s": row.steps_per_s if live is None else _current_speed(live),
            "submitted_at": self._clock.shown(row.submitted_at),
            "started_at": self._clock.shown_or_none(row.started_at),
            "ended_at": self._clock.shown_or_none(row.ended_at),
            "accelerator_s": {used.accelerator: used.accelerator_s for used in usage},
            "usd": sum(used.usd for used in usage),
            "first_values": json.loads(row.first_values if live is None else live.row.first_values),
            "last_values": json.loads(row.last_values if live is None else live.row.last_values),
            "labels": json.loads(row.labels),
            "forecast": None if row.state.is_final else self._forecast(row.job_id),
            "defaults": parse_defaults(row.defaults),
        }

    def _why(self, row: JobRow) -> tuple[Reason | None, str]:
        """Returns reason and detail: for a waiting job those that hold now, else those in its row."""
        if row.state is not JobState.PENDING:
            return row.reason, row.detail
        line = first_pending_reason(self._loop.core, row.job_id, self._state.expected_machines)
        if line is None:
            return row.reason, row.detail
        told = (row.detail, line.detail) if line.reason is row.reason else (line.detail,)
        return line.reason, "; ".join(filter(None, told))

    def ending(self, row: JobRow) -> list[ReasonView]:
        """Returns why a job ended as it did, and what may be done about it."""
        if row.reason is None:
            return []
        fix = _END_FIXES.get(row.reason, "").format(job_id=row.job_id)
        return [ReasonView(reason=row.reason, detail=row.detail, fix=fix)]

    def attempt(self, row: AttemptRow) -> AttemptView:
        now = self._clock.now()
        return view_of(
            AttemptView,
            row,
            pool=row.pool_id,
            placement=placement_text(row.placement),
            leased_at=self._clock.shown(row.leased_at),
            started_at=self._clock.shown_or_none(row.started_at),
            ended_at=self._clock.shown_or_none(row.ended_at),
            accelerator_s=billing.accelerator_s(row, now),
            usd=billing.attempt_usd(row, now),
        )

    # ---------------------------------------------------------------- machines and prices

    def nodes(self) -> list[NodeView]:
        return [self._node(node) for _, node in sorted(self._state.nodes.items())]

    def _node(self, node: LiveNode) -> NodeView:
        pool = self._state.pools.get(node.row.pool_id)
        return NodeView(
            node_id=node.row.node_id,
            machine=node.facts.machine,
            pool=node.row.pool_id,
            accelerator=node.facts.accelerator,
            emulated=node.facts.emulated,
            market=node.facts.market,
            zone=pool.zone if pool is not None else node.facts.zone,
            state=node.shown_state,
            detail=self._detail(node),
            accelerators=node.facts.accelerators,
            free=self._free(node),
            jobs=sorted({job_id for job_id, _ in node.expected}),
            last_heard_s=max(0.0, self._clock.now() - node.heard_at),
            version=node.row.version,
            boot=node.row.boot_id,
            protocol=node.protocol,
            problem=node.problem,
            private=node.row.private,
            tools=None if node.tools is None else sorted(node.tools),
            devices=list(node.devices) if self._clock.now() - node.devices_at <= _DEVICES_SHOWN_S else [],
        )

    def _detail(self, node: LiveNode) -> str:
        """Returns what is most important to know of the machine, in words."""
        told = node.problem or departure_text(node) or self._silence(node) or self._booked(node) or _private_text(node)
        return told or slow_machine_text(self._loop.core.ledger, node.row.node_id)

    def _booked(self, node: LiveNode) -> str:
        """Returns the reservation that has the machine now, or will have it next; empty without one."""
        bookings = self._loop.core.cycle.bookings.declared
        found = [each for each in bookings if node.row.node_id in each.node_ids]
        if not found:
            return ""
        first = min(found, key=lambda booking: booking.from_at)
        begins = "" if first.is_active(self._clock.now()) else f"from {self._clock.in_words(first.from_at)} "
        return f"{first.words} {begins}until {self._clock.in_words(first.until_at)}"

    def _silence(self, node: LiveNode) -> str:
        """Returns what will happen to an unreachable machine, and when; empty for others."""
        if node.row.state != "unreachable":
            return ""
        if (
            node.has_told or not node.must_meet
        ) and self._clock.now() - node.heard_at <= self._loop.settings.unreachable_s:
            return "waits until every machine has said what it runs, as the database was restored"
        left_s = max(0.0, node.leased_until + LEASE_MARGIN_S - self._clock.now())
        return f"no heartbeat; lost in {left_s:.0f} s unless it comes back"

    def _free(self, node: LiveNode) -> int:
        """Returns its free accelerators; 0 on a machine that takes no jobs."""
        if not node.takes_jobs:
            return 0
        return node.facts.accelerators - len(self._state.devices_held(node))

    def prices(self) -> PriceList:
        proposal = self._state.proposal
        items = [self._price(name, pool, members) for name, pool, members in self._priced_machines()]
        certificate = None
        if proposal is not None:
            certificate = view_of(
                CertificateView,
                proposal,
                solved_at=self._clock.shown(self._state.solved_at),
                realised=realised_fraction(self._loop.core.ledger),
            )
        rights = () if proposal is None else proposal.entity_prices
        entities = [EntityPriceView(name=name, limit=limit, guarantee=kept) for name, limit, kept in rights]
        return PriceList(items=items, certificate=certificate, entities=entities)

    def _priced_machines(self) -> list[tuple[PoolId, Pool, list[LiveNode]]]:
        """Returns pools by name with their machines; those that are slow, and priced apart, follow the others."""
        found: dict[tuple[PoolId, PoolId], list[LiveNode]] = {(name, name): [] for name in self._state.pools}
        fleet = self._loop.core.ledger.fleet
        for node in self._state.nodes.values():
            if node.is_member and node.row.pool_id in self._state.pools:
                machine = fleet.machine(node.row.node_id)
                name = node.row.pool_id if machine is None else fleet.pools[machine.pool].name
                found.setdefault((node.row.pool_id, name), []).append(node)
        return [(name, self._state.pools[pool_id], nodes) for (pool_id, name), nodes in sorted(found.items())]

    def _price(self, name: PoolId, pool: Pool, members: list[LiveNode]) -> PriceView:
        proposal = self._state.proposal
        pools = () if proposal is None else proposal.pools
        row = pools.index(name) if name in pools else len(pools)
        prices, marginal = ((), ()) if proposal is None else (proposal.prices, proposal.marginal)
        return PriceView(
            pool=name,
            accelerator=pool.shape.accelerator,
            market=pool.market,
            capacity=float(sum(node.facts.accelerators for node in members if node.takes_jobs)),
            free=float(sum(map(self._free, members))),
            price=prices[row] if row < len(prices) else 0.0,
            unit="" if proposal is None else proposal.price_unit,
            market_usd_per_h=pool.usd_per_h,
            rented_machines=sum(bool(node.row.rent_token) for node in members),
            quota_machines=pool.quota,
            marginal_job=marginal[row] if row < len(marginal) else 0,
        )

    def pool_speed(self, told: PoolSpeed) -> SpeedView:
        speed = told.speed
        return view_of(
            SpeedView,
            speed,
            pool=told.pool_id,
            accelerator=told.accelerator,
            accelerators=told.accelerators,
            source=speed.source.name.lower(),
            by=list(speed.by),
        )

    def stalls(self, row: JobRow) -> list[ConditionView]:
        """Returns a condition where a running job waits for its data in a considerable share of its steps."""
        live = self._state.jobs.get(row.job_id)
        values = json.loads(row.last_values if live is None else live.row.last_values)
        share = values.get(DATA_WAIT_VALUE)
        if row.state is not JobState.RUNNING or share is None or not _WAITS_LEAST <= share <= 1.0:
            return []
        most = f"no accelerator could make it more than {1 / share:.1f} times as fast"
        detail = f"{share:.0%} of its step it waits for its data: {most}; more loader workers or faster storage might"
        return [ConditionView(type="waits_for_data", detail=detail)]

    def idle(self, row: JobRow) -> list[ConditionView]:
        """Returns a condition where a running job does not use its accelerators, by the cluster file's rule."""
        live = self._state.jobs.get(row.job_id)
        told = "" if live is None or live.attempt is None else live.attempt.idle_detail
        return [ConditionView(type="idle", detail=told)] if told else []

    def off_plan(self, row: JobRow, spec: Mapping[str, Any]) -> list[ConditionView]:
        """Returns a condition where a planned job runs otherwise than planned, once its speed has settled."""
        live = self._state.jobs.get(row.job_id)
        if row.state is not JobState.RUNNING or live is None or live.progress is None:
            return []
        if live.progress.samples < WARM_REPORTS:
            return []
        found = planned_speed(spec, live.progress.steps_per_s, json.loads(live.row.last_values))
        if found is None or not found.differs:
            return []
        fix = f"`walras cloud recommend --job {row.job_id}` plans again with what was measured"
        return [ConditionView(type="off_plan", detail=f"{found.text}; {fix}")]

    # ---------------------------------------------------------------- policy

    def policy(self, row: PolicyRow, written: Mapping[str, Any]) -> PolicyView:
        """Returns the view of a policy: its file's content (`dump_policy`), reason, and place in the history."""
        return PolicyView(
            version=row.version,
            name=written["policy"]["name"],
            parameters=written["policy"]["parameters"],
            rules=written["rules"],
            changed_rules=changed_rules(written["rules"]),
            put_back=written.get("put_back", ""),
            reason=written.get("reason", ""),
            changed_at=self._clock.shown(row.changed_at),
            changed_by=row.changed_by,
        )


def _current_speed(job: LiveJob) -> float | None:
    return None if job.attempt is None or job.progress is None else job.progress.steps_per_s


def placement_text(placement: str) -> list[str]:
    """Returns "node:0,1" for every machine, from the stored placement."""
    parts = json.loads(placement)
    return [f"{node_id}:{','.join(str(device) for device in devices)}" for node_id, devices, *_ in parts]


# ------------------------------------------------------------------------------------------ targets


TARGET_LATE, TARGET_OUT_OF_REACH = "target_late", "target_out_of_reach"
#: How many other values are named where the target's own was never reported.
_NAMED_MOST = 5


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """A job's progress."""

    steps: float
    #: The steps that it is to do; None: it does not state any.
    declared: float | None
    #: Of its running attempt; None without one.
    steps_per_s: float | None
    #: Names of all values that it has reported.
    reported: tuple[str, ...]
    is_over: bool = False

    def left_s(self, until: float | None) -> float | None:
        """Returns seconds until that step at the present speed; None where there is no speed."""
        if until is None or not self.steps_per_s or self.is_over:
            return None
        return max(0.0, until - self.steps) / self.steps_per_s


def view_target(target: JobTarget, standing: TargetProgress) -> TargetView:
    """Returns the view of the API, except for the expected instant."""
    series = target.series
    foreseen = None if series.reached_step is not None or standing.is_over else target.forecast
    outlook, told = _outlook_and_text(target, standing, foreseen)
    expected = None if foreseen is None else foreseen.steps
    return TargetView(
        value=target.value,
        at_most=target.at_most,
        outlook=outlook,
        detail=told,
        newest=series.newest,
        newest_step=None if series.newest is None else series.newest_step,
        reached_step=series.reached_step,
        steps_expected=expected,
        steps_declared=standing.declared,
        left_s=None if target.is_overdue else standing.left_s(expected),
        levels_off_at=None if foreseen is None else foreseen.floor,
        points=len(series.points),
        foreseen_at_step=None if foreseen is None else foreseen.at_step,
    )


def target_conditions(view: TargetView) -> list[ConditionView]:
    """Returns the conditions that people should know of: that the target is late or out of reach, or none."""
    kinds = {TargetOutlook.LATE: TARGET_LATE, TargetOutlook.OUT_OF_REACH: TARGET_OUT_OF_REACH}
    return [ConditionView(type=kinds[view.outlook], detail=view.detail)] if view.outlook in kinds else []


def _outlook_and_text(
    target: JobTarget, standing: TargetProgress, foreseen: TargetForecast | None
) -> tuple[TargetOutlook, str]:
    series, name, aim = target.series, target.value, f"{target.at_most:.4g}"
    if series.newest is None:
        return TargetOutlook.UNKNOWN, f"target {aim}: {_no_value_text(name, standing)}"
    now = f"{name} {series.newest:.4g} at step {_count_text(series.newest_step)}, target {aim}"
    if series.reached_step is not None:
        return TargetOutlook.REACHED, f"{now}: was there at step {_count_text(series.reached_step)}"
    if standing.is_over:
        return TargetOutlook.UNKNOWN, f"{now}: ended before it was there"
    if foreseen is None:
        many = len(series.points)
        few = f"{many} values are too few to tell when, {LEAST_POINTS} are needed"
        return TargetOutlook.UNKNOWN, f"{now}: {few if many < LEAST_POINTS else 'not worked out yet'}"
    if foreseen.floor is None:
        return TargetOutlook.UNKNOWN, f"{now}: nobody can tell when, as {foreseen.why_not}"
    if target.is_overdue and foreseen.steps is not None:
        return (
            TargetOutlook.UNCLEAR,
            f"{now}: was expected at step {_count_text(foreseen.steps)}; worked out again soon",
        )
    outlook, rest = _outlook_by_curve(foreseen, foreseen.floor, standing)
    return outlook, f"{now}: {rest}"


def _outlook_by_curve(foreseen: TargetForecast, floor: float, standing: TargetProgress) -> tuple[TargetOutlook, str]:
    declared = None if standing.declared is None else _count_text(standing.declared)
    levels = f"level off at {floor:.4g}, above the target"
    if foreseen.is_out_of_reach:
        return TargetOutlook.OUT_OF_REACH, f"its curve will {levels}"
    if foreseen.steps is None and foreseen.is_late:
        return TargetOutlook.LATE, f"not within the {declared} steps that it declares; it may {levels}"
    if foreseen.steps is None:
        return TargetOutlook.UNCLEAR, f"it may {levels}, but it is too early to tell"
    expected = f"expected at step {_count_text(foreseen.steps)}"
    if foreseen.is_late:
        return TargetOutlook.LATE, f"{expected}, after the {declared} that it declares{_time_left(foreseen, standing)}"
    if standing.declared is not None and foreseen.steps > standing.declared:
        told = f"{expected}, after the {declared} that it declares, but it is too early to be sure"
        return TargetOutlook.UNCLEAR, f"{told}{_time_left(foreseen, standing)}"
    of_all = "" if declared is None else f" of {declared}"
    return TargetOutlook.EXPECTED, f"{expected}{of_all}{_time_left(foreseen, standing)}"


def _time_left(foreseen: TargetForecast, standing: TargetProgress) -> str:
    left_s = standing.left_s(foreseen.steps)
    return "" if left_s is None else f" (in {format_length(left_s)} at {standing.steps_per_s:.3g} steps/s)"


def _no_value_text(name: str, standing: TargetProgress) -> str:
    """Returns that no value of that name was reported, with the names that were."""
    told = f"no value {name!r} was reported yet; the script tells it with `loop.report`"
    others = [other[:64] for other in standing.reported if other != name][:_NAMED_MOST]
    return f"{told}, and tells {', '.join(others)}" if others else told


def _count_text(steps: float) -> str:
    return format_count(round(steps))


#: The word that sorts a listing so.
QUEUE_ORDER = "queue"


async def order_of_queue(
    core: SchedulerCore, most: int, chooses: Callable[[JobRecord], bool] = lambda _: True
) -> tuple[JobId, ...]:
    """Returns the first `most` chosen jobs in the queue's order, those that are held last."""
    first: list[JobId] = []
    async for job_id in _in_turn(core, _waiting(core, chooses)):
        if len(first) >= most:
            break
        first.append(job_id)
    return tuple(first)


async def jobs_in_turn(core: SchedulerCore, jobs: Mapping[JobId, LiveJob], query: JobQuery) -> list[JobRow]:
    """Returns the active jobs of a query in the order of the queue, and behind them those that hold places by number.

    With `fold_sweeps` the first job of a sweep stands for all of it.
    """
    chosen = {job_id: live.row for job_id, live in jobs.items() if _is_chosen(live.row, query)}
    waiting = _waiting(core, lambda job: job.job_id in chosen)
    found: dict[JobId, JobRow] = {}

    def is_full_with(job_id: JobId) -> bool:
        row = chosen[job_id]
        found.setdefault(row.sweep if query.fold_sweeps and row.sweep is not None else job_id, row)
        return len(found) >= query.limit

    async for job_id in _in_turn(core, waiting):
        if is_full_with(job_id):
            return list(found.values())
    for job_id in sorted(chosen.keys() - waiting.keys()):
        if is_full_with(job_id):
            break
    return list(found.values())


def _waiting(core: SchedulerCore, chooses: Callable[[JobRecord], bool]) -> dict[JobId, JobRecord]:
    states = (JobState.PENDING, JobState.HELD)
    return {job_id: job for job_id, job in core.ledger.jobs.items() if job.state in states and chooses(job)}


async def _in_turn(core: SchedulerCore, waiting: Mapping[JobId, JobRecord]) -> AsyncIterator[JobId]:
    """Yields these jobs in order, each once. The server runs between pieces of a long queue.

    First come jobs in queues, by their most urgent key in any pool; a job that fits may still start out of turn
    (backfill). Behind them come jobs that cannot start even in a free place: they wait for other jobs, for an instant,
    for a preemption, or are held. Nothing of the core is changed.
    """
    cooperative, seen = CooperativeYield(), set[JobId]()
    for job_id in core.cycle.queues.in_order(len(core.ledger.jobs)):
        if job_id in waiting:
            seen.add(job_id)
            yield job_id
        await cooperative.yield_if_due()
    # Of jobs in no queue, those that may start soonest come first, and held ones last.
    for job in sorted(
        (job for job_id, job in waiting.items() if job_id not in seen),
        key=lambda job: (job.state is JobState.HELD, bool(job.blocked_by), job.ready_at, job.job_id),
    ):
        yield job.job_id


def _is_chosen(row: JobRow, query: JobQuery) -> bool:
    return (
        (not query.states or row.state in query.states)
        and (query.projects is None or row.project in query.projects)
        and (not query.project or row.project == query.project)
        and (not query.user or row.user == query.user)
        and (query.sweep is None or row.sweep == query.sweep)
        and query.name_part.lower() in row.name.lower()
    )
