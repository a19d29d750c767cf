"""The components of a training step's time, from hardware data (roofline, links, accumulation) or from measurements.

    pass_s = slowness x max(flops / peak, bytes / memory bandwidth)
    step_s = max((a + 1) pass_s + exposed synchronisation, (a + 1) input_s)      a: passes summed up locally

Slowness is a kind's factor above the roofline, and the only fitted parameter. It is fitted for each kind from
measurements on single accelerators (or on gangs, less their synchronisation, if there are no others), and for an
unmeasured kind from the other kinds. It never scales synchronisation: S bytes exchanged by n ranks over links of B
bytes per second, with a latency per message. Bandwidths that are measured after launch replace those of the data sheet;
if they fall too far below the plan, the job should be planned anew (Srifty).

Measured stalls are differences between runs that each leave one thing out (Stash, ICDCS 2023).

    alone            synthetic data, one accelerator                              compute
    together         synthetic data, all accelerators of a machine                + exchange inside
    warm             real data in the host's page cache                           + preparing it
    cold             real data that was not read before                           + fetching it
    apart            synthetic data, as many accelerators on several machines     compute + exchange inside and between

Times are of one step with the same samples per accelerator. A negative difference is noise and counts as 0.

Transformers reach a part of the peak that others published (`usual_part`). Convolutions are bound by memory and follow
the roofline. Transformers are bound by arithmetic; their part depends on the precision and on the accelerator's
generation, which the precisions of its data sheet tell. It counts the operations of the model, without those that are
repeated to save memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log, sqrt
from statistics import fmean, median
from typing import Literal

from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

Generation = Literal["volta", "ampere", "hopper"]
Width = Literal["16", "tf32", "32"]


@dataclass(frozen=True, slots=True)
class ReachedPart:
    """The part of a peak that one publication reports."""

    generation: Generation
    width: Width
    part: float
    source: str


_BERT = "NVIDIA DeepLearningExamples, BERT-large pre-training in TensorFlow, 6 operations for each weight and token"
#: None of these is a row of the data with which predictions are compared (`benchmarks/published_utilisation.py`).
PUBLISHED = (
    ReachedPart("volta", "32", 0.77, f"{_BERT}: one V100, 46.8 sequences of 128 tokens/s"),
    ReachedPart("volta", "32", 0.70, f"{_BERT}: one V100, 10.7 sequences of 512 tokens/s"),
    ReachedPart("volta", "16", 0.35, f"{_BERT}: one V100, 169 sequences of 128 tokens/s"),
    ReachedPart("volta", "16", 0.26, f"{_BERT}: one V100, 31.2 sequences of 512 tokens/s"),
    ReachedPart("volta", "16", 0.31, "Megatron-LM (2019): 39 TFLOP/s on one V100, 1.2 billion parameters"),
    ReachedPart("ampere", "tf32", 0.39, f"{_BERT}: one A100, 238 sequences of 128 tokens/s"),
    ReachedPart("ampere", "16", 0.29, f"{_BERT}: one A100, 357 sequences of 128 tokens/s"),
    ReachedPart("ampere", "16", 0.44, "Megatron-LM (2021): A100, 1.7 billion parameters"),
    ReachedPart("ampere", "16", 0.52, "Megatron-LM (2021): A100, 1,008 billion parameters"),
    ReachedPart("ampere", "16", 0.60, "FlashAttention (2022, 2023): GPT with flash attention on A100, up to 0.72"),
    ReachedPart("hopper", "16", 0.38, "Llama 3 (2024): 16,384 H100, bf16"),
    ReachedPart("hopper", "16", 0.43, "Llama 3 (2024): 8,192 H100, bf16"),
    ReachedPart("hopper", "16", 0.47, "Megatron-Core: 462 billion parameters on H100, bf16"),
)
#: Standard deviation (log) of the part about its usual value: that of the rows of A100 in 16 bits, and somewhat more.
TRANSFORMER_SD = 0.4


def usual_part(peak: float, peaks: Mapping[str, float]) -> float | None:
    """Returns the part of `peak` that transformers usually reach, the geometric mean of the rows; None if unknown.

    `peaks`: all peaks of the accelerator by precision, of which `peak` is one. Rows of the nearest older generation
    stand in for missing ones.
    """
    width: Width = "16" if peak in _those(peaks, "bf16", "fp16") else "tf32" if peak == peaks.get("tf32") else "32"
    newest = 2 if "fp8" in peaks else 1 if "tf32" in peaks else 0
    generations: tuple[Generation, ...] = ("volta", "ampere", "hopper")
    for generation in reversed(generations[: newest + 1]):
        logs = [log(row.part) for row in PUBLISHED if (row.generation, row.width) == (generation, width)]
        if peaks and logs:
            return exp(fsum(logs) / len(logs))
    return None


def _those(peaks: Mapping[str, float], *names: str) -> list[float]:
    return [peaks[name] for name in names if name in peaks and peaks[name] > peaks.get("fp32", 0.0)]


#: Part of a pass that is the backward pass, during which gradients that are ready can already be sent.
BACKWARD = 2.0 / 3.0


def ring_all_reduce_s(size_bytes: float, ranks: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Seconds of a ring all-reduce, 2 (n-1)/n S/B and latencies; 0 for a single rank.

    Every byte is sent once for the reduction and once for the broadcast.
    """
    assert ranks >= 1, "a ring has at least one rank"
    assert bytes_per_s > 0, "a link carries something"
    return 2.0 * (ranks - 1) * (size_bytes / (ranks * bytes_per_s) + latency_s)


def hierarchical_all_reduce_s(
    size_bytes: float,
    shape: tuple[int, int],
    speeds: tuple[float, float],
    latency_s: float = 0.0,
) -> float:
    """Seconds of a reduction inside each machine, a ring between the machines, and a broadcast inside each machine.

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
    """Seconds of synchronisation for which the step waits: the part `overlap` of the backward pass hides the rest."""
    return max(0.0, sync_s - overlap * BACKWARD * pass_s)


#: Fraction of a step assumed to be spent on exchanging gradients, where it is unknown.
EXCHANGE_PART = 0.5


def exchange_part(size_bytes: float | None, machines: int, bytes_per_s: float, steps_per_s: float) -> float:
    """Returns the fraction of a step that machines spend on exchanging gradients over links of this speed."""
    if size_bytes is None:
        return EXCHANGE_PART
    return min(1.0, ring_all_reduce_s(size_bytes, machines, bytes_per_s) * steps_per_s)


def pace_over(network_part: float, part: float = EXCHANGE_PART) -> float:
    """Returns a gang's speed over links with this fraction of their usual bandwidth, relative to its usual speed.

    `part`: the fraction of a step that it exchanges gradients over usual links.
    """
    return 1.0 / (1.0 + part * (1.0 / network_part - 1.0))


#: Relative shortfall of bandwidth below the plan at which other machines, or another number of them, may pay.
TOLERATED_SHORTFALL = 0.15


@dataclass(frozen=True, slots=True)
class ObtainedNetwork:
    """Planned and measured bandwidth, bytes per second of one direction."""

    planned_bytes_per_s: float
    measured_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0.0 < self.planned_bytes_per_s < float("inf") and 0.0 < self.measured_bytes_per_s < float("inf")):
            raise ValueError(f"bandwidths are finite and above 0: {self}")

    @property
    def below(self) -> float:
        """Relative shortfall of the measured bandwidth; negative where it exceeds the plan."""
        return 1.0 - self.measured_bytes_per_s / self.planned_bytes_per_s

    @property
    def replan(self) -> bool:
        """Whether the shortfall is so large that the job should be planned anew."""
        return self.below > TOLERATED_SHORTFALL * (1.0 + 1e-9)

    @property
    def why(self) -> str:
        """Explains the verdict with its figures."""
        figures = f"{_gbit(self.measured_bytes_per_s)} of {_gbit(self.planned_bytes_per_s)} between machines"
        if self.replan:
            return f"{figures}: {self.below:.0%} below plan, more than {TOLERATED_SHORTFALL:.0%}, so it is planned anew"
        return f"{figures}: the plan stands"

    def facts(self, accelerator: AcceleratorSpecs) -> AcceleratorSpecs:
        """Returns the accelerator's specifications with the measured bandwidth, for further predictions."""
        return replace(accelerator, network_bytes_per_s=self.measured_bytes_per_s)


def _gbit(bytes_per_s: float) -> str:
    return f"{8e-9 * bytes_per_s:.3g} Gbit/s"


#: Prior of slowness without measurements: half of the peak, with a standard deviation of a factor of two.
SLOWNESS = log(2.0)
SPREAD = log(2.0)
#: Operations per byte of memory traffic where the traffic is unknown, by the width of numbers. With half of the
#: roofline these give 6,200 images/s of ResNet-50 in bf16 on an H100 (7,100 in MLPerf 4.0, 2,900 in Lambda's benchmark)
#: and a fifth of the peak of an A100 (.12 and .23 for ResNet-50, .3 to .4 for BERT): the higher an accelerator's ratio
#: of arithmetic to memory bandwidth, the smaller the part of its peak that training reaches.
INTENSITY_16, INTENSITY_32 = 90.0, 45.0
#: Seconds that a layer's kernels take to be launched: two forward and four backward, about 5 us each.
_LAUNCHES_S = 30e-6
#: Least standard deviation (log) of an interval: two runs of one cell differ by it on a quiet machine.
_LEAST_SD = 0.02


@dataclass(frozen=True, slots=True)
class StepParts:
    """The seconds of one update, by component."""

    #: One pass over a local batch, and the number of passes.
    pass_s: float
    passes: int
    #: The whole synchronisation, and the part for which the step waits.
    sync_s: float
    exposed_s: float
    #: Transfer of the input of one pass, which overlaps with computation.
    input_s: float

    @property
    def step_s(self) -> float:
        """Seconds of one update."""
        return max(self.passes * self.pass_s + self.exposed_s, self.passes * self.input_s)


def roofline_pass_s(cell: SpeedCell) -> float:
    """Least seconds of forward and backward pass over a local batch, of which a usual kind takes twice as long.

    Where bytes are unknown the family decides; a kind of unknown family lies halfway (log) between the two. However few
    operations it has, each layer's kernels must be launched. Raises CannotPredict if the FLOPs are unknown.
    """
    return max(_computing_s(cell), (cell.kind.layers or 1) * _LAUNCHES_S)


def _computing_s(cell: SpeedCell) -> float:
    kind, accelerator, local = cell.kind, cell.accelerator, cell.layout.local
    if kind.flops_per_sample is None:
        raise CannotPredict(f"the FLOPs of {kind.name} are unknown")
    arithmetic_s = local * kind.flops_per_sample / accelerator.flops_per_s
    if kind.memory_bytes_per_sample is not None:
        return max(arithmetic_s, local * kind.memory_bytes_per_sample / accelerator.memory_bytes_per_s)
    moved = kind.flops_per_sample / (INTENSITY_16 if _is_in_16_bits(accelerator) else INTENSITY_32)
    convolution_s = max(arithmetic_s, local * moved / accelerator.memory_bytes_per_s)
    part = usual_part(accelerator.flops_per_s, dict(accelerator.peaks))
    if part is None or kind.family == "convolution":
        return convolution_s
    transformer_s = arithmetic_s / (part * exp(SLOWNESS))
    return transformer_s if kind.family == "transformer" else sqrt(convolution_s * transformer_s)


def _is_in_16_bits(accelerator: AcceleratorSpecs) -> bool:
    """Returns whether the peak is that of 16-bit arithmetic, where the peaks by precision are known."""
    peaks = dict(accelerator.peaks)
    halves = [peaks[name] for name in ("bf16", "fp16") if name in peaks]
    return accelerator.flops_per_s in halves and accelerator.flops_per_s > peaks.get("fp32", 0.0)


def sync_s(size_bytes: float | None, accelerator: AcceleratorSpecs, layout: Layout, latency_s: float) -> float:
    """Seconds of one all-reduce over this layout. Raises CannotPredict if a link or the gradient's size is unknown."""
    if layout.accelerators == 1:
        return 0.0
    inside = -(-layout.accelerators // layout.machines)
    link, network = accelerator.link_bytes_per_s, accelerator.network_bytes_per_s
    if size_bytes is None or (inside > 1 and link is None) or (layout.machines > 1 and network is None):
        raise CannotPredict(f"bytes of the gradient or speed of a link of {accelerator.name} are unknown")
    return hierarchical_all_reduce_s(size_bytes, (layout.machines, inside), (link or 1.0, network or 1.0), latency_s)


@dataclass(frozen=True, slots=True)
class RooflinePredictor:
    """The analytic predictor. `overlap`: part of the backward pass that hides synchronisation; `latency_s`: per
    message.
    """

    overlap: float = 0.8
    latency_s: float = 20e-6

    @property
    def name(self) -> str:
        return "analytic"

    def parts(self, cell: SpeedCell, slowness: float = 1.0) -> StepParts:
        """Returns the predicted seconds of an update, by component. Raises CannotPredict if the hardware data are
        incomplete.
        """
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
        """Fits the slowness of each kind. Without observations every kind is assumed to reach half of the roofline."""
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
        """Seconds of a pass in a measured step; None if links are unknown, or synchronisation alone would take longer.

        It inverts `StepParts.step_s`, input aside: the pass takes all of the step if it hides the synchronisation.
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
    """Hardware data, and the logarithm of each kind's slowness."""

    law: RooflinePredictor
    of_kind: Mapping[str, float]
    general: float
    #: Standard deviation of log speed for measured kinds, and for others.
    seen_sd: float
    unseen_sd: float

    def parts(self, cell: SpeedCell) -> StepParts:
        """Returns the seconds of an update, by component. Raises CannotPredict as `RooflinePredictor.parts`."""
        return self.law.parts(cell, exp(self.of_kind.get(cell.kind.name, self.general)))

    def predict(self, cell: SpeedCell) -> Prediction:
        unseen_sd = TRANSFORMER_SD if cell.kind.family == "transformer" else self.unseen_sd
        sd = self.seen_sd if cell.kind.name in self.of_kind else max(self.seen_sd, unseen_sd)
        return log_normal_prediction(-log(self.parts(cell).step_s), sd)


def _spread_between_kinds(values: list[float], middle: float) -> float:
    """Standard deviation of log slowness between kinds, with the prior as one more observation."""
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
    """Seconds of one step in each run; `apart_s` is None if the job never ran on several machines."""

    alone_s: float
    together_s: float
    warm_s: float
    cold_s: float
    apart_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepStalls:
    """Seconds of one step, by cause. Without noise and network, they sum to the cold run."""

    compute_s: float
    inside_s: float
    prepare_s: float
    fetch_s: float
    network_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step in the first epoch, with all stalls."""
        return self.compute_s + self.inside_s + self.prepare_s + self.fetch_s + self.network_s

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the whole step by name; they sum to 1."""
        parts = {
            "compute": self.compute_s,
            "inside": self.inside_s,
            "prepare": self.prepare_s,
            "fetch": self.fetch_s,
            "network": self.network_s,
        }
        return {name: seconds / self.step_s for name, seconds in parts.items()}


def attribute_stalls(runs: StallRuns) -> StepStalls:
    """Attributes each difference between two runs to its cause, in seconds of a step."""
    assert runs.alone_s > 0, "a step takes time"
    return StepStalls(
        compute_s=runs.alone_s,
        inside_s=max(0.0, runs.together_s - runs.alone_s),
        prepare_s=max(0.0, runs.warm_s - runs.together_s),
        fetch_s=max(0.0, runs.cold_s - runs.warm_s),
        network_s=0.0 if runs.apart_s is None else max(0.0, runs.apart_s - runs.together_s),
    )
