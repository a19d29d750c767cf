"""How much of each accelerator type jobs used lately, job by job: the answer, and the calls of `walras.client.Client`.

Commands use it to plan what to reserve, and to bill what a reservation would have cost each project (`walras plan
capacity --live`, `walras money --model`).
"""

from urllib.parse import quote

from walras.api import Body
from walras.job_request import JobId
from walras.transport import ApiCall, Transport

_API = "/api/v1"
#: The most rows of an answer: a job has one for each accelerator type that it ran on.
MOST_USES = 50_000
#: How far an answer looks back at most, in seconds.
LONGEST_USAGE_S = 366 * 86_400
#: The most projects whose history one answer reports; the most attempts of one machine in one answer.
MOST_HELD_PROJECTS, MOST_NODE_ATTEMPTS = 50, 1000


class UsageRow(Body):
    """The use of one accelerator type by the attempts of one job within the time asked for."""

    job: JobId
    project: str
    user: str
    accelerator: str
    #: The most accelerators that one of its attempts held, and its accelerator-seconds in all.
    accelerators: int
    accelerator_s: float
    #: When it was submitted, or the beginning of the time asked for if that is later; seconds since 1970.
    arrived_at: float
    #: What was charged for it, and what the same would have cost on demand, in USD.
    usd: float
    on_demand_usd: float
    #: Whether it holds accelerators of this type now: its length so far is not its final one.
    running: bool = False


class TypePrice(Body):
    """The lowest on-demand price of an accelerator type in the cluster's pools."""

    accelerator: str
    usd_per_h: float


class UsageReport(Body):
    """Jobs that held accelerators between two instants (seconds since 1970), in order of arrival."""

    since: float
    until: float
    items: list[UsageRow]
    #: Prices of the types that the cluster can rent on demand.
    on_demand: list[TypePrice]
    #: Whether only the caller's projects are reported.
    partial: bool = False


class HeldByProject(Body):
    """Accelerators that a project held, as means of equal steps of time."""

    project: str
    accelerators: list[float]
    #: The accelerators in fair-share units: of the fleet's average speed for the jobs that held them.
    units: list[float]


class HeldHistory(Body):
    """The accelerators that projects held since an instant (`GET /usage/history`), the largest holders first."""

    #: Beginning of the first step and of the last, unfinished one's end; seconds since 1970.
    since: float
    until: float
    step_s: int
    items: list[HeldByProject]
    #: Projects beyond `MOST_HELD_PROJECTS`, which are left out.
    left_out: int = 0


class NodeAttempt(Body):
    """An attempt that had a part of its gang on a machine; instants are seconds since 1970."""

    job: JobId
    attempt: int
    name: str
    project: str
    user: str
    state: str
    #: Why it ended, or is about to end.
    reason: str | None = None
    #: Accelerators of the whole gang.
    accelerators: int
    leased_at: float
    started_at: float | None = None
    ended_at: float | None = None


class UsageCalls:
    """The client's calls about the use of accelerators."""

    _transport: Transport

    async def usage(self, *, since_s: float, accelerator: str = "") -> UsageReport:
        """Returns what jobs of the caller's projects used in the last `since_s` seconds, of one type or of all.

        Raises UserError where that is longer than `LONGEST_USAGE_S`, or more than `MOST_USES` rows.
        """
        query = {"since_s": str(max(1, round(since_s)))} | ({"type": accelerator} if accelerator else {})
        return UsageReport.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/usage", query=query)))

    async def held_history(self, *, since_s: float) -> HeldHistory:
        """Returns what the caller's projects held of accelerators in the last `since_s` seconds, step by step.

        Raises UserError where that is longer than `LONGEST_USAGE_S`.
        """
        query = {"since_s": str(max(1, round(since_s)))}
        found = await self._transport.json(ApiCall("GET", f"{_API}/usage/history", query=query))
        return HeldHistory.model_validate(found)

    async def node_history(self, node: str, *, limit: int = 100) -> list[NodeAttempt]:
        """Returns the newest attempts of the caller's projects that were on a machine, newest first.

        Raises NotFound where no machine has this name.
        """
        call = ApiCall("GET", f"{_API}/nodes/{quote(node, safe='')}/history", query={"limit": str(limit)})
        return [NodeAttempt.model_validate(each) for each in await self._transport.json(call)]
