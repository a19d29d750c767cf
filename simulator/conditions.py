"""Files of conditions: costs, noise, faults, markets and solver time of a simulated run, and the scheduler's knowledge.

A file of conditions may be combined with any workload and cluster. What it leaves out stays as without a file: no
noise, no faults, no costs, known speeds and lengths. Costs that a recorded run measured override the costs given here.
The models come first, one for each section of the file with its units and bounds; then `Conditions`, the file itself,
which applies these conditions to a `Scenario`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scheduler.core.speed_events import FactsTold
from scheduler.world.attempts import AttemptCosts, WorldParameters
from scheduler.world.engine import RunLimits, SolveClock, SolveTime
from scheduler.world.machines import PoolModel
from simulator.faults import FaultModel, Incident, MarketChange, NodeDeath, NodeSlowdown, PoolRevocation, SlowPeriods
from simulator.ground_truth import GroundTruth, LengthEstimates, PredictionSettings, RandomFailures
from simulator.simulation import Scenario
from walras.cluster import Market, PoolId, checked_lifetime
from walras.errors import ConfigError
from walras.job_request import Kind
from walras.spec.field_types import Length, Number, PositiveLength, ShownName, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel, nearest_or_all
from walras.spec.job_groups import FactsSpec
from walras.units import parse_length

_Noise = Annotated[Number, Field(ge=0, le=3)]
_Every = PositiveLength | None
_Part = Annotated[Number, Field(ge=0, le=1)]
_Pace = Annotated[Number, Field(gt=0, le=1)]
_Count = Annotated[WholeNumber, Field(ge=0, le=100_000)]


def _interval(value: object) -> float | None:
    return None if value == "planned" else parse_length(value)


class CostConditions(FileModel):
    """Times in the life of an attempt besides its steps, for every kind without its own entry."""

    start: Length = 0.0
    warm_up: Length = 0.0
    #: None: jobs cannot checkpoint.
    checkpoint: Length | None = 0.0
    #: `planned`: as the scheduler plans.
    checkpoint_every: Annotated[float | None, BeforeValidator(_interval)] = 0.0
    exit: Length = 0.0
    migrate: Length = 0.0

    def costs(self) -> AttemptCosts:
        """Returns the costs for the simulated world."""
        return AttemptCosts(self.start, self.checkpoint, self.checkpoint_every, self.warm_up, self.exit, self.migrate)


class StartConditions(FileModel):
    """Answers of machines on which a gang is to start."""

    #: Time from the command to prepare to the answer.
    prepare: Length = 0.0
    #: Part of the preparations and starts that a machine refuses.
    refused: Annotated[Number, Field(ge=0, lt=1)] = 0.0


class NoiseConditions(FileModel):
    """Standard deviations of logarithms (of reports: relative)."""

    speeds: _Noise = 0.0
    costs: _Noise = 0.0
    reports: _Noise = 0.0


class FaultConditions(FileModel):
    """Mean times between faults of one owned machine; a fault without a time never happens."""

    death_every: _Every = None
    lease: PositiveLength = 600.0
    repair: PositiveLength = 3600.0
    cut_off_every: _Every = None
    cut_off: PositiveLength = 60.0
    slow_every: _Every = None
    slow: PositiveLength = 600.0
    #: Factor on the speed of a slow machine.
    slow_pace: _Pace = 0.5
    #: The same for one attempt, independent of its machines.
    attempt_slow_every: _Every = None
    attempt_slow: PositiveLength = 600.0
    attempt_slow_pace: _Pace = 0.5
    #: Time after which a machine that was cordoned because jobs failed on it is uncordoned; None: never.
    uncordon: _Every = None
    until: _Every = None


class MarketConditions(FileModel):
    """Terms of renting machines of a pool, which override the cluster file."""

    #: Time from the request to a machine that takes jobs; None: as the cluster says.
    boot: Length | None = None
    boot_noise: _Noise = 0.0
    #: Warning before a revocation; None: as the cluster says.
    notice: Length | None = None
    #: Mean lifetime of a spot machine before a revocation; None: it is not revoked.
    life: _Every = None
    #: Law of the lifetimes, such as `uniform 24h`, in place of `life`, which is the mean of an exponential law.
    lifetime: Annotated[str, AfterValidator(checked_lifetime)] = ""
    #: Machines that the market has, if fewer than the quota; None: the quota alone counts.
    capacity: _Count | None = None
    #: Price of a machine; None: as the cluster says.
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    #: Interval between changes of the price, around the stated one; None: it does not change.
    reprice_every: _Every = None
    price_noise: _Noise = 0.0

    def applied_to(self, model: PoolModel) -> PoolModel:
        """Returns the pool under these terms."""
        pool, terms = model.pool, model.terms
        boot_s = terms.boot_s if self.boot is None else self.boot
        return replace(
            model,
            pool=replace(
                pool,
                boot_s=boot_s,
                notice_s=pool.notice_s if self.notice is None else self.notice,
                usd_per_h=pool.usd_per_h if self.usd_per_h is None else self.usd_per_h,
            ),
            terms=replace(terms, boot_s=boot_s, capacity=terms.capacity if self.capacity is None else self.capacity),
            boot_noise=self.boot_noise,
            mean_life_s=self.life or inf,
            lifetime=self.lifetime,
            reprice_every_s=self.reprice_every or inf,
            price_noise=self.price_noise,
        )


class IncidentConditions(FileModel):
    """An incident in a pool at an instant: exactly one of `revoke`, `kill`, `slow`, `market`."""

    at: Length
    #: The market revokes machines, with the pool's notice: `machines` of them, or all.
    revoke: ShownName | None = None
    machines: Annotated[WholeNumber, Field(ge=1, le=100_000)] | None = None
    #: A machine dies, or works at `pace` for a while: the n-th of the pool in order of joining.
    kill: ShownName | None = None
    slow: ShownName | None = None
    machine: _Count = 0
    pace: _Pace = 0.5
    #: None: until the end of the run.
    lasts: _Every = None
    #: A new price of a machine, and a new number of machines that the market has.
    market: ShownName | None = None
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    capacity: _Count | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> "IncidentConditions":
        named = [word for word in ("revoke", "kill", "slow", "market") if getattr(self, word) is not None]
        if len(named) != 1:
            what = " and ".join(named) + " at once" if named else "nothing happens"
            raise FieldMistake("revoke", f"{what}; name one of revoke, kill, slow, market")
        if named == ["market"] and self.usd_per_h is None and self.capacity is None:
            raise FieldMistake("market", "changes nothing; add usd_per_h or capacity")
        belongs = {
            "machines": "revoke", "machine": "kill or slow", "pace": "slow", "lasts": "slow", "usd_per_h": "market",
            "capacity": "market",
        }  # fmt: skip
        for field in self.model_fields_set & belongs.keys():
            if named[0] not in belongs[field].split(" or "):
                raise FieldMistake(field, f"says nothing of {named[0]}; it belongs to {belongs[field]}")
        return self

    @property
    def what(self) -> str:
        """Returns the name of the field that names the pool."""
        return next(word for word in ("revoke", "kill", "slow", "market") if getattr(self, word) is not None)

    @property
    def pool(self) -> str:
        return str(getattr(self, self.what))

    def incidents(self, pool_id: PoolId) -> list[Incident]:
        """Returns the incidents for the simulated world."""
        match self.what:
            case "revoke":
                return [PoolRevocation(self.at, pool_id, self.machines)]
            case "kill":
                return [NodeDeath(self.at, pool_id, self.machine)]
            case "market":
                return [MarketChange(self.at, pool_id, self.usd_per_h, self.capacity)]
        spell: list[Incident] = [NodeSlowdown(self.at, pool_id, self.machine, self.pace)]
        well = [] if self.lasts is None else [NodeSlowdown(self.at + self.lasts, pool_id, self.machine, 1.0)]
        return [*spell, *well]


class CancellationConditions(FileModel):
    """Random cancellations: the part of jobs, and the mean time from submission."""

    part: _Part = 0.0
    after: PositiveLength = 3600.0


class CrashConditions(FileModel):
    """Jobs that fail on their own, at a random point of their work."""

    part: _Part = 0.0
    exit_code: Annotated[WholeNumber, Field(ge=1, le=255)] = 1
    #: Number of crashes of a job; None: every attempt crashes.
    times: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = 1


class LengthConditions(FileModel):
    """What the scheduler knows of lengths: nothing, or the workload's length times factor and noise."""

    told: bool = True
    spread: _Noise = 0.0
    factor: Annotated[Number, Field(gt=0, le=1000)] = 1.0


#: Ten years.
_LONGEST_S = 10 * 365 * 86_400.0


class Conditions(FileModel):
    costs: CostConditions = CostConditions()
    #: Costs of single kinds, in place of `costs`.
    costs_by_kind: Annotated[dict[ShownName, CostConditions], Field(max_length=10_000)] = Field(default_factory=dict)
    starts: StartConditions = StartConditions()
    noise: NoiseConditions = NoiseConditions()
    faults: FaultConditions = FaultConditions()
    #: By pool, or `spot` and `on_demand` for all pools of that market that have no entry of their own.
    markets: Annotated[dict[ShownName, MarketConditions], Field(max_length=10_000)] = Field(default_factory=dict)
    incidents: Annotated[tuple[IncidentConditions, ...], Field(max_length=10_000)] = ()
    cancellations: CancellationConditions = CancellationConditions()
    crashes: CrashConditions = CrashConditions()
    lengths: LengthConditions = LengthConditions()
    #: Time between a solver request and its answer; measured: the time that this machine takes.
    solve: Literal["measured"] | Length = 0.0
    #: False: the scheduler learns speeds from what jobs report.
    speeds_told: bool = True
    #: Time between reports of a job; None: jobs do not report.
    report_every: PositiveLength | None = None
    #: Least time between two predictions of unmeasured speeds; None: speeds are not predicted.
    predict_every: PositiveLength | None = None
    #: Facts of kinds, from which speeds are predicted; a step's samples are those of each accelerator.
    facts: Annotated[dict[ShownName, FactsSpec], Field(max_length=10_000)] = Field(default_factory=dict)
    #: Time at which the run ends, whatever is unfinished; None: when every job has ended.
    end: PositiveLength | None = None

    other_words: ClassVar[dict[str, str]] = {
        "estimates": "lengths", "stragglers": "faults.slow_every", "failures": "crashes", "market": "markets",
        "spot": "markets.spot", "solver": "solve", "cancelled": "cancellations",
    }  # fmt: skip

    @model_validator(mode="after")
    def _something_to_predict(self) -> "Conditions":
        if self.predict_every is not None and self.speeds_told:
            raise FieldMistake("predict_every", "speeds that are told need no prediction; add `speeds_told: false`")
        if self.facts and self.predict_every is None:
            raise FieldMistake("facts", "nothing is predicted from them; add `predict_every: 5m`")
        for kind, stated in self.facts.items():
            if stated.flops_per_sample is not None and stated.batch_per_accelerator is None:
                raise FieldMistake(
                    f"facts.{kind}.batch_per_accelerator", "the samples of a step are unknown; write how many there are"
                )
        return self

    def applied_to(self, scenario: Scenario) -> Scenario:
        """Returns the scenario under these conditions. Raises ConfigError for an unknown pool or kind of job."""
        truth, world = scenario.truth, scenario.world
        _check_kinds("costs_by_kind", self.costs_by_kind, truth)
        _check_kinds("facts", self.facts, truth)
        own, by_kind = self.costs.costs(), {Kind(kind): given.costs() for kind, given in self.costs_by_kind.items()}
        return replace(
            scenario,
            pools=_pools_under(self.markets, scenario.pools),
            truth=replace(
                truth,
                costs={**by_kind, **truth.costs},
                default_costs=own if truth.default_costs == AttemptCosts() else truth.default_costs,
            ),
            world=WorldParameters(
                report_s=self.report_every or (world.report_s if self.speeds_told else min(world.report_s, 60.0)),
                cost_noise=self.noise.costs,
                speed_noise=self.noise.speeds,
                report_noise=self.noise.reports,
                prepare_s=self.starts.prepare,
                refused=self.starts.refused,
            ),
            faults=_fault_model(self.faults),
            incidents=(*scenario.incidents, *_scheduled_incidents(self.incidents, scenario.pools)),
            random_failures=RandomFailures(
                self.cancellations.part, self.cancellations.after,
                self.crashes.part, self.crashes.exit_code, self.crashes.times,
            ),
            lengths=LengthEstimates(self.lengths.told, self.lengths.spread, self.lengths.factor),
            limits=self._limits(scenario.limits),
            solve_time=SolveTime(SolveClock.MEASURED)
            if self.solve == "measured"
            else SolveTime(SolveClock.FIXED if self.solve else SolveClock.ZERO, self.solve),
            oracle=self.speeds_told,
            forecasts=self._forecasts(),
        )  # fmt: skip

    def _forecasts(self) -> PredictionSettings:
        if self.predict_every is None:
            return PredictionSettings()
        from optimizer.planning.machine_recommendation import specs_by_accelerator
        from walras.spec.catalog import load_catalog

        facts = tuple(FactsTold(0.0, Kind(kind), stated.facts(None)) for kind, stated in self.facts.items())
        return PredictionSettings(self.predict_every, sheets=specs_by_accelerator(load_catalog()), facts=facts)

    def _limits(self, limits: RunLimits) -> RunLimits:
        """Limits a run with endless random faults, in which jobs may never end."""
        faults = self.faults
        every = (faults.death_every, faults.cut_off_every, faults.slow_every, faults.attempt_slow_every)
        goes_on = (any(every) and faults.until is None) or any(each.reprice_every for each in self.markets.values())
        return replace(limits, until_at=self.end or (_LONGEST_S if goes_on else limits.until_at))


def _fault_model(faults: FaultConditions) -> FaultModel:
    return FaultModel(
        death_every_s=faults.death_every or inf,
        cut_off_every_s=faults.cut_off_every or inf,
        cut_off_s=faults.cut_off,
        slow=SlowPeriods(faults.slow_every or inf, faults.slow, faults.slow_pace),
        attempt_slow=SlowPeriods(faults.attempt_slow_every or inf, faults.attempt_slow, faults.attempt_slow_pace),
        notice_silence_s=min(30.0, faults.lease),
        lease_s=faults.lease,
        repair_s=faults.repair,
        uncordon_s=faults.uncordon or inf,
        until_at=faults.until or inf,
    )


def _check_kinds(field: str, named: Mapping[str, object], truth: GroundTruth) -> None:
    """Rejects entries for kinds that no job has, because they would have no effect."""
    if not named:
        return
    known = sorted({str(kind) for kind in (*(key.kind for key in truth.speeds), *truth.laws, *truth.costs)})
    for kind in named:
        if kind not in known:
            fix = nearest_or_all(kind, known, most=20)
            raise ConfigError(f"{field}: no job is of kind {kind!r}", field=field, fix=fix)


def _pools_under(markets: Mapping[str, MarketConditions], pools: tuple[PoolModel, ...]) -> tuple[PoolModel, ...]:
    """Returns the pools, rented ones under the given terms."""
    rented = {str(model.pool.pool_id) for model in pools if model.pool.market is not Market.OWNED}
    for name in markets:
        if name not in (Market.SPOT.value, Market.ON_DEMAND.value):
            _check_pool(name, rented, f"markets.{name}", "rented pool")
    found = []
    for model in pools:
        given = markets.get(model.pool.pool_id, markets.get(model.pool.market.value))
        is_rented = given is not None and model.pool.market is not Market.OWNED
        found.append(given.applied_to(model) if is_rented and given is not None else model)
    return tuple(found)


def _scheduled_incidents(given: Iterable[IncidentConditions], pools: tuple[PoolModel, ...]) -> list[Incident]:
    known = {str(model.pool.pool_id) for model in pools}
    incidents: list[Incident] = []
    for row, each in enumerate(given):
        _check_pool(each.pool, known, f"incidents[{row}].{each.what}", "pool")
        incidents += each.incidents(PoolId(each.pool))
    return incidents


def _check_pool(name: str, known: set[str], field: str, what: str) -> None:
    if name not in known:
        fix = nearest_or_all(name, sorted(known))
        raise ConfigError(f"{field}: the cluster has no {what} {name!r}", field=field, fix=fix)
