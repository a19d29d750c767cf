"""Workers that update asynchronously through parameter servers: how contention slows them, and where it saturates.

Two laws. spotDNN's (IWQoS 2023) tells the bandwidth that each of n workers is left with, from the server's network:

    B_wk = P B_ps/n + (1-P) B_req  if n B_req > B_ps,  else B_req        P = clamp(alpha sqrt(n) + beta, 0, 1)

The saturation law tells steps per second where only speeds were measured (CM-DARE's tables):

    speed(n) = min(n s, cap)        s: of one worker; cap: of the servers
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isinf, sqrt

from optimizer.performance.predicting.predictor import CannotPredict


@dataclass(frozen=True, slots=True)
class ServerLink:
    """A parameter server's network, and how workers of one kind contend for it."""

    #: Network of all servers together, and what one worker asks for while it exchanges.
    bytes_per_s: float
    wanted_bytes_per_s: float
    #: P = clamp(alpha sqrt(n) + beta, 0, 1): how likely workers are in each other's way.
    alpha: float
    beta: float

    def contention(self, workers: int) -> float:
        """Probability of contention among so many workers."""
        return min(1.0, max(0.0, self.alpha * sqrt(workers) + self.beta))

    def worker_bytes_per_s(self, workers: int) -> float:
        """What each worker is left with."""
        wanted, share = self.wanted_bytes_per_s, self.bytes_per_s / workers
        if wanted <= share:
            return wanted
        contention = self.contention(workers)
        return contention * share + (1.0 - contention) * wanted

    @property
    def most_workers(self) -> int:
        """Beyond so many the link is saturated for certain."""
        return floor(((1.0 - self.beta) / self.alpha) ** 2)


def exchange_s(model_bytes: float, accelerators: int, worker_bytes_per_s: float, host_bytes_per_s: float) -> float:
    """A worker sends its gradient and fetches the model, over the network and to each accelerator over the host."""
    return 2.0 * model_bytes / worker_bytes_per_s + 2.0 * accelerators * model_bytes / host_bytes_per_s


@dataclass(frozen=True, slots=True)
class Saturation:
    """Updates per second of n equal workers."""

    worker_steps_per_s: float
    cap_steps_per_s: float

    def steps_per_s(self, workers: int) -> float:
        """Linear up to the cap."""
        return min(workers * self.worker_steps_per_s, self.cap_steps_per_s)

    @property
    def knee(self) -> int | None:
        """The first number of workers that reaches the cap; None where no cap was seen."""
        if isinf(self.cap_steps_per_s):
            return None
        return ceil(self.cap_steps_per_s / self.worker_steps_per_s)


def fit_saturation(measured: Sequence[tuple[int, float]]) -> Saturation:
    """From (workers, steps per second). A point is saturated where it is below .9 of what the fewest workers promise.

    The cap is the mean of saturated points; without one it is infinite: nobody has seen it.
    Raises CannotPredict for no points.
    """
    if not measured:
        raise CannotPredict("no number of workers was measured")
    workers, speed = min(measured)
    each = speed / workers
    saturated = [found for count, found in measured if found < 0.9 * count * each]
    free = [(count, found) for count, found in measured if found >= 0.9 * count * each]
    each = sum(found for _, found in free) / sum(count for count, _ in free)
    cap = sum(saturated) / len(saturated) if saturated else inf
    return Saturation(each, cap)
