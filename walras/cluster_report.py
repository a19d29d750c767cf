"""How well a cluster did lately, against what any scheduler that knew the future could have done on its machines.

The bound is proved, and below every schedule: restarts and moves are free in it, and gangs divisible. So the distance
to it is the most that could have been gained, not what a better scheduler would have gained.
"""

from walras.api import Body
from walras.transport import ApiCall, Transport

_API = "/api/v1"
#: How far a report looks back, at most, seconds.
LONGEST_REPORT_S = 120 * 86_400
#: Jobs of a report, at most.
MOST_REPORTED = 50_000


class RegretView(Body):
    """Mean completion of some jobs, beside its proved bound. Seconds."""

    #: Rigid jobs that were submitted and succeeded within the time.
    jobs: int
    #: Mean from submission to end, as it was.
    achieved_s: float
    #: No scheduler's mean would have been lower, whatever it had known.
    bound_s: float
    #: The same if every job had had all accelerators to itself.
    alone_s: float
    #: Jobs for which a speed was assumed on a type where nobody measured it: as fast as their fastest measured type.
    assumed: int = 0

    @property
    def above(self) -> float:
        """By which part of the bound the mean was above it."""
        return self.achieved_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


class ReportRow(Body):
    """A project, or all of them."""

    #: Empty: all.
    project: str
    submitted: int
    ended: int
    succeeded: int
    #: Of the jobs that succeeded: mean time from submission to end, and to the first start, seconds.
    completion_s: float | None
    waiting_s: float | None
    #: None: no job could be bounded, or the project is not among the largest. A project's bound is as if it had had
    #: all accelerators; that of all jobs counts that they had to share them.
    regret: RegretView | None
    #: Attempts that the scheduler ended for others, and those that were lost with their machines.
    preemptions: int
    losses: int
    #: Accelerator-hours of work that was lost with these, as far as steps and checkpoints say.
    lost_h: float
    #: Held by attempts, accelerator-hours; charged for it, and what the same would have cost on demand, USD.
    accelerator_h: float
    usd: float
    on_demand_usd: float


class TypeUse(Body):
    """An accelerator type in the fleet. A machine that left counts while it was paid for or held."""

    accelerator: str
    #: The most that were there at once.
    most: float
    there_h: float
    held_h: float


class ClusterReport(Body):
    """Instants are seconds since 1970."""

    since: float
    until: float
    total: ReportRow
    #: By name.
    projects: list[ReportRow]
    #: Empty where the caller sees some projects alone.
    types: list[TypeUse]
    #: Jobs that are not in the bound, by why.
    left_out: dict[str, int]
    #: Only projects of the caller are told of; the bound is then of their jobs alone.
    partial: bool = False


class ReportCalls:
    """What a client may ask about how the cluster did."""

    _transport: Transport

    async def report(self, *, since_s: float) -> ClusterReport:
        """Returns the report of the last `since_s` seconds.

        Raises UserError where that is longer than `LONGEST_REPORT_S` or has more than `MOST_REPORTED` jobs.
        """
        query = {"since_s": str(max(1, round(since_s)))}
        return ClusterReport.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/report", query=query)))
