"""What the simulated world is like: costs, noise, faults, solver time, and what the scheduler is told of it.

A file of conditions may stand beside any workload and cluster. What it does not say stays as it is without one: no
noise, no fault, no cost, speeds and lengths known. What a run has measured goes before the costs given here.
What the file may say is `simulator.conditions_given`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from scheduler.cloud.recommending import sheets_of
from simulator.attempts import WorldModel
from simulator.conditions_given import (
    CancellationsGiven,
    CostsGiven,
    CrashesGiven,
    FaultsGiven,
    IncidentGiven,
    LengthsGiven,
    MarketGiven,
    NoiseGiven,
    StartsGiven,
)
from simulator.engine import Limits, SolveClock, SolveTime
from simulator.faults import FaultModel, Incident
from simulator.lengths import Lengths
from simulator.machines import PoolModel
from simulator.mishaps import Mishaps
from simulator.predicting import Forecasts
from simulator.simulate import Scenario
from simulator.truth import Costs, Truth
from walras.catalog import load_catalog
from walras.checking import FieldMistake, FileModel, nearest
from walras.cluster import Market
from walras.errors import ConfigError
from walras.ids import Kind, PoolId
from walras.job_parts import Length, PositiveLength
from walras.model_facts import StatedFacts
from walras.names import ShownName

#: Ten years.
_LONGEST_S = 10 * 365 * 86_400.0


class Conditions(FileModel):
    """A file of conditions."""

    costs: CostsGiven = CostsGiven()
    #: Of single kinds, in place of `costs`.
    costs_by_kind: Annotated[dict[ShownName, CostsGiven], Field(max_length=10_000)] = Field(default_factory=dict)
    starts: StartsGiven = StartsGiven()
    noise: NoiseGiven = NoiseGiven()
    faults: FaultsGiven = FaultsGiven()
    #: By pool, or `spot` and `on_demand` for all pools of that market that are not named.
    markets: Annotated[dict[ShownName, MarketGiven], Field(max_length=10_000)] = Field(default_factory=dict)
    incidents: Annotated[tuple[IncidentGiven, ...], Field(max_length=10_000)] = ()
    cancellations: CancellationsGiven = CancellationsGiven()
    crashes: CrashesGiven = CrashesGiven()
    lengths: LengthsGiven = LengthsGiven()
    #: Time between a question to the solver and its answer; measured: as long as it takes on this machine.
    solve: Literal["measured"] | Length = 0.0
    #: False: the scheduler learns speeds from what jobs report.
    speeds_told: bool = True
    #: How often jobs report; None: never.
    report_every: PositiveLength | None = None
    #: Speeds that nobody measured are predicted, so long after something new at the earliest; None: they are not.
    predict_every: PositiveLength | None = None
    #: Of kinds, from which speeds are predicted; samples of a step are those of each accelerator.
    facts: Annotated[dict[ShownName, StatedFacts], Field(max_length=10_000)] = Field(default_factory=dict)
    #: The run ends then, whatever is unfinished; None: when every job has ended.
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
        """The scenario under these conditions. Raises ConfigError for a pool or a kind of job that it does not have."""
        truth, world = scenario.truth, scenario.world
        _check_kinds("costs_by_kind", self.costs_by_kind, truth)
        _check_kinds("facts", self.facts, truth)
        own, by_kind = self.costs.costs(), {Kind(kind): given.costs() for kind, given in self.costs_by_kind.items()}
        return replace(
            scenario,
            pools=_under(self.markets, scenario.pools),
            truth=replace(
                truth,
                costs={**by_kind, **truth.costs},
                default_costs=own if truth.default_costs == Costs() else truth.default_costs,
            ),
            world=WorldModel(
                report_s=self.report_every or (world.report_s if self.speeds_told else min(world.report_s, 60.0)),
                cost_noise=self.noise.costs,
                speed_noise=self.noise.speeds,
                report_noise=self.noise.reports,
                prepare_s=self.starts.prepare,
                refused=self.starts.refused,
            ),
            faults=_fault_model(self.faults),
            incidents=(*scenario.incidents, *_incidents(self.incidents, scenario.pools)),
            mishaps=Mishaps(
                self.cancellations.part, self.cancellations.after,
                self.crashes.part, self.crashes.exit_code, self.crashes.times,
            ),
            lengths=Lengths(self.lengths.told, self.lengths.spread, self.lengths.factor),
            limits=self._limits(scenario.limits),
            solve_time=SolveTime(SolveClock.MEASURED)
            if self.solve == "measured"
            else SolveTime(SolveClock.FIXED if self.solve else SolveClock.ZERO, self.solve),
            oracle=self.speeds_told,
            forecasts=self._forecasts(),
        )  # fmt: skip

    def _forecasts(self) -> Forecasts:
        if self.predict_every is None:
            return Forecasts()
        facts = {Kind(kind): stated.facts(None) for kind, stated in self.facts.items()}
        return Forecasts(self.predict_every, sheets_of(load_catalog()), facts)

    def _limits(self, limits: Limits) -> Limits:
        """Where chance goes on for ever, a run in which nothing can get on is still to end."""
        faults = self.faults
        every = (faults.death_every, faults.cut_off_every, faults.slow_every, faults.attempt_slow_every)
        goes_on = (any(every) and faults.until is None) or any(each.reprice_every for each in self.markets.values())
        return replace(limits, until_at=self.end or (_LONGEST_S if goes_on else limits.until_at))


def _fault_model(faults: FaultsGiven) -> FaultModel:
    return FaultModel(
        death_every_s=faults.death_every or inf,
        cut_off_every_s=faults.cut_off_every or inf,
        cut_off_s=faults.cut_off,
        slow_every_s=faults.slow_every or inf,
        slow_s=faults.slow,
        slow_pace=faults.slow_pace,
        attempt_slow_every_s=faults.attempt_slow_every or inf,
        attempt_slow_s=faults.attempt_slow,
        attempt_slow_pace=faults.attempt_slow_pace,
        notice_silence_s=min(30.0, faults.lease),
        lease_s=faults.lease,
        repair_s=faults.repair,
        uncordon_s=faults.uncordon or inf,
        until_at=faults.until or inf,
    )


def _check_kinds(field: str, named: Mapping[str, object], truth: Truth) -> None:
    """What is said of a kind that no job has would be forgotten in silence."""
    if not named:
        return
    known = sorted({str(kind) for kind in (*(key.kind for key in truth.speeds), *truth.laws, *truth.costs)})
    for kind in named:
        if kind not in known:
            meant = nearest(kind, known)
            raise ConfigError(
                f"{field}: no job is of kind {kind!r}",
                field=field,
                fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(known[:20]) or 'none'}",
            )


def _under(markets: Mapping[str, MarketGiven], pools: tuple[PoolModel, ...]) -> tuple[PoolModel, ...]:
    """The pools, rented ones under the terms that are given for them."""
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


def _incidents(given: Iterable[IncidentGiven], pools: tuple[PoolModel, ...]) -> list[Incident]:
    known = {str(model.pool.pool_id) for model in pools}
    incidents: list[Incident] = []
    for row, each in enumerate(given):
        _check_pool(each.pool, known, f"incidents[{row}].{each.what}", "pool")
        incidents += each.incidents(PoolId(each.pool))
    return incidents


def _check_pool(name: str, known: set[str], field: str, what: str) -> None:
    if name not in known:
        meant = nearest(name, known)
        raise ConfigError(
            f"{field}: the cluster has no {what} {name!r}",
            field=field,
            fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(sorted(known)) or 'none'}",
        )
