"""What generated jobs are like: sizes, lengths, kinds, owners. When they arrive: `simulator.workloads.arrivals`.

The distributions are the published ones of Gavel's generated jobs (OSDI 2020), made after the Philly trace: gangs of 1,
2, 4 and 8 accelerators for 70, 10, 15 and 5 % of the jobs; four jobs in five run 60 x 10^U(1.5, 3) seconds on a V100,
the fifth 60 x 10^U(3, 4); 26 kinds alike, of which 19 can be spread over several accelerators. Users and projects are
ours: a few of them submit most of the jobs.
"""

from dataclasses import dataclass
from random import Random

from simulator.streams import Streams
from simulator.workloads.job import TraceJob
from simulator.workloads.source import batch_of

#: The type that lengths refer to.
REFERENCE = "v100"


def _sized(model: str, *batches: int) -> tuple[str, ...]:
    return tuple(f"{model} (batch size {batch})" for batch in batches)


#: Kinds that can be spread over several accelerators, in Gavel's order.
SPREADABLE = (
    *_sized("ResNet-18", 16, 32, 64, 128, 256),
    *_sized("ResNet-50", 16, 32, 64, 128),
    *_sized("Transformer", 16, 32, 64, 128, 256),
    *_sized("LM", 5, 10, 20, 40, 80),
)
KINDS = (*SPREADABLE, *_sized("Recommendation", 512, 1024, 2048, 4096, 8192), "A3C", "CycleGAN")

#: (user, project), as often as they submit.
_OWNERS = (
    *[("ada", "vision")] * 12, *[("bob", "language")] * 8, *[("cho", "vision")] * 6, *[("dee", "speech")] * 4,
    *[("eli", "language")] * 3, *[("fay", "search")] * 2, *[("gus", "speech")] * 2, ("hal", "search"),
)  # fmt: skip
_URGENT_WEIGHT = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a generator is asked for."""

    jobs: int
    #: Mean arrivals per hour; 0: all jobs are there at the beginning.
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
    """1, 2, 4 or 8."""
    drawn = random.uniform(0, 1)
    return 1 if drawn < 0.7 else 2 if drawn <= 0.8 else 4 if drawn <= 0.95 else 8


def draw_duration_s(random: Random) -> float:
    """Half an hour to a week, most of them short."""
    is_long = random.random() >= 0.8
    exponent = random.uniform(3, 4) if is_long else random.uniform(1.5, 3)
    return 60.0 * float(10.0**exponent)


def draw_slo(random: Random) -> float:
    """1.2, 2 or 10."""
    drawn = random.uniform(0, 1)
    return 1.2 if drawn < 0.33 else 2.0 if drawn < 0.67 else 10.0


def draw_weight(random: Random) -> float:
    """5 for one job in five, else 1."""
    return _URGENT_WEIGHT if random.uniform(0, 1) <= 0.2 else 1.0


class Mix:
    """Draws jobs. Each property has a stream of its own: asking for one more never changes the others."""

    def __init__(self, asked: Asked, streams: Streams) -> None:
        self._asked = asked
        self._gangs = streams.stream("gangs")
        self._durations = streams.stream("durations")
        self._kinds = streams.stream("kinds")
        self._owners = streams.stream("owners")
        self._weights = streams.stream("weights")
        self._slos = streams.stream("slos")

    def gang(self) -> int:
        """Accelerators of the next job."""
        return draw_gang(self._gangs) if self._asked.gangs else 1

    def kind(self, gang: int) -> str:
        """A kind that can be spread so far."""
        return self._kinds.choice(SPREADABLE if gang > 1 else KINDS)

    def owner(self) -> tuple[str, str]:
        """User and project."""
        return self._owners.choice(_OWNERS)

    def duration_s(self) -> float:
        """Seconds on a V100, to a tenth."""
        return self.stretched_s(draw_duration_s(self._durations))

    def stretched_s(self, duration_s: float) -> float:
        """As long as was asked for, to a tenth of a second, and a second at least."""
        return max(1.0, round(duration_s * self._asked.stretch, 1))

    def job(
        self, number: int, at: float, *, gang: int, kind: str, owner: tuple[str, str], duration_s: float
    ) -> TraceJob:
        """A job with these properties; weight and SLO are drawn if they were asked for."""
        return TraceJob(
            at=round(at, 3),
            name=f"job-{number}",
            kind=kind,
            gang=gang,
            duration_s=duration_s,
            duration_on=REFERENCE,
            weight=draw_weight(self._weights) if self._asked.priorities else 1.0,
            user=owner[0],
            project=owner[1],
            slo=draw_slo(self._slos) if self._asked.slos else None,
            batch=batch_of(kind),
        )

    def drawn(self, number: int, at: float) -> TraceJob:
        """A job with everything drawn."""
        gang = self.gang()
        return self.job(number, at, gang=gang, kind=self.kind(gang), owner=self.owner(), duration_s=self.duration_s())
