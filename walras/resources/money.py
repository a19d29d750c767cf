"""Money that was spent, budgets, credits, and what jobs used of accelerators, beside a bound on any scheduler.

Commands use what jobs used lately to plan what to reserve, and to bill what a reservation would have cost each project
(`walras cloud capacity --live`, `walras money --model`). The bound of the report is of a scheduler that had known the
future. It is proved, and below every schedule: restarts and moves are free in it, and gangs divisible. So the distance
to it is the most that could have been gained, not what a better scheduler would have gained.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from walras.connection.body import Body, RequestBody
from walras.job_request import JobId
from walras.resources.endpoint import API, Call, Calls, Endpoint
from walras.spec.field_types import ShownName


class MoneyRow(Body):
    """The cost of one project, user, job, pool or month."""

    #: Name or number of the project, user, job, pool or month.
    key: str
    accelerator_s: float
    #: Cost of time that jobs held.
    usd: float
    #: Cost of rented time that no job held; only by pool and month, because it belongs to no project, user or job.
    idle_usd: float = 0.0
    #: Cost of the same time at on-demand prices.
    on_demand_usd: float = 0.0


class MoneyReport(Body):
    """`GET /money`: the ledger of money until now. `total_usd` = `used_usd` + `idle_usd`."""

    #: project | user | job | pool | month
    by: str
    #: Most expensive first, at most `limit` of them.
    items: list[MoneyRow]
    #: The sum of all others and how many these are; None and 0 where there are no more.
    rest: MoneyRow | None = None
    rest_of: int = 0
    used_usd: float
    #: Cost of rented time that no job held. 0 for users who see only some projects.
    idle_usd: float
    total_usd: float
    on_demand_usd: float


_Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class NewCredit(RequestBody):
    """`POST /budgets/credits`: an amount for a budget that the policy in force has."""

    #: The budget's owner, as the policy's rules name it; all fields empty: the cluster's budget.
    project: ShownName | None = None
    user: ShownName | None = None
    group: ShownName | None = None
    #: Exactly one of these is set.
    usd: _Amount | None = None
    accelerator_h: _Amount | None = None
    fair_share_h: _Amount | None = None
    reason: Annotated[str, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.group and self.user:
            raise ValueError("give either a user or a group")
        if sum(amount is not None for amount in (self.usd, self.accelerator_h, self.fair_share_h)) != 1:
            raise ValueError("give one of usd, accelerator_h and fair_share_h")
        return self


class BudgetView(Body):
    """One limit: how much of it is used and left, and when it is renewed."""

    #: The owner in words; empty: the cluster.
    whose: str
    project: str = ""
    user: str = ""
    group: str = ""
    #: One of usd, accelerator_h, fair_share_h.
    unit: str
    #: One of day, week, month, quarter, or a length such as 14d; empty: one amount without periods.
    every: str = ""
    used: float
    #: The amount, credits included.
    limit: float
    credited: float = 0.0
    #: What is used per hour now, and what stopping all of its jobs would still use.
    per_h: float = 0.0
    committed: float = 0.0
    #: Whether no job of it may start.
    closed: bool = False
    #: When the period ends; None where it has no end.
    refills: str | None = None


class CreditView(Body):
    """A credit that was added to a budget."""

    id: int
    at: str
    whose: str
    unit: str
    amount: float
    created_by: str
    reason: str = ""


class MoneyCalls(Calls):
    """The client's calls about money."""

    @Endpoint("GET", f"{API}/money")
    async def money(
        self, by: str = "project", *, month: str = "", project: str = "", limit: int | None = None
    ) -> MoneyReport:
        """What was spent. Of the projects one sees, `by` `project`, `user`, `team`, `job`, `pool` or `month`; the
        dearest `limit=1000` in `items`, the others as one `rest`.
        """

    @Endpoint("GET", f"{API}/budgets")
    async def budgets(self) -> list[BudgetView]:
        """Budgets: used, left, filled again when. Those that your jobs pay into, or of your projects."""

    @Endpoint("GET", f"{API}/budgets/credits")
    async def credits(self) -> list[CreditView]:
        """What was added to budgets, newest first."""

    @Endpoint("POST", f"{API}/budgets/credits", who="admin", body=NewCredit, status=201)
    async def add_credit(self, body: Mapping[str, Any]) -> CreditView:
        """Add to a budget. Of a `project`, `user` or `group`; one of `usd`, `accelerator_h`, `fair_share_h`; 409
        without such a budget.
        """


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


class HolderUse(Body):
    """What a user, a machine, a job or an address has of a thing of which the server has only so much."""

    what: str
    holder: str
    held: int
    #: The most that it may have by now: half of what the others leave. Administrators may use the reserve as well.
    share: int


USAGE = Endpoint(
    "GET", f"{API}/usage", "What jobs held of each accelerator type, and when. In the last `since_s` seconds, of one "
    "`type` or of all.", UsageReport, query=("since_s", "type"),
)  # fmt: skip
NODE_HISTORY = Endpoint(
    "GET", API + "/nodes/{node_id}/history", "What ran on a machine, newest first. Attempts of your projects: job, "
    "state, reason, instants.", list[NodeAttempt], query=("limit",),
)  # fmt: skip


#: How far a report looks back at most, in seconds.
LONGEST_REPORT_S = 120 * 86_400
#: The most jobs of a report.
MOST_REPORTED = 50_000


class RegretView(Body):
    """The mean completion time of some jobs, beside a proved lower bound. In seconds."""

    #: Rigid jobs that were submitted and succeeded within the time.
    jobs: int
    #: The mean time from submission to end that was achieved.
    achieved_s: float
    #: A lower bound on the mean of every scheduler, even one that had known the future.
    bound_s: float
    #: The mean if every job had had all accelerators to itself.
    alone_s: float
    #: Jobs for which a speed was assumed on a type where nobody measured it: as fast as their fastest measured type.
    assumed: int = 0

    @property
    def above(self) -> float:
        """The part of the bound by which the mean exceeded it."""
        return self.achieved_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


class ReportRow(Body):
    """The figures of a project, or of all projects."""

    #: The project; empty: all of them.
    project: str
    submitted: int
    ended: int
    succeeded: int
    #: Means over the jobs that succeeded: from submission to end, and to the first start, in seconds.
    completion_s: float | None
    waiting_s: float | None
    #: None where no job could be bounded, or the project is not among the largest. A project's bound assumes that it
    #: had all accelerators; that of all jobs counts that they had to share them.
    regret: RegretView | None
    #: Attempts that the scheduler ended in favour of other jobs, and attempts that were lost with their machines.
    preemptions: int
    losses: int
    #: Accelerator-hours of work lost with these attempts, as far as steps and checkpoints show.
    lost_h: float
    #: Accelerator-hours that attempts held; what was charged for them, and what the same would have cost on demand, in
    #: USD.
    accelerator_h: float
    usd: float
    on_demand_usd: float


class TypeUse(Body):
    """An accelerator type in the fleet. A machine that left counts while it was paid for or held."""

    accelerator: str
    #: The most accelerators that were present at once.
    most: float
    there_h: float
    held_h: float


class ClusterReport(Body):
    """Instants are seconds since 1970."""

    since: float
    until: float
    total: ReportRow
    #: The projects, by name.
    projects: list[ReportRow]
    #: The accelerator types; empty where the caller sees only some projects.
    types: list[TypeUse]
    #: Jobs that the bound leaves out, by reason.
    left_out: dict[str, int]
    #: Whether only the caller's projects are reported; the bound is then of their jobs alone.
    partial: bool = False


class UsageCalls(Calls):
    """The client's calls about the past of accelerators."""

    @Call
    async def usage(self, *, since_s: float, accelerator: str = "") -> UsageReport:
        """Returns what jobs of the caller's projects used in the last `since_s` seconds, of one type or of all.

        Raises UserError where that is longer than `LONGEST_USAGE_S`, or more than `MOST_USES` rows.
        """
        found: UsageReport = await USAGE.ask(self, {"since_s": float(since_s), "type": accelerator})
        return found

    @Endpoint("GET", f"{API}/usage/holders", who="admin")
    async def holders(self) -> list[HolderUse]:
        """Who holds what of the server. Connections, requests, coming bodies, sessions, jobs, bytes of content."""

    @Endpoint("GET", f"{API}/usage/history")
    async def held_history(self, *, since_s: float) -> HeldHistory:
        """What projects held of accelerators, step by step. Means of equal steps (default the last 7 days): `since`,
        `step_s`, and by project `accelerators` and fair-share `units`.

        Raises UserError where that is longer than `LONGEST_USAGE_S`.
        """

    @Call
    async def node_history(self, node: str, *, limit: int = 100) -> list[NodeAttempt]:
        """Returns the newest attempts of the caller's projects that were on a machine, newest first.

        Raises NotFound where no machine has this name.
        """
        found: list[NodeAttempt] = await NODE_HISTORY.ask(self, {"node_id": node, "limit": limit})
        return found

    @Endpoint("GET", f"{API}/report", waits=True)
    async def report(self, *, since_s: float) -> ClusterReport:
        """How the cluster did, against a proved bound.

        Raises UserError where that is longer than `LONGEST_REPORT_S` or has more than `MOST_REPORTED` jobs.
        """
