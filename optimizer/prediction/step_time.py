"""Where the seconds of a training step go: by facts alone (roofline, links, accumulation), and by measured differences.

    pass_s = slowness x max(flops / peak, bytes / memory bandwidth)
    step_s = max((a + 1) pass_s + exposed synchronisation, (a + 1) input_s)      a: passes summed up locally

Slowness is how far a kind stays behind the roofline. It is all that is fitted: of each kind from what was measured on
single accelerators (of gangs, less their synchronisation, where it ran on none), of an unseen kind from the others.
Synchronisation is never scaled by it: S bytes exchanged by n ranks over links of B bytes per second, latency per
message. Interconnects whose bandwidth was measured after launch come in as facts; where too much is missing of what was
planned, the job is to be planned anew (Srifty).

Measured: what a step waits for, from differences between runs that each leave one thing out (Stash, ICDCS 2023).

    alone            made-up data, one accelerator                              compute
    together         made-up data, all accelerators of a machine                + exchange inside
    warm             real data that the host has already read                   + preparing it
    cold             real data that nobody has read yet                         + fetching it
    apart            made-up data, as many accelerators on several machines     compute + exchange inside and between

Times are of one step with the same samples per accelerator. A difference below 0 is noise and counts as none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean, median

from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

#: Share of a pass that is the backward one, while which gradients that are ready may already travel.
BACKWARD = 2.0 / 3.0


def ring_all_reduce_s(size_bytes: float, ranks: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """2 (n-1)/n S/B: every byte is sent once to be summed and once to be known. 0 for a single rank."""
    assert ranks >= 1, "a ring has at least one rank"
    assert bytes_per_s > 0, "a link carries something"
    return 2.0 * (ranks - 1) * (size_bytes / (ranks * bytes_per_s) + latency_s)


def hierarchical_all_reduce_s(
    size_bytes: float,
    shape: tuple[int, int],
    speeds: tuple[float, float],
    latency_s: float = 0.0,
) -> float:
    """Reduced inside each machine, in a ring between machines, then told inside each.

    `shape`: machines, and accelerators of the fullest one. `speeds`: bytes per second inside and between machines; the
    slowest machine's network sets the pace of the ring. Equal to a ring where there is one machine, or one accelerator
    on each.
    """
    machines, inside = shape
    link, network = speeds
    return ring_all_reduce_s(size_bytes, inside, link, latency_s) + ring_all_reduce_s(
        size_bytes, machines, network, latency_s
    )


def exposed_s(sync_s: float, pass_s: float, overlap: float) -> float:
    """What of a synchronisation the step waits for: what the share `overlap` of the backward pass does not hide."""
    return max(0.0, sync_s - overlap * BACKWARD * pass_s)


#: This part below what was planned, and another set of machines, or of counts, may be worth its move.
TOLERATED_SHORTFALL = 0.15


@dataclass(frozen=True, slots=True)
class ObtainedNetwork:
    """What was planned and what was measured, bytes per second of one direction."""

    planned_bytes_per_s: float
    measured_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0.0 < self.planned_bytes_per_s < float("inf") and 0.0 < self.measured_bytes_per_s < float("inf")):
            raise ValueError(f"bandwidths are finite and above 0: {self}")

    @property
    def below(self) -> float:
        """Part that is missing of what was planned; negative where there is more."""
        return 1.0 - self.measured_bytes_per_s / self.planned_bytes_per_s

    @property
    def replan(self) -> bool:
        """Whether so much is missing that the plan does not hold."""
        return self.below > TOLERATED_SHORTFALL * (1.0 + 1e-9)

    @property
    def why(self) -> str:
        """The verdict with its numbers."""
        figures = f"{_gbit(self.measured_bytes_per_s)} of {_gbit(self.planned_bytes_per_s)} between machines"
        if self.replan:
            return f"{figures}: {self.below:.0%} below plan, more than {TOLERATED_SHORTFALL:.0%}, so it is planned anew"
        return f"{figures}: the plan stands"

    def facts(self, accelerator: AcceleratorSpecs) -> AcceleratorSpecs:
        """The accelerator as it is on these machines: what predictions go on from."""
        return replace(accelerator, network_bytes_per_s=self.measured_bytes_per_s)


def _gbit(bytes_per_s: float) -> str:
    return f"{8e-9 * bytes_per_s:.3g} Gbit/s"


#: Where nothing at all was measured: half of the peak, give or take a factor of two.
SLOWNESS = log(2.0)
SPREAD = log(2.0)
#: Operations for each byte that training moves to and from memory where nobody counted its bytes, by the width of its
#: numbers. With half of the roofline these give 6,200 images/s of ResNet-50 in bf16 on an H100 (7,100 in MLPerf 4.0,
#: 2,900 in Lambda's benchmark) and a fifth of the peak of an A100 (.12 and .23 for ResNet-50, .3 to .4 for BERT): the
#: faster an accelerator's arithmetic is for its memory, the smaller a part of it training reaches.
INTENSITY_16, INTENSITY_32 = 90.0, 45.0
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


def roofline_pass_s(cell: SpeedCell) -> float:
    """Least seconds of forward and backward pass over a local batch. Raises CannotPredict without FLOPs."""
    kind, accelerator = cell.kind, cell.accelerator
    if kind.flops_per_sample is None:
        raise CannotPredict(f"nobody counted the FLOPs of {kind.name}")
    moved = kind.memory_bytes_per_sample
    if moved is None:
        moved = kind.flops_per_sample / (INTENSITY_16 if _is_in_16_bits(accelerator) else INTENSITY_32)
    arithmetic, memory = kind.flops_per_sample / accelerator.flops_per_s, moved / accelerator.memory_bytes_per_s
    return cell.layout.local * max(arithmetic, memory)


def _is_in_16_bits(accelerator: AcceleratorSpecs) -> bool:
    """Whether its peak is that of 16-bit arithmetic, where the peaks of each are known."""
    peaks = dict(accelerator.peaks)
    halves = [peaks[name] for name in ("bf16", "fp16") if name in peaks]
    return accelerator.flops_per_s in halves and accelerator.flops_per_s > peaks.get("fp32", 0.0)


def sync_s(size_bytes: float | None, accelerator: AcceleratorSpecs, layout: Layout, latency_s: float) -> float:
    """Of one all-reduce over this layout. Raises CannotPredict where a link or the gradient's size is unknown."""
    if layout.accelerators == 1:
        return 0.0
    inside = -(-layout.accelerators // layout.machines)
    link, network = accelerator.link_bytes_per_s, accelerator.network_bytes_per_s
    if size_bytes is None or (inside > 1 and link is None) or (layout.machines > 1 and network is None):
        raise CannotPredict(f"bytes of the gradient or speed of a link of {accelerator.name} are unknown")
    return hierarchical_all_reduce_s(size_bytes, (layout.machines, inside), (link or 1.0, network or 1.0), latency_s)


@dataclass(frozen=True, slots=True)
class RooflinePredictor:
    """The predictor. `overlap`: share of the backward pass that hides synchronisation; latency is of one message."""

    overlap: float = 0.8
    latency_s: float = 20e-6

    @property
    def name(self) -> str:
        return "analytic"

    def parts(self, cell: SpeedCell, slowness: float = 1.0) -> StepParts:
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

    def fit(self, observations: Sequence[Observation]) -> "RooflineModel":
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
        bare = RooflineModel(self, of_kind, general, SPREAD, _spread_between_kinds(list(of_kind.values()), general))
        return RooflineModel(self, of_kind, general, _residual(bare, observations), bare.unseen_sd)

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
class RooflineModel:
    """Facts, and how far kinds stay behind them (logarithms)."""

    law: RooflinePredictor
    of_kind: Mapping[str, float]
    general: float
    #: Standard deviation of log speed for kinds that were measured, and for others.
    seen_sd: float
    unseen_sd: float

    def parts(self, cell: SpeedCell) -> StepParts:
        """Where an update's seconds go."""
        return self.law.parts(cell, exp(self.of_kind.get(cell.kind.name, self.general)))

    def predict(self, cell: SpeedCell) -> Prediction:
        sd = self.seen_sd if cell.kind.name in self.of_kind else max(self.seen_sd, self.unseen_sd)
        return log_normal_prediction(-log(self.parts(cell).step_s), sd)


def _spread_between_kinds(values: list[float], middle: float) -> float:
    """How much kinds differ among each other; few kinds are mixed with the prior."""
    squares = [(value - middle) ** 2 for value in values]
    return sqrt((sum(squares) + SPREAD**2) / (len(squares) + 1))


def _residual(model: RooflineModel, observations: Sequence[Observation]) -> float:
    squares: list[float] = []
    for observation in observations:
        try:
            squares.append(log(model.predict(observation.cell).steps_per_s / observation.steps_per_s) ** 2)
        except CannotPredict:
            continue
    return max(_LEAST_SD, sqrt(fmean([*squares, SPREAD**2 / 4.0])))


@dataclass(frozen=True, slots=True)
class StallRuns:
    """Seconds of one step in each run; `apart` None: never run on several machines."""

    alone_s: float
    together_s: float
    warm_s: float
    cold_s: float
    apart_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepStalls:
    """Seconds of one step, by what they go to. Without noise and networks they sum to the cold run."""

    compute_s: float
    inside_s: float
    prepare_s: float
    fetch_s: float
    network_s: float

    @property
    def step_s(self) -> float:
        """Of a first epoch: everything together."""
        return self.compute_s + self.inside_s + self.prepare_s + self.fetch_s + self.network_s

    @property
    def shares(self) -> dict[str, float]:
        """Of the whole step, by name; they sum to 1."""
        parts = {
            "compute": self.compute_s,
            "inside": self.inside_s,
            "prepare": self.prepare_s,
            "fetch": self.fetch_s,
            "network": self.network_s,
        }
        return {name: seconds / self.step_s for name, seconds in parts.items()}


def attribute_stalls(runs: StallRuns) -> StepStalls:
    """Return which stall each difference between two runs is the time of, in seconds of a step."""
    assert runs.alone_s > 0, "a step takes time"
    return StepStalls(
        compute_s=runs.alone_s,
        inside_s=max(0.0, runs.together_s - runs.alone_s),
        prepare_s=max(0.0, runs.warm_s - runs.together_s),
        fetch_s=max(0.0, runs.cold_s - runs.warm_s),
        network_s=0.0 if runs.apart_s is None else max(0.0, runs.apart_s - runs.together_s),
    )
