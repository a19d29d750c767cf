"""The body of `GET /overview`: the whole cluster on one page, for people who watch it.

What it says of a job is the `JobView` of the job's own endpoint, and what it says of pools and of the certificate the
bodies of `GET /prices`. Jobs of projects that the caller does not see are numbers without a name.
"""

from walras.api import Body, CertificateView, JobView, PriceView


class MachineCells(Body):
    """One machine, and who holds each of its accelerators."""

    node_id: str
    #: The machine of several types that it is a part of; empty: of none.
    machine: str = ""
    pool: str
    accelerator: str
    #: up | unreachable | leaving | quarantined
    state: str
    detail: str = ""
    #: By device: the number of the job that holds it, 0 if nobody does. The first, where several share it.
    cells: list[int]


class PricePoint(Body):
    """What a solve found."""

    #: Unix seconds.
    at: float
    #: Dual price by pool, in the pools' unit.
    prices: dict[str, float]


class MoneyNow(Body):
    """Money of the current month, USD, of the projects that the caller sees."""

    month: str
    spent_usd: float
    #: The same time at on-demand prices.
    on_demand_usd: float
    #: What the running attempts cost an hour.
    usd_per_h: float


class ClusterAlert(Body):
    """A problem to which a person should attend."""

    #: warning | error
    level: str
    text: str
    #: What it is about: "machine n1", "job 7", "solver", "store", "policy".
    subject: str


class FreeAccelerators(Body):
    """Accelerators of one type."""

    accelerator: str
    free: int
    #: Those that take jobs.
    capacity: int


class Overview(Body):
    """`GET /overview`."""

    #: RFC 3339.
    as_of: str
    policy: str
    #: Active jobs that the caller sees, by state.
    counts: dict[str, int]
    types: list[FreeAccelerators]
    machines: list[MachineCells]
    pools: list[PriceView]
    certificate: CertificateView | None = None
    #: Oldest first.
    history: list[PricePoint]
    #: Those who are next, in order, at most 50; and how many wait.
    queue: list[JobView]
    waiting: int
    #: Names of jobs that hold accelerators, by number as text; at most 1000.
    names: dict[str, str]
    money: MoneyNow | None = None
    alerts: list[ClusterAlert]
