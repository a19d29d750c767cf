"""The choice of machines for a training job: all setups, their Pareto front, and the one to take with the reason.

A setup is a set of machines, a batch and a number of passes. The search covers every count of one machine type
(Srifty), and sets of several types that are neighbours in speed (spotDNN), which divide the batch by speed so that none
waits for another. Where a machine's memory does not hold its part of the batch, the part is processed in several passes
(gradient accumulation). A larger batch needs more samples, as the gradient's noise scale says; where that is unknown,
only the job's own batch is tried. Without a deadline or a budget the knee of the front of time against money is taken
(Scavenger). The caller passes the speed model: this module forecasts no speeds itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite

from optimizer.prediction.loss_curve import statistical_efficiency
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
from walras.contract import SECONDS_PER_HOUR
from walras.training.work_split import SampleBounds, split_samples
from walras.units import format_length, format_money

#: Seconds of a job by the number of machines of each offer; infinite where the job cannot run on them.
TimeForecast = Callable[[tuple[int, ...]], float]


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """A machine that can be rented: its price, and the largest number of them."""

    name: str
    usd_per_h: float
    most: int


@dataclass(frozen=True, slots=True)
class RunOption:
    """One way to run the whole job, with its time and cost."""

    #: Machines of each offer (or other counts of the caller); the smaller counts win ties in time and money.
    counts: tuple[int, ...]
    time_s: float
    usd: float


@dataclass(frozen=True, slots=True)
class RunGoal:
    """A latest end and a largest cost, each None without such a limit. Without limits the knee is chosen."""

    deadline_s: float | None = None
    budget_usd: float | None = None

    def met(self, option: RunOption) -> bool:
        """Returns whether the option keeps both limits."""
        on_time = self.deadline_s is None or option.time_s <= self.deadline_s
        return on_time and (self.budget_usd is None or option.usd <= self.budget_usd)


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """The option to take, whether it meets the goal, the reason, and the other options of the Pareto front."""

    option: RunOption
    kept: bool
    why: str
    front: tuple[RunOption, ...]


def option_of(offers: Sequence[MachineOffer], counts: tuple[int, ...], time_s: float) -> RunOption:
    """Returns the option for these counts: every machine is paid for as long as the job runs."""
    usd_per_h = sum(count * offer.usd_per_h for count, offer in zip(counts, offers, strict=True))
    return RunOption(counts, time_s, time_s / SECONDS_PER_HOUR * usd_per_h)


def speed_windows(
    offers: Sequence[MachineOffer],
    forecast: TimeForecast,
    speeds: Sequence[float],
    most: int,
) -> Iterator[RunOption]:
    """Generates runs of at most `most` neighbours in the list of machines sorted by speed, slowest first, each set of
    counts once.

    Types that are not neighbours in speed are never combined, which keeps the search small.
    """
    order = sorted(range(len(offers)), key=lambda index: (speeds[index], index))
    listed = [index for index in order for _ in range(offers[index].most)]
    seen: dict[tuple[int, ...], None] = {}
    for size in range(most + 1):
        for first in range(len(listed) - size + 1):
            counts = [0] * len(offers)
            for index in listed[first : first + size]:
                counts[index] += 1
            seen[tuple(counts)] = None
    yield from _options(offers, seen, forecast)


def _options(
    offers: Sequence[MachineOffer], all_counts: Iterable[tuple[int, ...]], forecast: TimeForecast
) -> Iterator[RunOption]:
    for counts in all_counts:
        if not any(counts):
            continue
        time_s = forecast(counts)
        if isfinite(time_s):
            yield option_of(offers, counts, time_s)


def pareto_front(options: Iterable[RunOption]) -> tuple[RunOption, ...]:
    """Returns the options that no other beats in time or money without losing in the other, fastest first."""
    front: list[RunOption] = []
    for option in sorted(options, key=lambda option: (option.time_s, option.usd, option.counts)):
        if not front or option.usd < front[-1].usd:
            front.append(option)
    return tuple(front)


def knee(front: Sequence[RunOption]) -> RunOption:
    """Returns the knee of the front: the option furthest below the line between its ends, with both axes scaled to
    them.

    A front of one or two options has no knee: the cheaper one is returned.
    """
    assert front, "a front holds at least one option"
    first, last = front[0], front[-1]
    time_s, usd = last.time_s - first.time_s, first.usd - last.usd
    if len(front) <= 2:
        return last

    def below(option: RunOption) -> float:
        return 1.0 - (option.time_s - first.time_s) / time_s - (option.usd - last.usd) / usd

    return max(front, key=below)


def choose_option(options: Iterable[RunOption], goal: RunGoal) -> OptionChoice | None:
    """Returns the cheapest option that is on time, or the fastest within the budget, or the knee; None without options.

    Where no option meets the goal, the one that misses it least is returned, marked as not meeting it.
    """
    front = pareto_front(options)
    if not front:
        return None
    within = [option for option in front if goal.met(option)]
    if goal.deadline_s is None and goal.budget_usd is None:
        return OptionChoice(knee(front), True, "the knee: less time costs more than it saves from here on", front)
    if not within:
        return _missed(front, goal)
    if goal.deadline_s is not None:
        return OptionChoice(within[-1], True, f"the cheapest within {format_length(goal.deadline_s)}", front)
    assert goal.budget_usd is not None, "without any limit the knee was taken"
    return OptionChoice(within[0], True, f"the fastest within {format_money(goal.budget_usd)}", front)


def _missed(front: tuple[RunOption, ...], goal: RunGoal) -> OptionChoice:
    if goal.budget_usd is None:
        assert goal.deadline_s is not None, "only a limit can be missed"
        return OptionChoice(
            front[0], False, f"nothing is done within {format_length(goal.deadline_s)}: the fastest", front
        )
    affordable = [option for option in front if option.usd <= goal.budget_usd]
    if goal.deadline_s is None or not affordable:
        return OptionChoice(
            front[-1], False, f"nothing costs {format_money(goal.budget_usd)} or less: the cheapest", front
        )
    late = f"nothing affordable is done within {format_length(goal.deadline_s)}: the fastest of those"
    return OptionChoice(affordable[0], False, late, front)


#: Largest number of passes per update: a machine that needs more is too small for the job.
PASSES_MOST = 64


@dataclass(frozen=True, slots=True)
class CandidateMachine:
    """A machine that can be rented, and its hardware."""

    offer: MachineOffer
    accelerator: AcceleratorSpecs
    accelerators: int
    #: Revocations of one such machine per hour; 0: it is never revoked.
    revocations_per_h: float = 0.0
    #: Seconds from the request until the machine works: waited for once, and paid.
    boot_s: float = 0.0
    #: Least number of seconds that are billed.
    minimum_billing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The work left of a job, in samples at batch size `batch`."""

    kind: KindFacts
    samples: float
    batch: int
    #: Batch sizes that may be tried; `batch` alone where their effect on convergence is unknown.
    batches: tuple[int, ...] = ()
    #: Noise scale of the gradient, in samples; None: not measured.
    noise_scale: float | None = None

    def steps(self, batch: int) -> float:
        """Returns the number of updates to the end at this batch size."""
        worth = 1.0 if batch == self.batch else statistical_efficiency(self.noise_scale or 0.0, batch, self.batch)
        return self.samples / (batch * worth)

    @property
    def tried(self) -> tuple[int, ...]:
        """Batch sizes that are worth a forecast."""
        return self.batches if self.batches and self.noise_scale is not None else (self.batch,)


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run the whole job. Times are for the whole job; `early` and `late` bound an 80 % interval."""

    #: Machines of each offer, and the number of accelerators in all of them.
    counts: tuple[int, ...]
    accelerators: int
    batch: int
    #: Passes per update on the machine that needs most.
    passes: int
    #: Samples per accelerator of each offer in one update; 0 for offers that are not used.
    shares: tuple[int, ...]
    steps_per_s: float
    time_s: float
    early_s: float
    late_s: float
    usd: float

    def option(self, late: bool) -> RunOption:
        """Returns the option to compare: with the expected time, or with the upper end of the 80 % interval."""
        time_s = self.late_s if late else self.time_s
        return RunOption((*self.counts, self.batch), time_s, self.usd * time_s / self.time_s)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setup to take, whether it meets the goal even when late, the reason, and the Pareto front of all setups."""

    setup: Setup
    kept: bool
    why: str
    front: tuple[Setup, ...]
    tried: int


def _all_of_it(revocations_per_h: float) -> float:
    return 1.0


@dataclass(slots=True)
class SetupForecasts:
    """Forecasts of one job on machines, from a speed model; results are cached."""

    work: RemainingWork
    machines: Sequence[CandidateMachine]
    model: SpeedModel
    #: The machine that provides the network's law where a gang is of several types.
    links: RooflinePredictor = field(default_factory=RooflinePredictor)
    #: Part of the time that becomes lasting work, as a function of the gang's revocations per hour.
    lasting: Callable[[float], float] = _all_of_it
    _predictions: dict[SpeedCell, Prediction | None] = field(default_factory=dict)
    #: Machines without a forecast, each with one reason.
    refused: dict[str, str] = field(default_factory=dict)

    def setups(self, most: int, mixed: bool) -> Iterator[Setup]:
        """Generates setups of at most `most` machines; if `mixed`, also of several types with similar speeds."""
        for batch in self.work.tried:
            for counts in self._one_type(most):
                found = self.setup(counts, batch)
                if found is not None:
                    yield found
            if mixed:
                yield from self._several_types(most, batch)

    def setup(self, counts: tuple[int, ...], batch: int) -> Setup | None:
        """Returns the setup of these machines at this batch; None if it does not fit or cannot be forecast."""
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
        """Updates per second of one machine alone; 0 where no forecast is possible."""
        layout = self._layout(machine, 1, batch)
        predicted = None if layout is None else self._predicted(machine, layout)
        return 0.0 if predicted is None else predicted.steps_per_s

    def _layout(self, machine: CandidateMachine, count: int, batch: int) -> Layout | None:
        """Returns the layout with the fewest passes that memory allows; None where no number of passes fits."""
        accelerators = count * machine.accelerators
        if batch < accelerators:
            return None
        passes = self._passes(machine, ceil(batch / accelerators))
        return None if passes is None else Layout(float(batch), accelerators, count, passes - 1)

    def _passes(self, machine: CandidateMachine, local: int) -> int | None:
        """Returns the fewest passes for `local` samples; 1 where the memory need is unknown, None where none fits."""
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
        """Divides the batch by speed; the slowest machine and the slowest network set the pace."""
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
        """Samples per accelerator of each type: whole, at least one, and together at least the batch."""
        each = [speed for speed, many in zip(speeds, gang, strict=True) for _ in range(many)]
        parts = split_samples(batch, each, [SampleBounds()] * len(each))
        first = [sum(gang[:position]) for position in range(len(gang))]
        return tuple(parts[start] for start in first)

    def _exchange(self, machines: Sequence[CandidateMachine], count: int, gang: int, pass_s: float) -> float | None:
        """Seconds that an update waits for the gradients in a gang of several types."""
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
    """Combines predictions, each with its passes per update: the slowest machine sets the pace."""
    whole = [Prediction(p.steps_per_s / many, p.low / many, p.high / many) for p, many in predicted]
    return min(whole, key=lambda prediction: prediction.steps_per_s)


def _slower(prediction: Prediction, waits_s: float) -> Prediction:
    """Returns the prediction with `waits_s` more seconds in each update."""
    steps = [1.0 / (1.0 / speed + waits_s) for speed in (prediction.steps_per_s, prediction.low, prediction.high)]
    return Prediction(*steps)


def recommend_setup(setups: Sequence[Setup], goal: RunGoal) -> Recommendation | None:
    """Returns the cheapest setup on time, or the fastest within the budget, judged by its late time.

    Where no setup is that certain, returns the one that meets the goal as expected, else the one that misses it least;
    both are marked as not meeting the goal. Returns None where no setup runs at all.
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
