"""Step time from facts alone: roofline, links, accumulation.

    pass_s = slowness x max(flops / peak, bytes / memory bandwidth)
    step_s = max((a + 1) pass_s + exposed synchronisation, (a + 1) input_s)      a: passes summed up locally

Slowness is how far a kind stays behind the roofline. It is all that is fitted: of each kind from what was measured on
single accelerators (of gangs, less their synchronisation, where it ran on none), of an unseen kind from the others.
Synchronisation is never scaled by it. Interconnects whose bandwidth was measured after launch come in as facts
(`dataclasses.replace` of the accelerator's).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median

from optimizer.performance.predicting.communication import BACKWARD, exposed_s, hierarchical_all_reduce_s
from optimizer.performance.predicting.observation import AcceleratorFacts, Cell, Layout, Observation
from optimizer.performance.predicting.predictor import CannotPredict, Prediction, around

#: Where nothing at all was measured: half of the peak, give or take a factor of two.
SLOWNESS = log(2.0)
SPREAD = log(2.0)
#: No interval is narrower than what two runs of one cell differ by on a quiet machine.
_LEAST_SD = 0.02


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where the seconds of one update go."""

    #: One pass over a local batch, and how many there are.
    pass_s: float
    passes: int
    #: The whole synchronisation, and what of it the step waits for.
    sync_s: float
    exposed_s: float
    #: Handing over the input of one pass, which runs beside computing.
    input_s: float

    @property
    def step_s(self) -> float:
        """One update."""
        return max(self.passes * self.pass_s + self.exposed_s, self.passes * self.input_s)

    @property
    def input_stall_s(self) -> float:
        """What computing waits for its input."""
        return max(0.0, self.passes * (self.input_s - self.pass_s) - self.exposed_s)


def roofline_pass_s(cell: Cell) -> float:
    """Least seconds of forward and backward pass over a local batch. Raises CannotPredict without FLOPs."""
    kind, accelerator = cell.kind, cell.accelerator
    if kind.flops_per_sample is None:
        raise CannotPredict(f"nobody counted the FLOPs of {kind.name}")
    arithmetic = kind.flops_per_sample / accelerator.flops_per_s
    memory = (kind.memory_bytes_per_sample or 0.0) / accelerator.memory_bytes_per_s
    return cell.layout.local * max(arithmetic, memory)


def sync_s(size_bytes: float | None, accelerator: AcceleratorFacts, layout: Layout, latency_s: float) -> float:
    """Of one all-reduce over this layout. Raises CannotPredict where a link or the gradient's size is unknown."""
    if layout.accelerators == 1:
        return 0.0
    inside = -(-layout.accelerators // layout.machines)
    link, network = accelerator.link_bytes_per_s, accelerator.network_bytes_per_s
    if size_bytes is None or (inside > 1 and link is None) or (layout.machines > 1 and network is None):
        raise CannotPredict(f"bytes of the gradient or speed of a link of {accelerator.name} are unknown")
    return hierarchical_all_reduce_s(size_bytes, (layout.machines, inside), (link or 1.0, network or 1.0), latency_s)


@dataclass(frozen=True, slots=True)
class Analytic:
    """The predictor. `overlap`: share of the backward pass that hides synchronisation; latency is of one message."""

    overlap: float = 0.8
    latency_s: float = 20e-6

    @property
    def name(self) -> str:
        return "analytic"

    def parts(self, cell: Cell, slowness: float = 1.0) -> StepParts:
        """Where an update's seconds would go. Raises CannotPredict for missing facts."""
        pass_s = slowness * roofline_pass_s(cell)
        whole = sync_s(cell.kind.gradient_bytes, cell.accelerator, cell.layout, self.latency_s)
        host = cell.accelerator.host_bytes_per_s
        input_s = cell.layout.local * (cell.kind.input_bytes or 0.0) / host if host else 0.0
        return StepParts(
            pass_s=pass_s,
            passes=cell.layout.accumulated + 1,
            sync_s=whole,
            exposed_s=exposed_s(whole, pass_s, self.overlap),
            input_s=input_s,
        )

    def fit(self, observations: Sequence[Observation]) -> "AnalyticModel":
        """Needs nothing: without observations every kind is taken to reach half of the roofline."""
        alone: dict[str, list[float]] = {}
        gangs: dict[str, list[float]] = {}
        for observation in observations:
            cell = observation.cell
            pass_s = self._pass_s(observation)
            if pass_s is not None and cell.kind.flops_per_sample is not None:
                by_kind = alone if cell.layout.accelerators == 1 else gangs
                by_kind.setdefault(cell.kind.name, []).append(log(pass_s / roofline_pass_s(cell)))
        by_kind = gangs | alone
        of_kind = {name: median(values) for name, values in by_kind.items()}
        general = median(of_kind.values()) if of_kind else SLOWNESS
        bare = AnalyticModel(self, of_kind, general, SPREAD, _between(list(of_kind.values()), general))
        return AnalyticModel(self, of_kind, general, _residual(bare, observations), bare.unseen_sd)

    def _pass_s(self, observation: Observation) -> float | None:
        """Seconds of a pass in a step that was measured; None where links are unknown, or said to be slower than that.

        The inverse of `StepParts.step_s`, its input left out: all of the step if the pass hides its synchronisation.
        """
        cell, step_s = observation.cell, 1.0 / observation.steps_per_s
        passes = cell.layout.accumulated + 1
        try:
            whole_s = sync_s(cell.kind.gradient_bytes, cell.accelerator, cell.layout, self.latency_s)
        except CannotPredict:
            return None
        if exposed_s(whole_s, step_s / passes, self.overlap) == 0.0:
            return step_s / passes
        left_s = step_s - whole_s
        return left_s / (passes - self.overlap * BACKWARD) if left_s > 0.0 else None


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticModel:
    """Facts, and how far kinds stay behind them (logarithms)."""

    law: Analytic
    of_kind: Mapping[str, float]
    general: float
    #: Standard deviation of log speed for kinds that were measured, and for others.
    seen_sd: float
    unseen_sd: float

    def parts(self, cell: Cell) -> StepParts:
        """Where an update's seconds go."""
        return self.law.parts(cell, exp(self.of_kind.get(cell.kind.name, self.general)))

    def predict(self, cell: Cell) -> Prediction:
        sd = self.seen_sd if cell.kind.name in self.of_kind else max(self.seen_sd, self.unseen_sd)
        return around(-log(self.parts(cell).step_s), sd)


def _between(values: list[float], middle: float) -> float:
    """How much kinds differ among each other; few kinds are mixed with the prior."""
    squares = [(value - middle) ** 2 for value in values]
    return sqrt((sum(squares) + SPREAD**2) / (len(squares) + 1))


def _residual(model: AnalyticModel, observations: Sequence[Observation]) -> float:
    squares: list[float] = []
    for observation in observations:
        try:
            squares.append(log(model.predict(observation.cell).steps_per_s / observation.steps_per_s) ** 2)
        except CannotPredict:
            continue
    return max(_LEAST_SD, sqrt(fmean([*squares, SPREAD**2 / 4.0])))
