"""When generated jobs arrive: at random, with the rhythm of days and weeks, or in bursts."""

import heapq
from collections.abc import Iterator
from itertools import islice
from math import log, pi, sin
from random import Random

from simulator.streams import Streams
from simulator.workloads.job import TraceJob
from simulator.workloads.mix import Asked, Mix

_HOUR_S, _DAY_S = 3600.0, 86_400.0
#: Between the mean of a day and its busiest hour, 15:00.
_SWING = 0.8
_BUSIEST_H = 15.0
#: Of a working day's rate; the trace begins on a Monday at 0:00.
_WEEKEND = 0.5
_MEAN_BURST = 10.0
_BETWEEN_BURST_JOBS_S = 20.0


def poisson_at(rate_per_h: float, random: Random) -> Iterator[float]:
    """Instants of a Poisson process, the first at 0. Rate 0: everything at once."""
    at = 0.0
    while True:
        yield at
        if rate_per_h > 0:
            at += -log(1.0 - random.random()) * _HOUR_S / rate_per_h


def poisson(asked: Asked) -> Iterator[TraceJob]:
    """Jobs that know nothing of each other, at a constant mean rate."""
    streams = Streams(asked.seed)
    mix = Mix(asked, streams)
    instants = islice(poisson_at(asked.rate_per_h, streams.stream("arrivals")), asked.jobs)
    return (mix.drawn(number, at) for number, at in enumerate(instants, start=1))


def relative_rate(at: float) -> float:
    """Arrivals at an instant against the mean of a working day."""
    day, second = divmod(at, _DAY_S)
    daily = 1.0 + _SWING * sin(2.0 * pi * (second / _HOUR_S - _BUSIEST_H + 6.0) / 24.0)
    return daily * (_WEEKEND if int(day) % 7 >= 5 else 1.0)


def diurnal(asked: Asked) -> Iterator[TraceJob]:
    """Busy afternoons, quiet nights and weekends; the rate is that of a mean working day."""
    streams = Streams(asked.seed)
    mix, thinning = Mix(asked, streams), streams.stream("thinning")
    highest = 1.0 + _SWING
    candidates = poisson_at(asked.rate_per_h * highest, streams.stream("arrivals"))
    instants = (at for at in candidates if not asked.rate_per_h or thinning.random() * highest < relative_rate(at))
    return (mix.drawn(number, at) for number, at in enumerate(islice(instants, asked.jobs), start=1))


def burst(asked: Asked) -> Iterator[TraceJob]:
    """Users who submit about ten jobs of one kind and gang within minutes: searches for hyperparameters."""
    streams = Streams(asked.seed)
    mix = Mix(asked, streams)
    bodies = islice(_in_order(asked, streams, mix), asked.jobs)
    return (
        mix.job(number, at, gang=gang, kind=kind, owner=owner, duration_s=mix.duration_s())
        for number, (at, _, gang, kind, owner) in enumerate(bodies, start=1)
    )


_Body = tuple[float, int, int, str, tuple[str, str]]


def _in_order(asked: Asked, streams: Streams, mix: Mix) -> Iterator[_Body]:
    """Jobs of overlapping bursts, merged: (arrival, order of drawing, gang, kind, owner)."""
    sizes, gaps = streams.stream("bursts"), streams.stream("gaps")
    waiting: list[_Body] = []
    drawn = 0
    for begins_at in poisson_at(asked.rate_per_h / _MEAN_BURST, streams.stream("arrivals")):
        while waiting and waiting[0][0] <= begins_at:
            yield heapq.heappop(waiting)
        gang, at = mix.gang(), begins_at
        kind, owner = mix.kind(gang), mix.owner()
        size = 1 + int(log(1.0 - sizes.random()) / log(1.0 - 1.0 / _MEAN_BURST))
        for _ in range(size):
            heapq.heappush(waiting, (at, drawn, gang, kind, owner))
            drawn += 1
            if asked.rate_per_h > 0:
                at += -log(1.0 - gaps.random()) * _BETWEEN_BURST_JOBS_S
