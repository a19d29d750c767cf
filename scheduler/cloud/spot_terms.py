"""One job with a deadline on spot machines, as people state it, in the units of `deadline_job`."""

from dataclasses import dataclass
from math import ceil

from scheduler.cloud.deadline_job import DeadlineJob, Held, Standing
from scheduler.cloud.slack_value import modes
from scheduler.cloud.spot_market import STATES
from walras.errors import UserError
from walras.units import format_length

#: Markets that our plan is made for at most.
MOST_HYPOTHESES = 24
_HOUR_S = 3600.0
#: Units that a slot is cut into at most, so that a restart is a whole number of them.
_FINEST = 10
#: Entries of our plan's table for each market.
_MOST_ENTRIES = 8_000_000
_ROUNDING = 1e-9
_DEAREST_USD = 1e6


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """The job and its market."""

    work_s: float
    deadline_s: float
    #: Paid time without progress at each start of a machine.
    restart_s: float
    slot_s: float
    #: Of the machine, while it is held.
    spot_usd_per_h: float
    on_demand_usd_per_h: float

    @property
    def usd(self) -> float:
        """What a slot of spot costs: the unit of money of `deadline_job`."""
        return self.spot_usd_per_h * self.slot_s / _HOUR_S

    def job(self) -> DeadlineJob:
        """In whole units: work and restart rounded up, the deadline down to whole slots.

        Raises:
            UserError: not even an on-demand machine from the first moment on is in time; or spot is no cheaper.
        """
        if not 0 < self.spot_usd_per_h < self.on_demand_usd_per_h <= _DEAREST_USD:
            raise UserError(
                f"spot at {self.spot_usd_per_h:g} and on demand at {self.on_demand_usd_per_h:g} USD/h leave no choice",
                field="--spot",
                fix="above 0, and below --on-demand",
            )
        per_slot = next((k for k in range(1, _FINEST) if _is_whole(self.restart_s / self.slot_s * k)), _FINEST)
        unit_s = self.slot_s / per_slot
        job = DeadlineJob(
            slot=per_slot,
            work=_up(self.work_s / unit_s),
            deadline=int(self.deadline_s / self.slot_s + _ROUNDING) * per_slot,
            changeover=_up(self.restart_s / unit_s),
            on_demand_price=self.on_demand_usd_per_h / self.spot_usd_per_h,
        )
        if job.work + job.changeover > job.deadline:
            raise UserError(
                f"{format_length(self.work_s)} of work and a restart are not done in "
                f"{format_length(job.slots * self.slot_s)}, even on demand",
                field="--deadline",
                fix=f"at least {format_length(ceil((job.work + job.changeover) / job.slot) * self.slot_s)}",
            )
        if job.slots * (job.deadline - job.work + 1) * len(modes(job)) * STATES > _MOST_ENTRIES:
            raise UserError(
                f"{job.slots} slots of {format_length(self.slot_s)} are too many to plan for",
                field="--slot",
                fix=f"a longer one, such as {format_length(2 * self.slot_s)}",
            )
        return job

    def hours(self, job: DeadlineJob, units: float) -> float:
        """Units of a job in hours."""
        return units / job.slot * self.slot_s / _HOUR_S


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < _ROUNDING


def _up(number: float) -> int:
    return ceil(number - _ROUNDING)


@dataclass(frozen=True, slots=True)
class Present:
    """Where the job stands now."""

    work_left_s: float
    time_left_s: float
    held: Held = Held.NOTHING


def standing_of(terms: SpotTerms, job: DeadlineJob, now: Present) -> Standing:
    """Now, in units. Raises UserError where the deadline is lost, or the job cannot have come there."""
    unit_s = terms.slot_s / job.slot
    for left_s, whole_s, what in (
        (now.work_left_s, terms.work_s, "work"),
        (now.time_left_s, terms.deadline_s, "time"),
    ):
        if left_s > whole_s:
            told = f"{format_length(left_s)} are left of {format_length(whole_s)}"
            raise UserError(told, field=f"--{what}-left", fix=f"at most the whole {what}")
    time_left = int(now.time_left_s / terms.slot_s + _ROUNDING) * job.slot
    work_left = _up(now.work_left_s / unit_s)
    needed = work_left + (0 if now.held is Held.ON_DEMAND else job.changeover)
    if needed > time_left:
        raise UserError(
            f"{format_length(now.work_left_s)} of work take more than {format_length(now.time_left_s)} even on demand",
            field="--time-left",
            fix=f"at least {format_length(ceil(needed / job.slot) * terms.slot_s)}",
        )
    if time_left - work_left > job.deadline - job.work:
        done = format_length((job.work - work_left) * unit_s)
        raise UserError(
            f"{done} of work cannot be done by now",
            field="--work-left",
            fix="say what is left of --work, and of --deadline with --time-left",
        )
    return Standing(time_left, work_left, now.held, 0, spot=True)
