"""What jobs used of each accelerator type lately, job by job: the answer, and the calls of `walras.client.Client`.

From this it is planned what to reserve, and billed what a reservation would have cost whom (`walras plan capacity
--live`, `walras money --model`).
"""

from walras.api import Body
from walras.job_request import JobId
from walras.transport import ApiCall, Transport

_API = "/api/v1"
#: Rows of an answer, at most: a job has one for each accelerator type that it ran on.
MOST_USES = 50_000
#: How far an answer looks back, at most, seconds.
LONGEST_USAGE_S = 366 * 86_400


class UsageRow(Body):
    """What the attempts of one job held of one accelerator type within the time asked for."""

    job: JobId
    project: str
    user: str
    accelerator: str
    #: The most that an attempt of it held, and accelerator-seconds in all.
    accelerators: int
    accelerator_s: float
    #: When it was submitted, or the beginning of the time asked for if that is later; seconds since 1970.
    arrived_at: float
    #: Charged for it, and what the same would have cost on demand, USD.
    usd: float
    on_demand_usd: float
    #: It holds accelerators of this type now: it is as long as it has run so far.
    running: bool = False


class TypePrice(Body):
    """The cheapest on-demand price of an accelerator type, of the cluster's pools."""

    accelerator: str
    usd_per_h: float


class UsageReport(Body):
    """Jobs that held accelerators between two instants (seconds since 1970), in order of arrival."""

    since: float
    until: float
    items: list[UsageRow]
    #: Of types that the cluster can rent on demand.
    on_demand: list[TypePrice]
    #: Only projects of the caller are told of.
    partial: bool = False


class UsageCalls:
    """What a client may ask about the use of accelerators."""

    _transport: Transport

    async def usage(self, *, since_s: float, accelerator: str = "") -> UsageReport:
        """Returns what jobs of the caller's projects used in the last `since_s` seconds, of one type or of all.

        Raises UserError where that is longer than `LONGEST_USAGE_S`, or more than `MOST_USES` rows.
        """
        query = {"since_s": str(max(1, round(since_s)))} | ({"type": accelerator} if accelerator else {})
        return UsageReport.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/usage", query=query)))
