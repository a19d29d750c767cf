"""How well a cluster did lately, compared with a bound on any scheduler that had known the future.

The bound is proved, and below every schedule: restarts and moves are free in it, and gangs divisible. So the distance
to it is the most that could have been gained, not what a better scheduler would have gained.
"""

from walras.api import Body
from walras.transport import ApiCall, Transport

_API = "/api/v1"
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


class ReportCalls:
    """The client's calls about reports."""

    _transport: Transport

    async def report(self, *, since_s: float) -> ClusterReport:
        """Returns the report of the last `since_s` seconds.

        Raises UserError where that is longer than `LONGEST_REPORT_S` or has more than `MOST_REPORTED` jobs.
        """
        query = {"since_s": str(max(1, round(since_s)))}
        return ClusterReport.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/report", query=query)))
