"""The job mix of Hadar's simulations (IPDPS 2024) for a cluster of 60 accelerators, as far as it is known.

Each job falls into one of four classes of accelerator-hours (0-1, 1-10, 10-50, 60-100), alike, and trains
one of five models, alike. Gangs follow Gavel's distribution. How classes and models go together was not published in
what we know, so they are drawn independently.
"""

from collections.abc import Iterator
from itertools import islice

from simulator.streams import Streams
from simulator.workloads.arrivals import poisson_at
from simulator.workloads.job import TraceJob
from simulator.workloads.mix import SPREADABLE, Asked, Mix

#: Accelerator-hours: small, medium, large, extra large.
CLASSES_H = ((0.0, 1.0), (1.0, 10.0), (10.0, 50.0), (60.0, 100.0))
#: ResNet-50, ResNet-18, LSTM, CycleGAN, Transformer, at a middling batch size of Gavel's table.
MODELS = (
    "ResNet-50 (batch size 64)",
    "ResNet-18 (batch size 64)",
    "LM (batch size 20)",
    "CycleGAN",
    "Transformer (batch size 64)",
)
_LEAST_S = 60.0


def hadar_60(asked: Asked) -> Iterator[TraceJob]:
    """The jobs. Of a gang that several accelerators share, the work is divided evenly."""
    streams = Streams(asked.seed)
    mix, classes, models = Mix(asked, streams), streams.stream("classes"), streams.stream("models")
    spreadable = [model for model in MODELS if model in SPREADABLE]
    instants = islice(poisson_at(asked.rate_per_h, streams.stream("arrivals")), asked.jobs)
    for number, at in enumerate(instants, start=1):
        gang = mix.gang()
        hours = classes.uniform(*classes.choice(CLASSES_H))
        kind = models.choice(spreadable if gang > 1 else MODELS)
        duration_s = mix.stretched_s(max(_LEAST_S, hours * 3600.0 / gang))
        yield mix.job(number, at, gang=gang, kind=kind, owner=mix.owner(), duration_s=duration_s)
