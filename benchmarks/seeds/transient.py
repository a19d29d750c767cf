"""Training on machines that may be taken back (Li and others, ICAC'19, and CM-DARE, ICDCS'20).

    WALRAS_DATA=... python -m benchmarks.seeds.transient

ResNet-32 on CIFAR-10, 64,000 steps, asynchronous. Workers' speeds add up until the parameter servers saturate, by a
measured curve. A worker is revoked during the run with the probability of its survival law, and is then replaced; until
the replacement works, only that worker's speed is missing.

Prices per worker-hour are those that the published costs and times of clusters imply: two K80 clusters of different
size for worker and server, 4 P100 less the server for P100. Lifetimes are those measured in February 2019.
"""

import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.seeds.comparison import Comparison, reference_data, run_comparisons
from benchmarks.seeds.observed_lifetime import ObservedLifetime
from walras.contract import SECONDS_PER_HOUR

#: Iterations of the fixed point between a run's time and the workers that it loses; it converges in a few.
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """One kind of worker: its speed alone, its price, its lifetime."""

    name: str
    steps_per_s: float
    usd_per_h: float
    #: Law of the lifetime; None: the worker is never revoked.
    law: ObservedLifetime | None = None
    #: Seconds from a loss until the replacement works.
    replacement_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSaturation:
    """Steps per second that the servers deliver, by the sum of the workers' own speeds (both ascending)."""

    alone: tuple[float, ...]
    through: tuple[float, ...]

    def steps_per_s(self, alone: float) -> float:
        """Interpolates linearly between the measured points; beyond the last one the speed stays constant."""
        return float(np.interp(alone, (0.0, *self.alone), (0.0, *self.through)))


@dataclass(frozen=True, slots=True)
class ParameterServers:
    """The parameter servers: their price together, and their saturation curve."""

    usd_per_h: float
    saturation: ServerSaturation


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """Expected values of a run."""

    took_s: float
    usd: float
    losses: float


def expected_run(workers: Sequence[WorkerKind], servers: ParameterServers, steps: float) -> ExpectedRun:
    """Returns the expected time, cost and number of lost workers of a run of `steps` steps."""
    alone = sum(worker.steps_per_s for worker in workers)
    speed = servers.saturation.steps_per_s(alone)
    took_s, losses = steps / speed, 0.0
    for _ in range(_ROUNDS):
        chances = [1.0 - worker.law.survival(took_s / SECONDS_PER_HOUR) if worker.law else 0.0 for worker in workers]
        missing = sum(
            chance * worker.replacement_s * worker.steps_per_s / alone
            for chance, worker in zip(chances, workers, strict=True)
        )
        before, took_s, losses = took_s, steps / speed + missing, sum(chances)
        if abs(took_s - before) < 1e-6:
            break
    usd_per_h = servers.usd_per_h + sum(worker.usd_per_h for worker in workers)
    return ExpectedRun(took_s, usd_per_h * took_s / SECONDS_PER_HOUR, losses)


def cheapest_run(
    kinds: Sequence[WorkerKind], servers: ParameterServers, steps: float, most: int, limit_s: float
) -> ExpectedRun:
    """Returns the cheapest run of up to `most` workers that takes at most `limit_s` seconds, of which there is one."""
    fast = [run for _, run in all_clusters(kinds, servers, steps, most) if run.took_s <= limit_s]
    return min(fast, key=lambda run: run.usd)


def all_clusters(
    kinds: Sequence[WorkerKind], servers: ParameterServers, steps: float, most: int
) -> Iterator[tuple[tuple[WorkerKind, ...], ExpectedRun]]:
    """Generates every cluster of up to `most` workers, the smallest first, with its expected run."""
    for number in range(1, most + 1):
        for workers in combinations_with_replacement(kinds, number):
            yield workers, expected_run(workers, servers, steps)


@dataclass(frozen=True, slots=True)
class WorkerSaturation:
    """Updates per second of n equal workers: linear in n up to the servers' cap."""

    worker_steps_per_s: float
    cap_steps_per_s: float

    def steps_per_s(self, workers: int) -> float:
        """Returns min(workers × one worker's speed, cap)."""
        return min(workers * self.worker_steps_per_s, self.cap_steps_per_s)


def fit_saturation(measured: Sequence[tuple[int, float]]) -> WorkerSaturation:
    """Fits the law to (workers, steps per second). A point below 0.9 of linear scaling from the smallest is saturated.

    The cap is the mean of the saturated points, and infinite without any.
    """
    workers, speed = min(measured)
    each = speed / workers
    saturated = [found for count, found in measured if found < 0.9 * count * each]
    free = [(count, found) for count, found in measured if found >= 0.9 * count * each]
    each = sum(found for _, found in free) / sum(count for count, _ in free)
    cap = sum(saturated) / len(saturated) if saturated else inf
    return WorkerSaturation(each, cap)


#: Updates per second of 1 to 8 workers, as CM-DARE measured them.
K80_ONE_SERVER = (4.4, 8.7, 13.1, 18.0, 22.2, 26.2, 30.7, 35.0)
P100_ONE_SERVER = (11.4, 22.0, 34.0, 40.1, 43.9, 43.7, 46.3, 42.5)
P100_TWO_SERVERS = (12.4, 24.9, 39.5, 49.5, 64.7, 72.7, 78.0, 72.8)

_STEPS = 64_000.0
#: USD of the run on eight on-demand K80, as published.
_EIGHT_ON_DEMAND_USD = 3.013
_CAP_S = 86_000.0
#: The set of February 2019: machines of the year before were also stopped by the experiments themselves.
_YEAR = "2019"
_P100_ALONE = 11.4
_P100_THROUGH = P100_ONE_SERVER[:5]
#: From 2 and 8 transient K80: 1.41 USD in 7,765 s and 1.115 USD in 1,841 s.
_WORKER_USD = (1.115 / 1841 - 1.41 / 7765) / 6 * 3600
_SERVER_USD = 1.41 / 7765 * 3600 - 2 * _WORKER_USD
_P100_USD = (1.104 / 1694 * 3600 - _SERVER_USD) / 4
#: From 2 and 8 on-demand K80 likewise.
_ON_DEMAND_USD = (3.013 / 1830 - 3.166 / 7172) / 6 * 3600

_SERVERS = ParameterServers(
    _SERVER_USD, ServerSaturation(tuple(_P100_ALONE * number for number in range(1, 6)), _P100_THROUGH)
)


def _lifetimes(data: Path, gpu: str) -> ObservedLifetime:
    """Measured lives of preemptible machines; those at the cap of a day were alive."""
    with gzip.open(data / "spot" / "gcp_transient_lifetimes.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu and row["start"].startswith(_YEAR)]
    lives = [float(row["lifetime_s"]) for row in rows]
    taken = [life / 3600 for life in lives if life < _CAP_S]
    return ObservedLifetime.of(taken, [life / 3600 for life in lives if life >= _CAP_S])


def _kinds(data: Path) -> list[WorkerKind]:
    """K80 and P100 as transient workers; a replacement takes the measured start of a preemptible machine."""
    return [
        WorkerKind("k80", 4.4, _WORKER_USD, _lifetimes(data, "K80"), 84.0),
        WorkerKind("p100", _P100_ALONE, _P100_USD, _lifetimes(data, "P100"), 91.0),
    ]


def _one_on_demand() -> WorkerKind:
    """The K80 that speed-ups are against."""
    return WorkerKind("k80", 4.4, _ON_DEMAND_USD)


def compare() -> Iterator[Comparison]:
    """Two tables."""
    found = Comparison("Eight transient K80 workers (ICAC'19)")
    k80, p100 = _kinds(reference_data())
    eight, one = expected_run([k80] * 8, _SERVERS, _STEPS), expected_run([_one_on_demand()], _SERVERS, _STEPS)
    found.equal("speed of eight over one, x", 7.7, one.took_s / eight.took_s, within=0.15)
    found.equal("saved against eight on demand, %", 62.9, 100 * (1 - eight.usd / _EIGHT_ON_DEMAND_USD), within=0.5)
    ours = cheapest_run([k80, p100], _SERVERS, _STEPS, 8, eight.took_s)
    found.at_least("saved by the cheapest cluster in no more time, %", 65, 100 * (1 - ours.usd / _EIGHT_ON_DEMAND_USD))
    found.show("   its time, s", ours.took_s)
    yield found
    found = Comparison("Speed of 1 to 8 workers from those of 1 and 8, largest error in % (CM-DARE)")
    for what, table in (
        ("1 server, K80", K80_ONE_SERVER),
        ("1 server, P100", P100_ONE_SERVER),
        ("2 servers, P100", P100_TWO_SERVERS),
    ):
        law = fit_saturation([(1, table[0]), (8, table[7])])
        worst = max(abs(law.steps_per_s(n) / speed - 1.0) for n, speed in enumerate(table, 1))
        found.at_most(what, 10, 100 * worst)
    yield found


if __name__ == "__main__":
    sys.exit(run_comparisons(compare))
