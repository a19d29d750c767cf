"""The body of `GET /overview`: the whole cluster on one page, for people who watch it.

What it says of a job is the `JobView` of the job's own endpoint, and what it says of pools and of the certificate the
bodies of `GET /prices`. Jobs of projects that the caller does not see are numbers without a name.
"""

from walras.api import Body, CertificateView, JobView, PriceView


class MachineCells(Body):
    """One machine, and who holds each of its accelerators."""

    node_id: str
    #: The machine of several types to which it belongs; empty: none.
    machine: str = ""
    pool: str
    accelerator: str
    #: up | unreachable | leaving | quarantined
    state: str
    detail: str = ""
    #: By device, the number of the job that holds it, 0 for none; the first where several share it.
    cells: list[int]


class PricePoint(Body):
    """The prices that a solve found."""

    #: Unix seconds.
    at: float
    #: Dual price by pool, in the pools' unit.
    prices: dict[str, float]


class MoneyNow(Body):
    """Money of the current month, USD, of the projects that the caller sees."""

    month: str
    spent_usd: float
    #: The cost of the same time at on-demand prices.
    on_demand_usd: float
    #: The cost per hour of the running attempts.
    usd_per_h: float


class ClusterAlert(Body):
    """A problem to which a person should attend."""

    #: warning | error
    level: str
    text: str
    #: The subject of the alert: "machine n1", "job 7", "solver", "store", "policy".
    subject: str


class FreeAccelerators(Body):
    """Free accelerators of one type."""

    accelerator: str
    free: int
    #: All accelerators that take jobs.
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
    #: The events, oldest first.
    history: list[PricePoint]
    #: The next jobs, in order, at most 50; and how many wait.
    queue: list[JobView]
    waiting: int
    #: Names of jobs that hold accelerators, by job number as text; at most 1000.
    names: dict[str, str]
    money: MoneyNow | None = None
    alerts: list[ClusterAlert]
