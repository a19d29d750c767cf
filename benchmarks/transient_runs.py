"""ICAC'19's cluster of eight transient K80 workers, from measured speeds, lifetimes and prices.

ResNet-32 on CIFAR-10, 64,000 steps, asynchronous, one parameter server. Prices per worker-hour are those that the
published costs and times of clusters imply: two K80 clusters of different size for worker and server, 4 P100 less the
server for P100. The saturation is that of one server under 1 to 8 P100 workers.
"""

import csv
import gzip
from pathlib import Path

from optimizer.planning.worker_clusters import ParameterServers, ServerSaturation, WorkerKind
from optimizer.renting.spot_lifetimes import EmpiricalLifetime

STEPS = 64_000.0
#: Seconds and USD of eight on-demand K80, and of eight transient ones, as published; seconds of one K80 alone.
ON_DEMAND_USD, TRANSIENT_S, TRANSIENT_USD = 3.013, 1841.0, 1.115
_CAP_S = 86_000.0
#: The set of February 2019: machines of the year before were also stopped by the experiments themselves.
_YEAR = "2019"
_P100_ALONE = 11.4
_P100_THROUGH = (11.4, 22.0, 34.0, 40.1, 43.9)
#: From 2 and 8 transient K80: 1.41 USD in 7,765 s and 1.115 USD in 1,841 s.
_WORKER_USD = (1.115 / 1841 - 1.41 / 7765) / 6 * 3600
_SERVER_USD = 1.41 / 7765 * 3600 - 2 * _WORKER_USD
_P100_USD = (1.104 / 1694 * 3600 - _SERVER_USD) / 4
#: From 2 and 8 on-demand K80 likewise.
_ON_DEMAND_USD = (3.013 / 1830 - 3.166 / 7172) / 6 * 3600

SERVERS = ParameterServers(
    _SERVER_USD, ServerSaturation(tuple(_P100_ALONE * number for number in range(1, 6)), _P100_THROUGH)
)


def lifetimes(data: Path, gpu: str) -> EmpiricalLifetime:
    """Measured lives of preemptible machines; those at the cap of a day were alive."""
    with gzip.open(data / "spot" / "gcp_transient_lifetimes.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu and row["start"].startswith(_YEAR)]
    lives = [float(row["lifetime_s"]) for row in rows]
    taken = [life / 3600 for life in lives if life < _CAP_S]
    return EmpiricalLifetime.of(taken, [life / 3600 for life in lives if life >= _CAP_S])


def kinds(data: Path) -> list[WorkerKind]:
    """K80 and P100 as transient workers; a replacement takes the measured start of a preemptible machine."""
    return [
        WorkerKind("k80", 4.4, _WORKER_USD, lifetimes(data, "K80"), 84.0),
        WorkerKind("p100", _P100_ALONE, _P100_USD, lifetimes(data, "P100"), 91.0),
    ]


def one_on_demand() -> WorkerKind:
    """The K80 that speed-ups are against."""
    return WorkerKind("k80", 4.4, _ON_DEMAND_USD)
