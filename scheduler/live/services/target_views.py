"""How far a job is from its target, in three forms: one line with the numbers, the same numbers as fields, and a
condition where something is wrong. `TargetForecasts` makes the forecast itself.
"""

from dataclasses import dataclass

from optimizer.prediction.loss_curve import LEAST_POINTS, TargetForecast
from scheduler.live.loop.live_state import JobTarget
from walras.api import ConditionView, TargetOutlook, TargetView
from walras.units import format_count, format_length

TARGET_LATE, TARGET_OUT_OF_REACH = "target_late", "target_out_of_reach"
#: How many other values are named where the target's own was never reported.
_NAMED_MOST = 5


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """A job's progress."""

    steps: float
    #: The steps that it is to do; None: it does not state any.
    declared: float | None
    #: Of its running attempt; None without one.
    steps_per_s: float | None
    #: Names of all values that it has reported.
    reported: tuple[str, ...]
    is_over: bool = False

    def left_s(self, until: float | None) -> float | None:
        """Returns seconds until that step at the present speed; None where there is no speed."""
        if until is None or not self.steps_per_s or self.is_over:
            return None
        return max(0.0, until - self.steps) / self.steps_per_s


def view_target(target: JobTarget, standing: TargetProgress) -> TargetView:
    """Returns the view of the API, except for the expected instant."""
    series = target.series
    foreseen = None if series.reached_step is not None or standing.is_over else target.forecast
    outlook, told = _outlook_and_text(target, standing, foreseen)
    expected = None if foreseen is None else foreseen.steps
    return TargetView(
        value=target.value,
        at_most=target.at_most,
        outlook=outlook,
        detail=told,
        newest=series.newest,
        newest_step=None if series.newest is None else series.newest_step,
        reached_step=series.reached_step,
        steps_expected=expected,
        steps_declared=standing.declared,
        left_s=None if target.is_overdue else standing.left_s(expected),
        levels_off_at=None if foreseen is None else foreseen.floor,
        points=len(series.points),
        foreseen_at_step=None if foreseen is None else foreseen.at_step,
    )


def target_conditions(view: TargetView) -> list[ConditionView]:
    """Returns the conditions that people should know of: that the target is late or out of reach, or none."""
    kinds = {TargetOutlook.LATE: TARGET_LATE, TargetOutlook.OUT_OF_REACH: TARGET_OUT_OF_REACH}
    return [ConditionView(type=kinds[view.outlook], detail=view.detail)] if view.outlook in kinds else []


def _outlook_and_text(
    target: JobTarget, standing: TargetProgress, foreseen: TargetForecast | None
) -> tuple[TargetOutlook, str]:
    series, name, aim = target.series, target.value, f"{target.at_most:.4g}"
    if series.newest is None:
        return TargetOutlook.UNKNOWN, f"target {aim}: {_no_value_text(name, standing)}"
    now = f"{name} {series.newest:.4g} at step {_count_text(series.newest_step)}, target {aim}"
    if series.reached_step is not None:
        return TargetOutlook.REACHED, f"{now}: was there at step {_count_text(series.reached_step)}"
    if standing.is_over:
        return TargetOutlook.UNKNOWN, f"{now}: ended before it was there"
    if foreseen is None:
        many = len(series.points)
        few = f"{many} values are too few to tell when, {LEAST_POINTS} are needed"
        return TargetOutlook.UNKNOWN, f"{now}: {few if many < LEAST_POINTS else 'not worked out yet'}"
    if foreseen.floor is None:
        return TargetOutlook.UNKNOWN, f"{now}: nobody can tell when, as {foreseen.why_not}"
    if target.is_overdue and foreseen.steps is not None:
        return (
            TargetOutlook.UNCLEAR,
            f"{now}: was expected at step {_count_text(foreseen.steps)}; worked out again soon",
        )
    outlook, rest = _outlook_by_curve(foreseen, foreseen.floor, standing)
    return outlook, f"{now}: {rest}"


def _outlook_by_curve(foreseen: TargetForecast, floor: float, standing: TargetProgress) -> tuple[TargetOutlook, str]:
    declared = None if standing.declared is None else _count_text(standing.declared)
    levels = f"level off at {floor:.4g}, above the target"
    if foreseen.is_out_of_reach:
        return TargetOutlook.OUT_OF_REACH, f"its curve will {levels}"
    if foreseen.steps is None and foreseen.is_late:
        return TargetOutlook.LATE, f"not within the {declared} steps that it declares; it may {levels}"
    if foreseen.steps is None:
        return TargetOutlook.UNCLEAR, f"it may {levels}, but it is too early to tell"
    expected = f"expected at step {_count_text(foreseen.steps)}"
    if foreseen.is_late:
        return TargetOutlook.LATE, f"{expected}, after the {declared} that it declares{_time_left(foreseen, standing)}"
    if standing.declared is not None and foreseen.steps > standing.declared:
        told = f"{expected}, after the {declared} that it declares, but it is too early to be sure"
        return TargetOutlook.UNCLEAR, f"{told}{_time_left(foreseen, standing)}"
    of_all = "" if declared is None else f" of {declared}"
    return TargetOutlook.EXPECTED, f"{expected}{of_all}{_time_left(foreseen, standing)}"


def _time_left(foreseen: TargetForecast, standing: TargetProgress) -> str:
    left_s = standing.left_s(foreseen.steps)
    return "" if left_s is None else f" (in {format_length(left_s)} at {standing.steps_per_s:.3g} steps/s)"


def _no_value_text(name: str, standing: TargetProgress) -> str:
    """Returns that no value of that name was reported, with the names that were."""
    told = f"no value {name!r} was reported yet; the script tells it with `loop.report`"
    others = [other[:64] for other in standing.reported if other != name][:_NAMED_MOST]
    return f"{told}, and tells {', '.join(others)}" if others else told


def _count_text(steps: float) -> str:
    return format_count(round(steps))
