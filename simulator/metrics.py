"""Metrics of a run, computed from events and commands alone, and from what the scheduler bills for rented machines.

`docs/simulator.md` defines the metrics. Memory is linear in active jobs, apart from what the sink keeps of ended ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan

from scheduler.core.commands import AttemptTransitioned, JobTransitioned
from scheduler.core.events import JobSubmitted, NodeJoined, NodeLost, PoolDeclared
from scheduler.world.engine import Engine
from walras.cluster import Market, NodeId, Placement, Pool, PoolId, usd_of
from walras.job_request import JobId
from walras.states import FINAL_ATTEMPT_STATES, FINAL_JOB_STATES, AttemptState, JobState, Reason


@dataclass(slots=True)
class JobMetrics:
    """The metrics of one job, from submission to end. Instants are nan for events that did not happen."""

    job_id: JobId
    kind: str
    project: str
    user: str
    submitted_at: float
    first_run_at: float = nan
    ended_at: float = nan
    state: JobState = JobState.PENDING
    reason: Reason | None = None
    attempts: int = 0
    preemptions: int = 0
    #: Attempts lost to infrastructure: neither the job nor the scheduler ended them.
    losses: int = 0
    #: Seconds with all ranks up, and seconds in which accelerators were held without (starting, saving), over all
    #: attempts.
    running_s: float = 0.0
    overhead_s: float = 0.0
    usd: float = 0.0
    #: Accelerator-seconds held, by accelerator type.
    accelerator_s: dict[str, float] = field(default_factory=dict)

    @property
    def jct_s(self) -> float:
        """Seconds from submission to end."""
        return self.ended_at - self.submitted_at

    @property
    def queueing_s(self) -> float:
        """Seconds from submission to the first instant at which all ranks were up."""
        return self.first_run_at - self.submitted_at


@dataclass(slots=True, eq=False)
class PoolMeter:
    """Time integrals of one pool."""

    pool: Pool
    machines: int = 0
    #: Accelerators held by attempts, and by attempts with all ranks up.
    held: int = 0
    running: int = 0
    settled_at: float = 0.0
    #: Accelerator-seconds that existed, that were held, and in which all ranks were up.
    there_s: float = 0.0
    held_s: float = 0.0
    running_s: float = 0.0
    #: Integrals of the market price of all machines, and of one accelerator, USD.
    usd: float = 0.0
    usd_per_accelerator: float = 0.0

    def settle(self, at: float) -> None:
        """Brings the integrals up to `at`."""
        passed_s = at - self.settled_at
        if passed_s <= 0.0:
            return
        self.settled_at = at
        shape = self.pool.shape
        self.there_s += passed_s * self.machines * shape.accelerators
        self.held_s += passed_s * self.held
        self.running_s += passed_s * self.running
        if self.pool.usd_per_h:
            price = usd_of(self.pool.usd_per_h, passed_s)
            self.usd += price * self.machines
            self.usd_per_accelerator += price / shape.accelerators


class _Holding:
    """The accelerators of a live attempt in one pool. The holding of its first pool records when it runs."""

    __slots__ = (
        "accelerator_s",
        "accelerators",
        "leased_at",
        "meter",
        "most_usd_per_h",
        "part",
        "placement",
        "ran_s",
        "running_at",
        "settled_at",
        "usd",
        "usd_before",
    )

    def __init__(
        self, placement: Placement, meter: PoolMeter, accelerators: int, at: float, most_usd_per_h: float
    ) -> None:
        self.placement = placement
        self.meter = meter
        self.accelerators = accelerators
        self.most_usd_per_h = most_usd_per_h
        self.leased_at = self.settled_at = at
        self.accelerator_s = 0.0
        self.usd = 0.0
        self.usd_before = meter.usd_per_accelerator
        #: Part of the price of its accelerators that the attempt pays: half, where two jobs agreed to share one.
        self.part = 1.0
        #: Instant since which all ranks are up; nan while they are not.
        self.running_at = nan
        self.ran_s = 0.0

    @property
    def is_running(self) -> bool:
        return self.running_at == self.running_at


#: Receives the metrics of each job when it has ended.
JobMetricsSink = Callable[[JobMetrics], None]

_LOSSES = frozenset({AttemptState.NODE_LOST, AttemptState.LEASE_EXPIRED, AttemptState.START_FAILED})


class MetricsCollector:
    """Computes the metrics of one run from its events and commands."""

    def __init__(
        self, engine: Engine, sink: JobMetricsSink, most_usd_per_h: Callable[[JobId], float] = lambda job_id: inf
    ) -> None:
        self.pools: dict[PoolId, PoolMeter] = {}
        #: Jobs that have not ended.
        self.open: dict[JobId, JobMetrics] = {}
        self.first_submitted_at = nan
        self.last_ended_at = nan
        self._sink = sink
        #: What each live attempt holds, by pool.
        self._holdings: dict[JobId, list[_Holding]] = {}
        #: Number of attempts on the same accelerators: two jobs may be co-located.
        self._sharers: dict[tuple[NodeId, tuple[int, ...]], int] = {}
        #: Jobs that agreed to share an accelerator.
        self._agreed: set[JobId] = set()
        self._pool_of: dict[NodeId, PoolId] = {}
        #: Returns the upper limit of a job's price per accelerator-hour of the rented machine it is given, USD.
        self._most_usd_per_h_of = most_usd_per_h
        self._engine = engine
        engine.on_event.update(
            {
                JobSubmitted: self._submitted,
                PoolDeclared: self._declared,
                NodeJoined: self._joined,
                NodeLost: self._lost,
            }
        )
        engine.on_command[AttemptTransitioned] = self._attempt
        self._on_state = {
            AttemptState.RUNNING: self._began_to_run,
            AttemptState.STOPPING: self._no_longer_running,
            **dict.fromkeys(FINAL_ATTEMPT_STATES, self._freed),
        }

    def settle(self, at: float) -> None:
        """Brings every pool up to `at`; called once, at the end."""
        for meter in self.pools.values():
            meter.settle(at)

    # -- the fleet

    def _declared(self, event: PoolDeclared) -> None:
        meter = self.pools.get(event.pool.pool_id)
        if meter is None:
            meter = self.pools[event.pool.pool_id] = PoolMeter(event.pool)
        meter.settle(event.at)
        meter.pool = event.pool

    def _joined(self, event: NodeJoined) -> None:
        self._pool_of[event.node_id] = event.pool_id
        meter = self.pools[event.pool_id]
        meter.settle(event.at)
        meter.machines += 1

    def _lost(self, event: NodeLost) -> None:
        meter = self.pools[self._pool_of.pop(event.node_id)]
        meter.settle(event.at)
        meter.machines -= 1
        for parts in self._holdings.values():
            for part in parts[0].placement.parts:
                if part.node_id == event.node_id:
                    there = next(each for each in parts if each.meter is meter)
                    self._charge(event.at, there)
                    self._shrink(there, len(part.devices), is_running=parts[0].is_running)

    def _shrink(self, there: _Holding, accelerators: int, *, is_running: bool) -> None:
        """Takes the accelerators of a lost machine out of a gang's holding."""
        there.accelerators -= accelerators
        there.meter.held -= accelerators
        if is_running:
            there.meter.running -= accelerators

    # -- jobs

    def _submitted(self, event: JobSubmitted) -> None:
        job = event.job
        if job.shared is not None:
            self._agreed.add(job.job_id)
        if not self.first_submitted_at <= event.at:
            self.first_submitted_at = event.at
        self.open[job.job_id] = JobMetrics(job.job_id, job.kind, job.project, job.user, event.at)

    def job(self, now: float, command: JobTransitioned) -> None:
        """Records a change of a job's state; the world calls this after its own part."""
        measure = self.open[command.job_id]
        state = command.state
        measure.state, measure.reason = state, command.reason
        if state in FINAL_JOB_STATES:
            measure.ended_at = self.last_ended_at = now
            del self.open[command.job_id]
            self._agreed.discard(command.job_id)
            self._sink(measure)

    def _attempt(self, now: float, command: AttemptTransitioned) -> None:
        if command.placement is not None:
            self._leased(now, command, command.placement)
            return
        parts, what = self._holdings.get(command.job_id), self._on_state.get(command.state)
        if parts is not None and what is not None:
            what(now, command, parts)

    def _leased(self, now: float, command: AttemptTransitioned, placement: Placement) -> None:
        assert command.job_id not in self._holdings, f"job {command.job_id} is granted two attempts at once"
        parts, most = list[_Holding](), self._most_usd_per_h_of(command.job_id)
        for pool_id, accelerators in placement.by_pool.items():
            meter = self.pools[pool_id]
            meter.settle(now)
            parts.append(_Holding(placement, meter, accelerators, now, most))
        self._holdings[command.job_id] = parts
        place = _placement_key(placement)
        sharers = self._sharers[place] = self._sharers.get(place, 0) + 1
        if sharers == 1:
            for there in parts:
                there.meter.held += there.accelerators
        self._split_price(now, place, sharers)
        self.open[command.job_id].attempts += 1

    def _split_price(self, now: float, place: tuple[NodeId, tuple[int, ...]], sharers: int) -> None:
        """Splits the price of one accelerator among the jobs that agreed to share it, from now on."""
        if not self._agreed or len(place[1]) != 1:
            return
        for job_id in self._agreed & self._holdings.keys():
            there = self._holdings[job_id][0]
            if _placement_key(there.placement) == place:
                self._charge(now, there)
                there.part = 1.0 / sharers

    def _began_to_run(self, now: float, command: AttemptTransitioned, parts: list[_Holding]) -> None:
        for there in parts:
            there.meter.settle(now)
            there.meter.running += there.accelerators
        parts[0].running_at = now
        measure = self.open[command.job_id]
        if measure.first_run_at != measure.first_run_at:
            measure.first_run_at = now

    def _no_longer_running(self, now: float, _: AttemptTransitioned, parts: list[_Holding]) -> None:
        holding = parts[0]
        if holding.is_running:
            for there in parts:
                there.meter.settle(now)
                there.meter.running -= there.accelerators
            holding.ran_s += now - holding.running_at
            holding.running_at = nan

    def _charge(self, now: float, holding: _Holding) -> None:
        """Brings an attempt's accelerator-seconds and cost up to now."""
        meter = holding.meter
        meter.settle(now)
        holding.accelerator_s += holding.accelerators * (now - holding.settled_at)
        holding.settled_at = now
        holding.usd += holding.part * holding.accelerators * (meter.usd_per_accelerator - holding.usd_before)
        holding.usd_before = meter.usd_per_accelerator

    def _freed(self, now: float, command: AttemptTransitioned, parts: list[_Holding]) -> None:
        self._no_longer_running(now, command, parts)
        del self._holdings[command.job_id]
        holding = parts[0]
        measure, place = self.open[command.job_id], _placement_key(holding.placement)
        others = self._sharers.pop(place) - 1
        if others:
            self._sharers[place] = others
            self._split_price(now, place, others)
        measure.running_s += holding.ran_s
        measure.overhead_s += now - holding.leased_at - holding.ran_s
        for there in parts:
            self._charge(now, there)
            if not others:
                there.meter.held -= there.accelerators
            usd = there.usd
            if there.most_usd_per_h < inf and there.meter.pool.market is not Market.OWNED:
                usd = min(usd, usd_of(there.most_usd_per_h, there.accelerator_s))
            measure.usd += usd
            accelerator = there.meter.pool.shape.accelerator
            measure.accelerator_s[accelerator] = measure.accelerator_s.get(accelerator, 0.0) + there.accelerator_s
        if command.state in _LOSSES:
            measure.losses += 1
        elif command.state is AttemptState.PREEMPTED:
            lost = command.reason is not None and command.reason.is_infrastructure
            measure.losses += lost
            measure.preemptions += not lost


def _placement_key(placement: Placement) -> tuple[NodeId, tuple[int, ...]]:
    """Identifies a placement by its first part: co-located jobs share all their accelerators."""
    part = placement.parts[0]
    return part.node_id, part.devices
