"""Parameters and results that papers state, against which models are held by benchmarks and tests."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import isfinite

from optimizer.planning.machine_choice import MachineOffer, RunOption, TimeForecast, option_of
from optimizer.planning.spot_training import LossLaw, ServerLink, SpotTraining, worker_measured

#: Updates per second of 1 to 8 workers, ResNet-32 (CM-DARE, ICDCS 2020): type, parameter servers.
K80_ONE_SERVER = (4.4, 8.7, 13.1, 18.0, 22.2, 26.2, 30.7, 35.0)
P100_ONE_SERVER = (11.4, 22.0, 34.0, 40.1, 43.9, 43.7, 46.3, 42.5)
P100_TWO_SERVERS = (12.4, 24.9, 39.5, 49.5, 64.7, 72.7, 78.0, 72.8)

#: ResNet-110 on CIFAR-100 (spotDNN, IWQoS 2023, and its repository): machines in the order of `OFFERS`.
OFFERS = (
    MachineOffer("p3.2xlarge", 0.918, 2),
    MachineOffer("g4dn.4xlarge", 0.3612, 5),
    MachineOffer("g3.8xlarge", 0.684, 5),
    MachineOffer("g3.16xlarge", 1.5676, 8),
    MachineOffer("p2.8xlarge", 2.16, 5),
)
#: The same on demand, USD/h (EC2, as the paper has them).
ON_DEMAND_USD = (3.06, 1.20, 2.28, 4.56, 7.20)
_SPEEDS = (1885.0, 750.0, 1018.0, 1995.0, 2115.0)
_BATCHES = (1024.0, 1024.0, 512.0, 512.0, 1024.0)
_ACCELERATORS = (1, 1, 2, 4, 8)
_MODEL_BYTES = 11.54e6
_HOST = 10e9
LINK = ServerLink(1200e6, 142e6, alpha=0.8, beta=-1.92)
#: Loss, deadline in seconds, machines of each offer (its Table V).
PLANS = ((0.9, 1900, (2, 0, 2, 0, 0)), (0.8, 2400, (2, 0, 4, 0, 0)), (0.7, 3700, (2, 1, 4, 0, 0)))


def resnet_110(loss: float) -> SpotTraining:
    """The job, trained to this loss."""
    network_s = 2 * _MODEL_BYTES / LINK.wanted_bytes_per_s
    types = tuple(
        worker_measured(speed, batch * accelerators, accelerators, network_s)
        for speed, batch, accelerators in zip(_SPEEDS, _BATCHES, _ACCELERATORS, strict=True)
    )
    return SpotTraining(types, LINK, _MODEL_BYTES, _HOST, LossLaw(876.5, -0.2, 2507.6, 0.5), loss)


def update_speeds(job: SpotTraining) -> list[float]:
    """Updates per second of one machine of each type alone."""
    return [1.0 / job.update_s(kind, 1) for kind in job.types]


def all_options(offers: Sequence[MachineOffer], forecast: TimeForecast) -> Iterator[RunOption]:
    """Every choice of counts that can run, as Srifty tries them: exponential in the number of offers."""
    for counts in product(*(range(offer.most + 1) for offer in offers)):
        if any(counts) and isfinite(time_s := forecast(counts)):
            yield option_of(offers, counts, time_s)
