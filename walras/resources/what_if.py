"""What-if questions about the cluster's future: the question, its answer, and the calls of `walras.client.Client`.

Every difference is (p10, p50, p90) over futures that were simulated with and without the change under the same random
draws; negative is sooner, or less.

`walras submit --quote` tells of each way to run a job when it would start and end, and what it would cost, four times
in five, and by when its end can be promised, nineteen times in twenty. Whoever takes one (`--take`) gets the promised
end as the deadline of the job, which the scheduler acts on, and the job remembers what was told, beside what came of
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from walras.cluster import Market
from walras.connection.body import Body, RequestBody
from walras.errors import UserError
from walras.job_request import JobId
from walras.resources.endpoint import API, Calls, Endpoint
from walras.resources.jobs import ForecastView
from walras.spec.field_types import parse_instant
from walras.spec.job_groups import QuotedSpec
from walras.spec.job_spec import JobSpec, parse_spec, spec_mapping
from walras.spec.sweeps import is_sweep
from walras.units import format_length, format_money

_Name = Annotated[str, Field(min_length=1, max_length=200)]
Triple = tuple[float, float, float]


class MachinesMore(RequestBody):
    """Additional accelerators of a type, in whole machines of a pool that the cluster has."""

    accelerator: _Name
    accelerators: Annotated[int, Field(ge=1, le=4096)]
    #: Null: of any market, owned before rented.
    market: Market | None = None


class WhatIfRequest(RequestBody):
    """`POST /whatif`: all of these at once."""

    add: list[MachinesMore] = Field(default=[], max_length=8)
    #: Names of machines, pools or accelerator types to remove.
    remove: list[_Name] = Field(default=[], max_length=16)
    #: A policy file: `{"policy": ..., "rules": ...}`.
    policy: dict[str, Any] | None = None
    #: Jobs to submit, as their specs.
    submit: list[dict[str, Any]] = Field(default=[], max_length=4)
    #: Projects, or users inside one, whose limits are lifted.
    no_limit: list[_Name] = Field(default=[], max_length=16)


class DifferenceView(Body):
    """The differences for the active jobs of a project."""

    #: The project; empty: all those that the caller does not see.
    project: str
    jobs: int
    #: Difference of the mean completion time, seconds.
    completion_s: Triple
    #: Difference of the mean time until waiting jobs start, seconds; null: none waits.
    waiting_s: Triple | None = None
    #: Difference of the cost of their machines from now on, in USD.
    usd: Triple


class JobDifferenceView(Body):
    id: JobId
    name: str
    project: str
    #: Null if the job runs.
    start_s: Triple | None = None
    end_s: Triple


class WayView(Body):
    """One way to run a job that was tried: when it would start and end, what it costs, and which jobs it
    would delay.
    """

    #: Its accelerators, such as "4 x a100"; empty: as the job asks.
    way: str = ""
    #: Null: it does not end within the time looked ahead.
    forecast: ForecastView | None = None
    #: The end that a job is promised on this way, in Unix seconds: 19 futures in 20 keep it. Null: none can be
    #: promised.
    promised_by: float | None = None
    #: Why none can be promised, in words; empty if one is.
    no_promise: str = ""
    #: Null: it is not known, as the end.
    usd: Triple | None
    #: Jobs that would end more than a minute later in half of the futures, and by how many seconds in all.
    delayed_jobs: int
    delay_s: float


class WhatIfView(Body):
    """The differences that a change would make."""

    as_of: float
    #: The number of futures compared; 0: none was in time, `not_known` says why, and no difference is known.
    draws: int
    not_known: str = ""
    #: The change, in words.
    changes: list[str]
    total: DifferenceView
    projects: list[DifferenceView]
    #: The caller's jobs that change most, the largest change first.
    jobs: list[JobDifferenceView]
    #: The jobs of `submit`, in that order.
    submitted: list[WayView]
    #: The mean number of jobs that do not end within the time looked ahead: as things are, and with the changes.
    unfinished: tuple[float, float]


class QuoteView(Body):
    """The ways to run a job, ordered by when the job ends."""

    as_of: float
    #: The number of futures of each way; 0: there was no time for one, and the starts are those of jobs that wait.
    draws: int
    ways: list[WayView]
    #: What the owner should know of the ways; empty where there is nothing.
    note: str = ""


class WhatIfCalls(Calls):
    """The client's calls about futures. They change and store nothing."""

    @Endpoint("POST", f"{API}/whatif", who="user", body=WhatIfRequest, waits=True, repeatable=True, body_values=5000)
    async def what_if(self, changes: WhatIfRequest) -> WhatIfView:
        """What would be different with a change. Machines more or less, another policy, jobs, or without limits.

        Raises NotFound for what the cluster lacks.
        """

    @Endpoint("POST", f"{API}/jobs:quote", who="user", body=JobSpec, waits=True, repeatable=True)
    async def quote(self, spec: Mapping[str, Any]) -> QuoteView:
        """The ways to run a job, with times and costs. A job as for `jobs:dryrun`: start, end, cost and whom it delays,
        for each type that it may have.
        """


_AS_ASKED = "as asked"


def take_way(spec: JobSpec, menu: QuoteView, wanted: str) -> JobSpec:
    """Returns the job limited to a way of its menu, with the promised end of that way as its deadline.

    `wanted`: a type, a type with its number (`a100:4`), or `any` for the job as it asks to be run. A deadline that the
    job states and that is earlier stays. Raises UserError for a way that is not on the menu, of which nobody can tell
    when it ends, or of a sweep, whose jobs end one after another.
    """
    if is_sweep(spec):
        fix = "submit it without --take, or one of its jobs: --set array_index=0"
        raise UserError(
            "a quote is of the first job of a sweep, and promises no end of the others", field="--take", fix=fix
        )
    way = _way_of(menu, wanted)
    if way.forecast is None or way.forecast.start is None or way.forecast.end is None:
        raise UserError(
            f"{way.way or _AS_ASKED}: nobody can tell when it would end: not within the time looked ahead",
            field="--take",
            fix="take another way of `--quote`, or submit without --take",
        )
    if way.promised_by is None or way.usd is None:
        raise UserError(
            f"{way.way or _AS_ASKED}: no end can be promised{': ' if way.no_promise else ''}{way.no_promise}",
            field="--take",
            fix="take another way of `--quote`, or submit without --take",
        )
    quoted = QuotedSpec(
        way=way.way or _AS_ASKED,
        start_by=round(way.forecast.start[2]),
        end_by=round(way.promised_by),
        usd_most=max(0.0, way.usd[2]),
        quoted_at=menu.as_of,
    )
    mapping = spec_mapping(spec)
    changes: dict[str, Any] = {"quoted": quoted.model_dump(mode="json")}
    if way.way:
        count, _, accelerator = way.way.partition(" x ")
        changes["resources"] = mapping.get("resources", {}) | {"accelerators": f"{accelerator}:{count}"}
    if spec.deadline is None or quoted.end_by < parse_instant(spec.deadline, now=menu.as_of):
        changes["deadline"] = _deadline_text(quoted.end_by)
    return parse_spec(mapping | changes, source="--take")


def without_quote(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec as JSON without what was told of it and the deadline that came of that, for a job to run again
    later.
    """
    quoted = spec.get("quoted")
    if not isinstance(quoted, Mapping):
        return dict(spec)
    left_out = {"quoted"}
    if spec.get("deadline") == _deadline_text(float(quoted["end_by"])):
        left_out.add("deadline")
    return {name: value for name, value in spec.items() if name not in left_out}


def _deadline_text(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _way_of(menu: QuoteView, wanted: str) -> WayView:
    """Returns the way that a word names. Raises UserError, with all names, where none or several have it."""
    word = wanted.strip().lower().replace(" ", "")
    names = {way.way: {way.way.replace(" ", ""), _colon(way.way), way.way.partition(" x ")[2]} for way in menu.ways}
    if any(not way.way for way in menu.ways):
        names[""] = {"any", "asasked"}
    elif word in ("any", "asasked") and len(menu.ways) == 1:
        return menu.ways[0]
    found = [way for way in menu.ways if word in names[way.way]]
    if len(found) != 1:
        known = ", ".join(_colon(way.way) or "any" for way in menu.ways)
        raise UserError(f"{wanted[:60]!r} is no way of the menu", field="--take", fix=f"one of: {known}")
    return found[0]


def _colon(way: str) -> str:
    count, _, accelerator = way.partition(" x ")
    return f"{accelerator}:{count}" if accelerator else ""


Outcome = Literal["open", "kept", "late", "dearer"]


@dataclass(frozen=True, slots=True)
class QuotedOutcome:
    """What a user was told when a job's way was taken, and the outcome so far."""

    way: str
    end_by_unix_s: float
    usd_most: float
    outcome: Outcome
    #: Seconds by which its end is later than the latest that was told; 0: none.
    late_s: float
    usd: float

    @property
    def text(self) -> str:
        """The outcome in words, without the instant itself."""
        if self.outcome == "late":
            return f"{format_length(self.late_s)} late"
        if self.outcome == "dearer":
            return f"ended in time, but cost {format_money(self.usd)}"
        return "kept" if self.outcome == "kept" else "not over"


#: Bills are rounded, and a machine is billed to the end of its billing step.
_USD_MARGIN = 0.01


def quoted_outcome(
    spec: Mapping[str, Any], *, ended_at: float | None, usd: float, now_unix_s: float
) -> QuotedOutcome | None:
    """Returns the result of the option that a job took from a quote, or None for a job that took none.

    Args:
        spec: the job's spec as JSON.
        ended_at: when it ended, Unix seconds; None: it has not.
        usd: its cost so far.
        now_unix_s: present time, for the delay of a job that has not ended.
    """
    quoted = spec.get("quoted")
    if not isinstance(quoted, Mapping):
        return None
    end_by, most = float(quoted["end_by"]), float(quoted["usd_most"])
    late_s = max(0.0, (now_unix_s if ended_at is None else ended_at) - end_by)
    outcome: Outcome = "late" if late_s > 0 else "open" if ended_at is None else "kept"
    if outcome == "kept" and usd > most + _USD_MARGIN:
        outcome = "dearer"
    return QuotedOutcome(str(quoted["way"]), end_by, most, outcome, late_s, usd)
