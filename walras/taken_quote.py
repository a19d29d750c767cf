"""A way of the menu that somebody took: what was told of it when the job was submitted, and what came of that.

`walras submit --quote` tells of each way to run a job when it would start and end, and what it would cost, four times
in five, and by when its end can be promised, nineteen times in twenty. Whoever takes one (`--take`) gets the promised
end as the deadline of the job, which the scheduler acts on, and the job remembers what was told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from walras.errors import UserError
from walras.spec.field_types import parse_instant
from walras.spec.job_groups import QuotedSpec
from walras.spec.job_spec import JobSpec, parse_spec, spec_mapping
from walras.units import format_length, format_money
from walras.what_if import QuoteView, WayView

_AS_ASKED = "as asked"


def take_way(spec: JobSpec, menu: QuoteView, wanted: str) -> JobSpec:
    """Returns the job limited to a way of its menu, with the promised end of that way as its deadline.

    `wanted`: a type, a type with its number (`a100:4`), or `any` for the job as it asks to be run. A deadline that the
    job states and that is earlier stays. Raises UserError for a way that is not on the menu, or of which nobody can
    tell when it ends.
    """
    way = _way_of(menu, wanted)
    if way.forecast is None or way.forecast.start is None or way.forecast.end is None:
        raise UserError(
            f"{way.way or _AS_ASKED}: nobody can tell when it would end: not within the time looked ahead",
            field="--take",
            fix="take another way of `--quote`, or submit without --take",
        )
    if way.promised_by is None:
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
