"""spotDNN (IWQoS 2023): which spot machines train ResNet-110 on CIFAR-100 to a loss within a deadline for least money.

    python -m benchmarks.seeds.spotdnn

Symbols: T_i seconds of one update by worker i, b_i its batch, v_i = b_i/T_i its speed, w_i its part of the sum of all
v, R how uneven these parts are, j the number of updates until the loss L.

    T_exp = 1 / sum 1/T_i                    seconds between updates
    b_w   = T_exp sum v_i                    batch, weighted by speed
    R     = sqrt((w_1 - 1)^2 + sum_{i>1} w_i^2)        w_1 the largest
    L     = (g2 b_w + g3) sqrt((R + g4) n) / (j + g1) + g5

Workers update through parameter servers. The bandwidth left to each of n workers follows from the servers' network,

    B_wk = P B_ps/n + (1-P) B_req  if n B_req > B_ps,  else B_req        P = clamp(alpha sqrt(n) + beta, 0, 1)

Parameters are those of the paper and its repository. Its three plans are compared with what listing every set of
machines finds, and with `machine_choice`'s windows.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import floor, inf, isfinite, sqrt
from time import perf_counter

from benchmarks.seeds.comparison import Comparison, run_comparisons
from optimizer.planning.machine_choice import (
    MachineOffer,
    RunGoal,
    RunOption,
    TimeForecast,
    choose_option,
    option_of,
    speed_windows,
)


@dataclass(frozen=True, slots=True)
class ServerLink:
    """A parameter server's network, and how workers of one kind contend for it."""

    #: Bandwidth of all servers together, and of one worker while it exchanges, bytes per second.
    bytes_per_s: float
    wanted_bytes_per_s: float
    #: P = clamp(alpha sqrt(n) + beta, 0, 1): the probability that n workers contend for the servers.
    alpha: float
    beta: float

    def contention(self, workers: int) -> float:
        """Returns the probability of contention among `workers` workers."""
        return min(1.0, max(0.0, self.alpha * sqrt(workers) + self.beta))

    def worker_bytes_per_s(self, workers: int) -> float:
        """Returns the bandwidth left to each worker, bytes per second."""
        wanted, share = self.wanted_bytes_per_s, self.bytes_per_s / workers
        if wanted <= share:
            return wanted
        contention = self.contention(workers)
        return contention * share + (1.0 - contention) * wanted

    @property
    def most_workers(self) -> int:
        """Returns the number of workers beyond which the link is always saturated."""
        return floor(((1.0 - self.beta) / self.alpha) ** 2)


def server_exchange_s(
    model_bytes: float, accelerators: int, worker_bytes_per_s: float, host_bytes_per_s: float
) -> float:
    """Seconds in which a worker sends its gradient and fetches the model, over the network and from host to
    accelerators.
    """
    return 2.0 * model_bytes / worker_bytes_per_s + 2.0 * accelerators * model_bytes / host_bytes_per_s


@dataclass(frozen=True, slots=True)
class LossLaw:
    """Fitted coefficients; with `g4` None unevenness is ignored (sqrt(n) replaces sqrt((R + g4) n))."""

    g1: float
    g2: float
    g3: float
    g5: float
    g4: float | None = None

    def updates(self, loss: float, batch: float, workers: int, unevenness: float) -> float:
        """Returns the number of updates to the loss: infinite where it is never reached, 0 where it already was."""
        if loss <= self.g5:
            return inf
        factor = 1.0 if self.g4 is None else unevenness + self.g4
        reach = (self.g2 * batch + self.g3) * sqrt(factor * workers) / (loss - self.g5)
        return max(0.0, reach - self.g1)


@dataclass(frozen=True, slots=True)
class WorkerType:
    """A machine as a worker: samples and seconds of one update, without any exchange."""

    batch: float
    compute_s: float
    accelerators: int = 1


def worker_measured(samples_per_s: float, batch: float, accelerators: int, network_s: float) -> WorkerType:
    """Derives a worker from what one machine measured alone at full bandwidth.

    `network_s` seconds of each update went to the network; copies to the accelerators are assumed not to be part of the
    measurement, as in the paper.
    """
    return WorkerType(batch, batch / samples_per_s - network_s, accelerators)


def unevenness(shares: Sequence[float]) -> float:
    """R: sqrt((n-1)/n) for n equal workers."""
    largest = max(shares)
    return sqrt((largest - 1.0) ** 2 + sum(share * share for share in shares) - largest * largest)


@dataclass(frozen=True, slots=True)
class SpotTraining:
    """A job on machines of several types: seconds to the loss as a function of the number of each type."""

    types: tuple[WorkerType, ...]
    link: ServerLink
    model_bytes: float
    host_bytes_per_s: float
    law: LossLaw
    loss: float

    def time_s(self, counts: tuple[int, ...]) -> float:
        """Returns seconds; infinite for no machines, and where the loss is out of reach."""
        workers = sum(counts)
        if workers == 0:
            return inf
        used = [
            (count, kind.batch, self.update_s(kind, workers))
            for count, kind in zip(counts, self.types, strict=True)
            if count
        ]
        updates_per_s = sum(count / update_s for count, _, update_s in used)
        samples_per_s = sum(count * batch / update_s for count, batch, update_s in used)
        if self.law.g4 is None:
            uneven = 0.0
        else:
            uneven = unevenness([b / t / samples_per_s for count, b, t in used for _ in range(count)])
        updates = self.law.updates(self.loss, samples_per_s / updates_per_s, workers, uneven)
        return updates / updates_per_s

    def update_s(self, worker: WorkerType, workers: int) -> float:
        """Returns T_i: seconds of one update by this worker among `workers` workers."""
        bytes_per_s = self.link.worker_bytes_per_s(workers)
        return worker.compute_s + server_exchange_s(
            self.model_bytes, worker.accelerators, bytes_per_s, self.host_bytes_per_s
        )


#: The machines, all that follows in this order.
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
#: Loss, deadline in seconds, machines of each offer (its Table V), machines by which ours may differ; and seconds and
#: USD of ours by its published program.
PLANS = (
    (0.9, 1900, (2, 0, 2, 0, 0), 0, 1884, 1.68),
    (0.8, 2400, (2, 0, 4, 0, 0), 0, 2351, 2.99),
    (0.7, 3700, (2, 1, 4, 0, 0), 1, 3584, 4.55),
)
#: The least that its plans save against machines on demand, %.
_SAVED = 68.1


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


def compare() -> Iterator[Comparison]:
    """One table for the plans, one for unevenness."""
    for loss, deadline_s, paper, differs, time_s, usd in PLANS:
        job, goal = resnet_110(loss), RunGoal(deadline_s=deadline_s)
        most = job.link.most_workers
        found = choose_option(speed_windows(OFFERS, job.time_s, update_speeds(job), most), goal)
        every = choose_option((o for o in all_options(OFFERS, job.time_s) if sum(o.counts) <= most), goal)
        sure = [replace(offer, usd_per_h=price) for offer, price in zip(OFFERS, ON_DEMAND_USD, strict=True)]
        dear = choose_option((o for o in all_options(sure, job.time_s) if sum(o.counts) <= most), goal)
        assert found is not None
        assert every is not None
        assert dear is not None
        ours = found.option
        apart = sum(abs(mine - each) for mine, each in zip(ours.counts, paper, strict=True))
        told = Comparison(f"spotDNN's plan for ResNet-110: loss {loss} within {deadline_s} s")
        told.at_most("machines that differ", differs, apart)
        told.equal("time, s", time_s, ours.time_s, within=0.5)
        told.equal("money, USD", usd, ours.usd, within=0.005)
        told.equal("money of the best of all sets, USD", ours.usd, every.option.usd)
        told.at_most(
            "money over that of the paper's plan", 1.0, ours.usd / option_of(OFFERS, paper, job.time_s(paper)).usd
        )
        told.at_least("saved against on demand, %", _SAVED, 100 * (1 - ours.usd / dear.option.usd))
        yield told
    told = Comparison("Contention and unevenness (spotDNN)")
    told.equal("workers beyond which contention is certain", 13, LINK.most_workers)
    for workers, value in ((2, 0.71), (3, 0.82), (4, 0.87)):
        told.equal(f"unevenness of {workers} equal workers", value, unevenness([1 / workers] * workers), within=0.006)
    many, job = [replace(offer, most=14) for offer in OFFERS], resnet_110(0.7)
    began = perf_counter()
    choose_option(speed_windows(many, job.time_s, update_speeds(job), job.link.most_workers), RunGoal(deadline_s=3700))
    told.show("a plan among 70 instances, s", perf_counter() - began)
    yield told


if __name__ == "__main__":
    sys.exit(run_comparisons(compare))
