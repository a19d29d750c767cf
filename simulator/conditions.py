"""What the simulated world is like: costs, noise, faults, solver time, and what the scheduler is told of it.

A file of conditions may stand beside any workload and cluster. What it does not say stays as it is without one: no
noise, no fault, no cost, speeds and lengths known. What a run has measured goes before the costs given here.
"""

from dataclasses import replace
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simulator.attempts import WorldModel
from simulator.engine import SolveClock, SolveTime
from simulator.faults import FaultModel
from simulator.lengths import Lengths
from simulator.simulate import Scenario
from simulator.truth import Costs
from walras.checking import FileModel
from walras.job_parts import Length, Number, PositiveLength

_Noise = Annotated[Number, Field(ge=0, le=3)]
_Every = PositiveLength | None


class CostsGiven(FileModel):
    """What the life of an attempt costs besides its steps; of every kind that has no costs of its own."""

    start: Length = 0.0
    warm_up: Length = 0.0
    #: None: jobs cannot checkpoint.
    checkpoint: Length | None = 0.0
    checkpoint_every: Length = 0.0
    exit: Length = 0.0
    migrate: Length = 0.0


class NoiseGiven(FileModel):
    """Standard deviations of logarithms (of reports: relative)."""

    speeds: _Noise = 0.0
    costs: _Noise = 0.0
    reports: _Noise = 0.0


class FaultsGiven(FileModel):
    """Mean times between what goes wrong with one machine; what is not named never happens."""

    death_every: _Every = None
    lease: PositiveLength = 600.0
    repair: PositiveLength = 3600.0
    cut_off_every: _Every = None
    cut_off: PositiveLength = 60.0
    slow_every: _Every = None
    slow: PositiveLength = 600.0
    #: Part of its speed at which a slow machine works.
    slow_pace: Annotated[Number, Field(gt=0, le=1)] = 0.5
    #: A machine taken out of use because jobs failed on it is put back after this; None: never.
    uncordon: _Every = None
    until: _Every = None


class LengthsGiven(FileModel):
    told: bool = True
    spread: _Noise = 0.0


class Conditions(FileModel):
    """A file of conditions."""

    costs: CostsGiven = CostsGiven()
    noise: NoiseGiven = NoiseGiven()
    faults: FaultsGiven = FaultsGiven()
    lengths: LengthsGiven = LengthsGiven()
    #: Time between a question to the solver and its answer; measured: as long as it takes on this machine.
    solve: Literal["measured"] | Length = 0.0
    #: False: the scheduler learns speeds from what jobs report.
    speeds_told: bool = True
    #: How often jobs report; None: never.
    report_every: _Every = None

    other_words: ClassVar[dict[str, str]] = {"estimates": "lengths", "stragglers": "faults.slow_every"}

    def applied_to(self, scenario: Scenario) -> Scenario:
        """The scenario under these conditions."""
        costs = self.costs
        own = Costs(costs.start, costs.checkpoint, costs.checkpoint_every, costs.warm_up, costs.exit, costs.migrate)
        truth = scenario.truth
        report_s = self.report_every or (inf if self.speeds_told else 60.0)
        return replace(
            scenario,
            truth=replace(truth, default_costs=own if truth.default_costs == Costs() else truth.default_costs),
            world=WorldModel(
                report_s=report_s, cost_noise=self.noise.costs, speed_noise=self.noise.speeds,
                report_noise=self.noise.reports,
            ),
            faults=self._fault_model(),
            lengths=Lengths(self.lengths.told, self.lengths.spread),
            solve_time=SolveTime(SolveClock.MEASURED)
            if self.solve == "measured"
            else SolveTime(SolveClock.FIXED if self.solve else SolveClock.ZERO, self.solve),
            oracle=self.speeds_told,
        )  # fmt: skip

    def _fault_model(self) -> FaultModel:
        faults = self.faults
        return FaultModel(
            death_every_s=faults.death_every or inf,
            cut_off_every_s=faults.cut_off_every or inf,
            cut_off_s=faults.cut_off,
            slow_every_s=faults.slow_every or inf,
            slow_s=faults.slow,
            slow_pace=faults.slow_pace,
            notice_silence_s=min(30.0, faults.lease),
            lease_s=faults.lease,
            repair_s=faults.repair,
            uncordon_s=faults.uncordon or inf,
            until_at=faults.until or inf,
        )
