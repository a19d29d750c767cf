"""Generated workloads: the distributions of jobs, the arrival processes, and the generators by name (`GENERATORS`).

**Jobs.** The distributions are the published ones of Gavel's generated jobs (OSDI 2020), made after the Philly trace:
gangs of 1, 2, 4 and 8 accelerators for 70, 10, 15 and 5 % of the jobs; four jobs in five run 60 x 10^U(1.5, 3) seconds
on a V100, the fifth 60 x 10^U(3, 4); 26 kinds, equally likely, of which 19 can run on several accelerators. Users and
projects are Walras's own: a few of them submit most of the jobs.

**Arrivals** are a Poisson process, a Poisson process with the rhythm of days and weeks, or bursts.

**gavel** repeats Gavel's own generator draw for draw: with its throughput table, the same seed gives the same trace.
One stream is for the jobs (seed + 2), one for the times between them (seed + 3), one for SLOs (seed + 6). A job draws
its gang, then its length, then its kind (again while the gang is above 1 and the kind cannot be distributed), then its
weight where weights were requested. The gang is drawn even if every job then gets one accelerator.

**hadar-60** is the job mix of Hadar's simulations (IPDPS 2024) for a cluster of 60 accelerators, as far as it is known.
Each job falls into one of four classes of accelerator-hours (0-1, 1-10, 10-50, 60-100) and trains one of five models,
each equally likely. Gangs follow Gavel's distribution. The joint distribution of classes and models is unknown to us,
so they are drawn independently.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import log, pi, sin
from pathlib import Path
from random import Random

from scheduler.world.engine import RandomStreams
from simulator.ground_truth import SpeedKey
from simulator.workloads.trace_binding import read_throughput_table
from simulator.workloads.trace_source import MAX_JOBS, TraceJob, batch_in_kind
from walras.contract import SECONDS_PER_DAY, SECONDS_PER_HOUR
from walras.errors import ConfigError
from walras.job_request import Kind
from walras.spec.file_model import nearest_or_all

#: The accelerator type to which lengths refer.
REFERENCE_TYPE = "v100"


def _kinds_of_model(model: str, *batches: int) -> tuple[str, ...]:
    return tuple(f"{model} (batch size {batch})" for batch in batches)


#: Kinds that can run on several accelerators, in Gavel's order.
SPREADABLE = (
    *_kinds_of_model("ResNet-18", 16, 32, 64, 128, 256),
    *_kinds_of_model("ResNet-50", 16, 32, 64, 128),
    *_kinds_of_model("Transformer", 16, 32, 64, 128, 256),
    *_kinds_of_model("LM", 5, 10, 20, 40, 80),
)
KINDS = (*SPREADABLE, *_kinds_of_model("Recommendation", 512, 1024, 2048, 4096, 8192), "A3C", "CycleGAN")

#: (user, project), repeated as often as they submit.
_OWNERS = (
    *[("ada", "vision")] * 12, *[("bob", "language")] * 8, *[("cho", "vision")] * 6, *[("dee", "speech")] * 4,
    *[("eli", "language")] * 3, *[("fay", "search")] * 2, *[("gus", "speech")] * 2, ("hal", "search"),
)  # fmt: skip
_URGENT_WEIGHT = 5.0


@dataclass(frozen=True, slots=True)
class GeneratorRequest:
    jobs: int
    #: Mean arrivals per hour; 0: all jobs arrive at the beginning.
    rate_per_h: float
    seed: int = 0
    #: True: gangs of 1 to 8; False: one accelerator for each job.
    gangs: bool = True
    #: True: one job in five has weight 5.
    priorities: bool = False
    #: True: each job has a deadline: 1.2, 2 or 10 times its run time, a third each.
    slos: bool = False
    #: Durations are multiplied by this.
    stretch: float = 1.0


def draw_gang(random: Random) -> int:
    """Draws 1, 2, 4 or 8."""
    drawn = random.uniform(0, 1)
    return 1 if drawn < 0.7 else 2 if drawn <= 0.8 else 4 if drawn <= 0.95 else 8


def draw_duration_s(random: Random) -> float:
    """Draws half an hour to a week, mostly short."""
    is_long = random.random() >= 0.8
    exponent = random.uniform(3, 4) if is_long else random.uniform(1.5, 3)
    return 60.0 * float(10.0**exponent)


def draw_slo(random: Random) -> float:
    """Draws 1.2, 2 or 10."""
    drawn = random.uniform(0, 1)
    return 1.2 if drawn < 0.33 else 2.0 if drawn < 0.67 else 10.0


def draw_weight(random: Random) -> float:
    """Draws 5 for one job in five, else 1."""
    return _URGENT_WEIGHT if random.uniform(0, 1) <= 0.2 else 1.0


class JobMix:
    """Draws jobs, numbered from 1. Each property has its own stream: a further property never changes the others."""

    def __init__(self, request: GeneratorRequest, streams: RandomStreams) -> None:
        self._request = request
        self._jobs = 0
        self._gangs = streams.stream("gangs")
        self._durations = streams.stream("durations")
        self._kinds = streams.stream("kinds")
        self._owners = streams.stream("owners")
        self._weights = streams.stream("weights")
        self._slos = streams.stream("slos")

    def gang(self) -> int:
        """Accelerators of the next job."""
        return draw_gang(self._gangs) if self._request.gangs else 1

    def kind(self, gang: int) -> str:
        """Draws a kind that runs on `gang` accelerators."""
        return self._kinds.choice(SPREADABLE if gang > 1 else KINDS)

    def owner(self) -> tuple[str, str]:
        """Draws user and project."""
        return self._owners.choice(_OWNERS)

    def duration_s(self) -> float:
        """Seconds on a V100, to a tenth."""
        return self.stretched_s(draw_duration_s(self._durations))

    def stretched_s(self, duration_s: float) -> float:
        """Applies the requested stretch; rounds to a tenth of a second, at least one second."""
        return max(1.0, round(duration_s * self._request.stretch, 1))

    def job(self, at: float, *, gang: int, kind: str, owner: tuple[str, str], duration_s: float) -> TraceJob:
        """Returns the next job, with these properties; draws weight and SLO if they are requested."""
        self._jobs += 1
        return TraceJob(
            at=round(at, 3),
            name=f"job-{self._jobs}",
            kind=kind,
            gang=gang,
            duration_s=duration_s,
            duration_on=REFERENCE_TYPE,
            weight=draw_weight(self._weights) if self._request.priorities else 1.0,
            user=owner[0],
            project=owner[1],
            slo=draw_slo(self._slos) if self._request.slos else None,
            batch=batch_in_kind(kind),
        )

    def drawn(self, at: float) -> TraceJob:
        """Draws a whole job."""
        gang = self.gang()
        return self.job(at, gang=gang, kind=self.kind(gang), owner=self.owner(), duration_s=self.duration_s())


#: Ratio of a day's busiest hour, 15:00, to its mean, less 1.
_SWING = 0.8
_BUSIEST_H = 15.0
#: Rate relative to a working day's; the trace begins on a Monday at 0:00.
_WEEKEND = 0.5
_MEAN_BURST = 10.0
_BETWEEN_BURST_JOBS_S = 20.0


def poisson_arrivals(rate_per_h: float, random: Random) -> Iterator[float]:
    """Generates the instants (seconds) of a Poisson process, the first at 0. Rate 0: all instants are 0."""
    at = 0.0
    while True:
        yield at
        if rate_per_h > 0:
            at += -log(1.0 - random.random()) * SECONDS_PER_HOUR / rate_per_h


def poisson_jobs(request: GeneratorRequest) -> Iterator[TraceJob]:
    """Generates independent jobs at a constant mean rate."""
    streams = RandomStreams(request.seed)
    mix = JobMix(request, streams)
    return map(mix.drawn, islice(poisson_arrivals(request.rate_per_h, streams.stream("arrivals")), request.jobs))


def diurnal_rate(at: float) -> float:
    """Returns the arrival rate at an instant, relative to the mean of a working day."""
    day, second = divmod(at, SECONDS_PER_DAY)
    daily = 1.0 + _SWING * sin(2.0 * pi * (second / SECONDS_PER_HOUR - _BUSIEST_H + 6.0) / 24.0)
    return daily * (_WEEKEND if int(day) % 7 >= 5 else 1.0)


def diurnal_jobs(request: GeneratorRequest) -> Iterator[TraceJob]:
    """Generates jobs with busy afternoons, quiet nights and weekends; the rate is that of a mean working day."""
    streams = RandomStreams(request.seed)
    mix, thinning = JobMix(request, streams), streams.stream("thinning")
    highest = 1.0 + _SWING
    candidates = poisson_arrivals(request.rate_per_h * highest, streams.stream("arrivals"))
    instants = (at for at in candidates if not request.rate_per_h or thinning.random() * highest < diurnal_rate(at))
    return map(mix.drawn, islice(instants, request.jobs))


def bursty_jobs(request: GeneratorRequest) -> Iterator[TraceJob]:
    """Generates hyperparameter searches: users who submit about ten jobs of one kind and gang within minutes."""
    streams = RandomStreams(request.seed)
    mix = JobMix(request, streams)
    bodies = islice(_merged_bursts(request, streams, mix), request.jobs)
    return (
        mix.job(at, gang=gang, kind=kind, owner=owner, duration_s=mix.duration_s())
        for at, _, gang, kind, owner in bodies
    )


_BurstJob = tuple[float, int, int, str, tuple[str, str]]


def _merged_bursts(request: GeneratorRequest, streams: RandomStreams, mix: JobMix) -> Iterator[_BurstJob]:
    """Generates the jobs of overlapping bursts, merged: (arrival, order of drawing, gang, kind, owner)."""
    sizes, gaps = streams.stream("bursts"), streams.stream("gaps")
    waiting: list[_BurstJob] = []
    drawn = 0
    for begins_at in poisson_arrivals(request.rate_per_h / _MEAN_BURST, streams.stream("arrivals")):
        while waiting and waiting[0][0] <= begins_at:
            yield heapq.heappop(waiting)
        gang, at = mix.gang(), begins_at
        kind, owner = mix.kind(gang), mix.owner()
        size = 1 + int(log(1.0 - sizes.random()) / log(1.0 - 1.0 / _MEAN_BURST))
        for _ in range(size):
            heapq.heappush(waiting, (at, drawn, gang, kind, owner))
            drawn += 1
            if request.rate_per_h > 0:
                at += -log(1.0 - gaps.random()) * _BETWEEN_BURST_JOBS_S


def gavel_jobs(request: GeneratorRequest, table: Mapping[SpeedKey, float] | None = None) -> Iterator[TraceJob]:
    """Generates the jobs, named by their line from 0. Without a table they have V100 durations instead of steps."""
    jobs, slos = Random(request.seed + 2), Random(request.seed + 6)
    instants = islice(poisson_arrivals(request.rate_per_h, Random(request.seed + 3)), request.jobs)
    for number, at in enumerate(instants):
        gang, duration_s = draw_gang(jobs), draw_duration_s(jobs) * request.stretch
        gang = gang if request.gangs else 1
        kind = jobs.choice(KINDS)
        while gang > 1 and kind not in SPREADABLE:
            kind = jobs.choice(KINDS)
        yield TraceJob(
            # A trace file has six digits.
            at=round(at, 6),
            name=str(number),
            kind=kind,
            gang=gang,
            steps=None if table is None else _gavel_steps(duration_s, kind, gang, table),
            duration_s=duration_s if table is None else None,
            duration_on=REFERENCE_TYPE,
            weight=draw_weight(jobs) if request.priorities else 1.0,
            slo=draw_slo(slos) if request.slos else None,
            batch=batch_in_kind(kind),
        )


def _gavel_steps(duration_s: float, kind: str, gang: int, table: Mapping[SpeedKey, float]) -> float:
    speed = table.get(SpeedKey(Kind(kind), REFERENCE_TYPE, gang))
    if not speed:
        raise ConfigError(
            f"the throughput table has no speed of {kind!r} x {gang} on {REFERENCE_TYPE}",
            field="speeds",
            fix="give Gavel's table, or none",
        )
    return float(int(duration_s * speed))


#: Classes of accelerator-hours: small, medium, large, extra large.
HADAR_CLASSES_H = ((0.0, 1.0), (1.0, 10.0), (10.0, 50.0), (60.0, 100.0))
#: ResNet-50, ResNet-18, LSTM, CycleGAN, Transformer, at a medium batch size of Gavel's table.
HADAR_MODELS = (
    "ResNet-50 (batch size 64)",
    "ResNet-18 (batch size 64)",
    "LM (batch size 20)",
    "CycleGAN",
    "Transformer (batch size 64)",
)
_LEAST_S = 60.0


def hadar_60_jobs(request: GeneratorRequest) -> Iterator[TraceJob]:
    """Yields the jobs. Accelerator-hours are divided evenly over a gang."""
    streams = RandomStreams(request.seed)
    mix, classes, models = JobMix(request, streams), streams.stream("classes"), streams.stream("models")
    spreadable = [model for model in HADAR_MODELS if model in SPREADABLE]
    instants = islice(poisson_arrivals(request.rate_per_h, streams.stream("arrivals")), request.jobs)
    for at in instants:
        gang = mix.gang()
        hours = classes.uniform(*classes.choice(HADAR_CLASSES_H))
        kind = models.choice(spreadable if gang > 1 else HADAR_MODELS)
        duration_s = mix.stretched_s(max(_LEAST_S, hours * SECONDS_PER_HOUR / gang))
        yield mix.job(at, gang=gang, kind=kind, owner=mix.owner(), duration_s=duration_s)


@dataclass(frozen=True, slots=True)
class TraceGenerator:
    """A generator, with its defaults."""

    about: str
    make: Callable[[GeneratorRequest], Iterator[TraceJob]]
    jobs: int
    rate_per_h: float
    #: Whether jobs take several accelerators by default.
    gangs: bool = True


GENERATORS: dict[str, TraceGenerator] = {
    "poisson": TraceGenerator("jobs that know nothing of each other", poisson_jobs, jobs=500, rate_per_h=10.0),
    "diurnal": TraceGenerator("busy afternoons, quiet nights and weekends", diurnal_jobs, jobs=500, rate_per_h=10.0),
    "burst": TraceGenerator("users who submit ten alike within minutes", bursty_jobs, jobs=500, rate_per_h=10.0),
    "gavel": TraceGenerator("Gavel's generated jobs, draw for draw", gavel_jobs, jobs=500, rate_per_h=3.0, gangs=False),
    "hadar-60": TraceGenerator("the mix of Hadar's simulations", hadar_60_jobs, jobs=480, rate_per_h=0.0),
}


def generator_request(
    name: str,
    *,
    jobs: int | None = None,
    rate_per_h: float | None = None,
    seed: int = 0,
    gangs: bool | None = None,
    priorities: bool = False,
    slos: bool = False,
    stretch: float = 1.0,
) -> GeneratorRequest:
    """Completes a request with the generator's defaults. Raises ConfigError for a value out of bounds."""
    generator = _find_generator(name)
    jobs = generator.jobs if jobs is None else jobs
    rate_per_h = generator.rate_per_h if rate_per_h is None else rate_per_h
    if not 1 <= jobs <= MAX_JOBS:
        raise ConfigError(f"{jobs} jobs", field="jobs", fix=f"ask for 1 to {MAX_JOBS:,}")
    if not (rate_per_h == 0 or 1e-3 <= rate_per_h <= 1e7):
        raise ConfigError(
            f"{rate_per_h} jobs per hour", field="rate", fix="give 0 (all at once) or a rate from 0.001 to 10,000,000"
        )
    if not 1e-6 <= stretch <= 1e6:
        raise ConfigError(f"durations times {stretch}", field="stretch", fix="give a factor from 0.000001 to 1,000,000")
    return GeneratorRequest(
        jobs, rate_per_h, seed, generator.gangs if gangs is None else gangs, priorities, slos, stretch
    )


def generate_jobs(name: str, request: GeneratorRequest, speeds_path: str | Path | None = None) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival. A throughput table turns the durations of `gavel` into steps."""
    if speeds_path is None:
        return _find_generator(name).make(request)
    if name != "gavel":
        raise ConfigError(
            f"{name} makes durations, not steps",
            field="speeds",
            fix="give the table to `walras simulate run`; only the generator `gavel` takes one",
        )
    table: Mapping[SpeedKey, float] = read_throughput_table(speeds_path)
    return gavel_jobs(request, table)


def _find_generator(name: str) -> TraceGenerator:
    if name not in GENERATORS:
        fix = nearest_or_all(name, GENERATORS)
        raise ConfigError(f"no generator {name!r}", field="name", fix=fix)
    return GENERATORS[name]
