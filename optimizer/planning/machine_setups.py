"""Every way to run one job on machines that can be had: which machines, which batch, how many passes, and how long.

One type at a time, in every count (Srifty); or machines of several types that are neighbours in speed (spotDNN), which
share the batch by speed so that none waits for another. Where memory does not hold a machine's part of the batch, it is
taken in more passes. A larger batch needs more samples, by the noise of the gradient; without that only one is tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite

from optimizer.planning.machine_choice import (
    MachineOffer,
    OptionChoice,
    RunGoal,
    RunOption,
    choose_option,
    option_of,
    speed_windows,
)
from optimizer.prediction.gradient_noise import statistical_efficiency
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Prediction,
    SpeedCell,
    SpeedModel,
)
from optimizer.prediction.step_time import RooflinePredictor, exposed_s, sync_s
from walras.training.work_split import SampleBounds, split_samples

#: Passes of one update beyond which a machine is too small for the job.
PASSES_MOST = 64


@dataclass(frozen=True, slots=True)
class CandidateMachine:
    """A machine that can be had, and what is in it."""

    offer: MachineOffer
    accelerator: AcceleratorSpecs
    accelerators: int
    #: How often one such machine is taken away; 0: it stays.
    revocations_per_h: float = 0.0
    #: From the request until it works, seconds: waited for once, and paid.
    boot_s: float = 0.0
    #: It is paid for at least so long, seconds.
    minimum_billing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """What is left of a job: samples, if they are taken `batch` at a time."""

    kind: KindFacts
    samples: float
    batch: int
    #: Batches that it may be given; `batch` alone where nobody knows what others would do to learning.
    batches: tuple[int, ...] = ()
    #: Of the gradient, in samples; None: not measured.
    noise_scale: float | None = None

    def steps(self, batch: int) -> float:
        """Updates to the end."""
        worth = 1.0 if batch == self.batch else statistical_efficiency(self.noise_scale or 0.0, batch, self.batch)
        return self.samples / (batch * worth)

    @property
    def tried(self) -> tuple[int, ...]:
        """Batches worth a forecast."""
        return self.batches if self.batches and self.noise_scale is not None else (self.batch,)


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run the whole job. Times are of the whole job; `early` and `late` hold four cases out of five."""

    #: Machines of each offer, and accelerators in all of them.
    counts: tuple[int, ...]
    accelerators: int
    batch: int
    #: Passes of one update on the machine that needs most.
    passes: int
    #: Samples of one accelerator of each offer, in an update; 0 where none is used.
    shares: tuple[int, ...]
    steps_per_s: float
    time_s: float
    early_s: float
    late_s: float
    usd: float

    def option(self, late: bool) -> RunOption:
        """To choose by, as expected or as bad as four cases out of five allow."""
        time_s = self.late_s if late else self.time_s
        return RunOption((*self.counts, self.batch), time_s, self.usd * time_s / self.time_s)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setup to take, whether it keeps the goal even when late, why, and all setups that no other beats."""

    setup: Setup
    kept: bool
    why: str
    front: tuple[Setup, ...]
    tried: int


def _all_of_it(revocations_per_h: float) -> float:
    return 1.0


@dataclass(slots=True)
class SetupForecasts:
    """What a model says of a job on machines; remembers what it was told."""

    work: RemainingWork
    machines: Sequence[CandidateMachine]
    model: SpeedModel
    #: What the law of links is taken from where a gang is of several types.
    links: RooflinePredictor = field(default_factory=RooflinePredictor)
    #: Part of the time that becomes work that lasts, by how often a gang loses a machine, per hour.
    lasting: Callable[[float], float] = _all_of_it
    _predictions: dict[SpeedCell, Prediction | None] = field(default_factory=dict)
    #: What could not be told: machine, and why. One reason each.
    refused: dict[str, str] = field(default_factory=dict)

    def setups(self, most: int, mixed: bool) -> Iterator[Setup]:
        """All of at most so many machines. `mixed`: also of several types, where they are neighbours in speed."""
        for batch in self.work.tried:
            for counts in self._one_type(most):
                found = self.setup(counts, batch)
                if found is not None:
                    yield found
            if mixed:
                yield from self._several_types(most, batch)

    def setup(self, counts: tuple[int, ...], batch: int) -> Setup | None:
        """Of these machines with this batch; None where nobody can tell, or where it does not fit."""
        used = [position for position, count in enumerate(counts) if count]
        found = self._alike(counts, batch, used[0]) if len(used) == 1 else self._unlike(counts, batch, used)
        if found is None:
            return None
        prediction, passes, shares = found
        rate = sum(count * m.revocations_per_h for count, m in zip(counts, self.machines, strict=True))
        steps = self.work.steps(batch) / self.lasting(rate)
        boot_s = max(self.machines[position].boot_s for position in used)
        least_s = max(self.machines[position].minimum_billing_s for position in used)
        time_s = boot_s + steps / prediction.steps_per_s
        usd = option_of([machine.offer for machine in self.machines], counts, max(time_s, least_s)).usd
        whole = [0] * len(counts)
        for position, share in zip(used, shares, strict=True):
            whole[position] = share
        return Setup(
            counts=counts,
            accelerators=sum(count * m.accelerators for count, m in zip(counts, self.machines, strict=True)),
            batch=batch,
            passes=passes,
            shares=tuple(whole),
            steps_per_s=prediction.steps_per_s,
            time_s=time_s,
            early_s=boot_s + steps / prediction.high,
            late_s=boot_s + steps / prediction.low,
            usd=usd,
        )

    def _one_type(self, most: int) -> Iterator[tuple[int, ...]]:
        for position, machine in enumerate(self.machines):
            for count in range(1, min(most, machine.offer.most) + 1):
                yield (*(0 for _ in range(position)), count, *(0 for _ in self.machines[position + 1 :]))

    def _several_types(self, most: int, batch: int) -> Iterator[Setup]:
        speeds = [self._speed(machine, batch) for machine in self.machines]
        known = [position for position, speed in enumerate(speeds) if speed > 0]
        offers = [replace(m.offer, most=min(most, m.offer.most)) for m in (self.machines[k] for k in known)]
        made: dict[tuple[int, ...], Setup] = {}

        def forecast(few: tuple[int, ...]) -> float:
            counts = [0] * len(self.machines)
            for position, count in zip(known, few, strict=True):
                counts[position] = count
            if sum(1 for count in counts if count) < 2:
                return inf
            found = self.setup(tuple(counts), batch)
            if found is not None:
                made[few] = found
            return inf if found is None else found.time_s

        for option in speed_windows(offers, forecast, [speeds[k] for k in known], most):
            yield made[option.counts]

    def _speed(self, machine: CandidateMachine, batch: int) -> float:
        """Updates per second of one machine alone; 0 where nobody knows."""
        layout = self._layout(machine, 1, batch)
        predicted = None if layout is None else self._predicted(machine, layout)
        return 0.0 if predicted is None else predicted.steps_per_s

    def _layout(self, machine: CandidateMachine, count: int, batch: int) -> Layout | None:
        """With as few passes as memory allows; None where no number of passes fits."""
        accelerators = count * machine.accelerators
        if batch < accelerators:
            return None
        passes = self._passes(machine, ceil(batch / accelerators))
        return None if passes is None else Layout(float(batch), accelerators, count, passes - 1)

    def _passes(self, machine: CandidateMachine, local: int) -> int | None:
        """Least number that a part of the batch must be taken in; 1 where nobody knows what it needs."""
        kind, memory = self.work.kind, machine.accelerator.memory_bytes
        if memory is None or kind.resident_bytes is None or kind.activation_bytes is None:
            return 1
        free = memory - kind.resident_bytes
        if free < kind.activation_bytes:
            self.refused[machine.offer.name] = "its memory does not hold the model and one sample"
            return None
        passes = ceil(local / max(1, int(free // max(kind.activation_bytes, 1.0))))
        return passes if passes <= PASSES_MOST else None

    def _alike(
        self, counts: tuple[int, ...], batch: int, position: int
    ) -> tuple[Prediction, int, tuple[int, ...]] | None:
        machine = self.machines[position]
        layout = self._layout(machine, counts[position], batch)
        predicted = None if layout is None else self._predicted(machine, layout)
        if layout is None or predicted is None:
            return None
        return predicted, layout.accumulated + 1, (ceil(batch / layout.accelerators),)

    def _unlike(
        self, counts: tuple[int, ...], batch: int, used: Sequence[int]
    ) -> tuple[Prediction, int, tuple[int, ...]] | None:
        """The batch by speed; the slowest machine and the slowest network set the pace."""
        machines = [self.machines[position] for position in used]
        gang = [counts[position] * machine.accelerators for position, machine in zip(used, machines, strict=True)]
        if batch < sum(gang):
            return None
        even = [self._pass(machine, max(1, batch // sum(gang))) for machine in machines]
        if any(predicted is None for predicted in even):
            return None
        shares = self._shares(batch, gang, [predicted.steps_per_s for predicted in even if predicted is not None])
        passes = [self._passes(machine, share) for machine, share in zip(machines, shares, strict=True)]
        if any(many is None for many in passes):
            return None
        each = [
            self._pass(machine, max(1, ceil(share / many)))
            for machine, share, many in zip(machines, shares, passes, strict=True)
            if many is not None
        ]
        slowest = _slowest(
            [(predicted, many) for predicted, many in zip(each, passes, strict=True) if predicted and many]
        )
        waits = self._exchange(machines, sum(counts), sum(gang), 1.0 / slowest.steps_per_s)
        if waits is None or len([predicted for predicted in each if predicted]) < len(machines):
            return None
        return _slower(slowest, waits), max(many for many in passes if many), shares

    def _shares(self, batch: int, gang: Sequence[int], speeds: Sequence[float]) -> tuple[int, ...]:
        """Samples of one accelerator of each type: whole, at least one, and together at least the batch."""
        each = [speed for speed, many in zip(speeds, gang, strict=True) for _ in range(many)]
        parts = split_samples(batch, each, [SampleBounds()] * len(each))
        first = [sum(gang[:position]) for position in range(len(gang))]
        return tuple(parts[start] for start in first)

    def _exchange(self, machines: Sequence[CandidateMachine], count: int, gang: int, pass_s: float) -> float | None:
        """Seconds that an update waits for the gradients of a gang of several types."""
        slowest = min((machine.accelerator for machine in machines), key=lambda facts: facts.network_bytes_per_s or 0.0)
        try:
            layout = Layout(float(gang), gang, count)
            whole = sync_s(self.work.kind.gradient_bytes, slowest, layout, self.links.latency_s)
        except CannotPredict as reason:
            for machine in machines:
                self.refused.setdefault(machine.offer.name, str(reason))
            return None
        return exposed_s(whole, pass_s, self.links.overlap)

    def _pass(self, machine: CandidateMachine, local: int) -> Prediction | None:
        return self._predicted(machine, Layout(float(local)))

    def _predicted(self, machine: CandidateMachine, layout: Layout) -> Prediction | None:
        cell = SpeedCell(self.work.kind, machine.accelerator, layout)
        if cell not in self._predictions:
            try:
                self._predictions[cell] = self.model.predict(cell)
            except CannotPredict as reason:
                self.refused.setdefault(machine.offer.name, str(reason))
                self._predictions[cell] = None
        return self._predictions[cell]


def _slowest(predicted: Sequence[tuple[Prediction, int]]) -> Prediction:
    """Of updates that take so many passes each: whoever is last."""
    whole = [Prediction(p.steps_per_s / many, p.low / many, p.high / many) for p, many in predicted]
    return min(whole, key=lambda prediction: prediction.steps_per_s)


def _slower(prediction: Prediction, waits_s: float) -> Prediction:
    """With so many more seconds in each update."""
    steps = [1.0 / (1.0 / speed + waits_s) for speed in (prediction.steps_per_s, prediction.low, prediction.high)]
    return Prediction(*steps)


def recommend_setup(setups: Sequence[Setup], goal: RunGoal) -> Recommendation | None:
    """The cheapest on time, or the fastest affordable, even when late; where none is so sure, what keeps it if all
    goes as expected, and else what misses it least: both told as not kept. None where nothing runs at all.
    """
    sure = [setup for setup in setups if goal.met(setup.option(late=True))]
    by_option = {setup.option(late=False): setup for setup in setups}
    choice = choose_option((setup.option(late=False) for setup in sure), goal) if sure else None
    general = choose_option(by_option, goal)
    if general is None:
        return None
    front = tuple(by_option[option] for option in general.front)
    taken: OptionChoice = choice or general
    why = taken.why if choice or not general.kept else f"{general.why}, if all goes as expected: late cases miss it"
    assert isfinite(taken.option.time_s), "only setups that can run are options"
    return Recommendation(by_option[taken.option], choice is not None, why, front, len(setups))
