"""Speeds for a trace that knows none: one stated rule, so that a figure that rests on it can be had again.

A kind has a sensitivity s ~ U(0.3, 1.7). On a type of nominal speed n it makes n^s x e^z steps a second, with
z ~ N(0, 0.15), to four digits: the types differ from kind to kind, and not always in the same order. Jobs without a
kind of their own are dealt out to so many kinds at random. Everything is drawn from named streams of one seed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from simulator.streams import Streams
from simulator.workloads.job import TraceJob

#: The kind of a job whose trace names none.
NO_KIND = "any"
_SENSITIVITY = (0.3, 1.7)
_NOISE = 0.15


def with_seeded_speeds(
    jobs: Iterable[TraceJob], nominal: Mapping[str, float], *, kinds: int = 26, seed: int = 0
) -> Iterator[TraceJob]:
    """The jobs with a speed on every type of `nominal` (name to nominal speed).

    A duration on a type that is not among them becomes one on the fastest that is.
    """
    streams = Streams(seed)
    dealing = streams.stream("dealing")
    names = [f"kind-{number:02}" for number in range(1, kinds + 1)]
    speeds: dict[str, tuple[tuple[str, float], ...]] = {}
    for job in jobs:
        kind = dealing.choice(names) if job.kind == NO_KIND else job.kind
        if kind not in speeds:
            speeds[kind] = _drawn(streams, kind, nominal)
        on = job.duration_on if job.duration_on in nominal else ""
        yield replace(job, kind=kind, speeds=speeds[kind], duration_on=on)


def _drawn(streams: Streams, kind: str, nominal: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    random = streams.stream(f"speeds of {kind}")
    sensitivity = random.uniform(*_SENSITIVITY)
    return tuple(
        (name, float(f"{nominal[name] ** sensitivity * random.lognormvariate(0.0, _NOISE):.4g}"))
        for name in sorted(nominal)
    )
