"""The time in which asynchronous training on unequal machines reaches a loss (spotDNN, IWQoS 2023).

Symbols: T_i seconds of one update by worker i, b_i its batch, v_i = b_i/T_i its speed, w_i its part of the sum of all
v, R how uneven these parts are, j the number of updates until the loss L.

    T_exp = 1 / sum 1/T_i                    seconds between updates
    b_w   = T_exp sum v_i                    batch, weighted by speed
    R     = sqrt((w_1 - 1)^2 + sum_{i>1} w_i^2)        w_1 the largest
    L     = (g2 b_w + g3) sqrt((R + g4) n) / (j + g1) + g5

Workers update through parameter servers. The bandwidth left to each of n workers follows from the servers' network,

    B_wk = P B_ps/n + (1-P) B_req  if n B_req > B_ps,  else B_req        P = clamp(alpha sqrt(n) + beta, 0, 1)

Where only speeds were measured (CM-DARE's tables), a saturation law gives the steps per second:

    speed(n) = min(n s, cap)        s: of one worker; cap: of the servers

No command uses this module yet: tests and benchmarks compare its plans with the published ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isinf, sqrt

from optimizer.prediction.predictor import CannotPredict


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
class WorkerSaturation:
    """Updates per second of n equal workers: linear in n up to the servers' cap."""

    worker_steps_per_s: float
    cap_steps_per_s: float

    def steps_per_s(self, workers: int) -> float:
        """Returns min(workers × one worker's speed, cap)."""
        return min(workers * self.worker_steps_per_s, self.cap_steps_per_s)

    @property
    def knee(self) -> int | None:
        """Returns the first number of workers that reaches the cap; None where the cap is infinite."""
        if isinf(self.cap_steps_per_s):
            return None
        return ceil(self.cap_steps_per_s / self.worker_steps_per_s)


def fit_saturation(measured: Sequence[tuple[int, float]]) -> WorkerSaturation:
    """Fits the law to (workers, steps per second). A point below 0.9 of linear scaling from the smallest is saturated.

    The cap is the mean of the saturated points, and infinite without any. Raises CannotPredict without points.
    """
    if not measured:
        raise CannotPredict("no number of workers was measured")
    workers, speed = min(measured)
    each = speed / workers
    saturated = [found for count, found in measured if found < 0.9 * count * each]
    free = [(count, found) for count, found in measured if found >= 0.9 * count * each]
    each = sum(found for _, found in free) / sum(count for count, _ in free)
    cap = sum(saturated) / len(saturated) if saturated else inf
    return WorkerSaturation(each, cap)


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
