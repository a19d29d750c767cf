"""Chooses the batch of a job that tunes it, and counts how many steps at its first batch an update is worth.

    t(B) = a + b B                                seconds per update on this gang; a, b >= 0
    gain(B) = B/B_0 (phi + B_0) / (phi + B)       of an update in steps at the first batch B_0; phi: the gradient noise
                                                  scale, in samples (Pollux, OSDI 2021)
    goodput(B) = gain(B) / t(B)                   steps at the first batch, per second

Nothing is known when the job begins, and all that is tried counts as training: a batch is timed for a few windows,
then the one whose goodput would be best is tried, never more than twice as large as any that was timed. Where only one
was timed on this gang the law cannot tell a from b, and a neighbour is tried if it could pay. Nothing changes for less
than `WORTH_A_CHANGE`. The loop of rank 0 measures and asks; all ranks change at the step that they agree on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from walras.training.gang import Gang
from walras.training.measurements import NoiseScaleMeter, ThroughputMeter
from walras.training.supervisor_link import CHOSEN_BATCH_VALUE, UPDATE_GAIN_VALUE, ControlRequest, JobEnvironment

#: The windows of steps for which a batch is timed before the next is considered; and those before the job may return to
#: a batch that was timed earlier.
WINDOWS_TO_TRY, WINDOWS_TO_RETURN = 4, 20
#: A batch is taken if its goodput is larger by at least this factor.
WORTH_A_CHANGE = 1.05
#: The ranks agree on a gain anew when it has moved by this part.
GAIN_BAND = 0.02
#: The number of comparisons of gradients before the noise scale is believed; the updates between two comparisons until
#: then, and afterwards (unless the script states them); and the largest noise that ranks exchange, in samples.
COMPARISONS_LEAST = 6
NOISE_EVERY_AT_FIRST, NOISE_EVERY = 2, 10
_NOISE_MOST = 1e12
#: The part of an update that takes the same time for any batch, where an accelerator is emulated.
PACED_FIXED_PART = 0.5
#: Multiples of the first batch that may be taken: any number of ranks that divides the first batch divides them, too.
_MULTIPLES = tuple(sorted({factor << power for power in range(31) for factor in (1, 3)}))


def gain_of_update(batch: int, initial: int, noise: float) -> float:
    """Returns the steps at the first batch that one update with this one is worth: from 1 (no noise) to batch /
    initial.
    """
    return batch / initial * (noise + initial) / (noise + batch)


def fit_update_s(timed: dict[int, float]) -> tuple[float, float]:
    """(a, b) with the least squares of relative misses, neither below 0. Needs two batches."""
    assert len(timed) >= 2, "one batch does not tell a from b"
    # Rows 1/t and B/t, right side 1: the normal equations of two unknowns.
    ones = sum(1.0 / seconds**2 for seconds in timed.values())
    mixed = sum(batch / seconds**2 for batch, seconds in timed.items())
    squares = sum((batch / seconds) ** 2 for batch, seconds in timed.items())
    right_a = sum(1.0 / seconds for seconds in timed.values())
    right_b = sum(batch / seconds for batch, seconds in timed.items())
    determinant = ones * squares - mixed * mixed
    fixed = (right_a * squares - right_b * mixed) / determinant
    per_sample = (right_b * ones - right_a * mixed) / determinant
    if per_sample < 0:
        return right_a / ones, 0.0
    return (0.0, right_b / squares) if fixed < 0 else (fixed, per_sample)


class BatchTuner:
    """The batches of one job on one gang.

    Args:
        initial: the job's first batch, which its steps are counted in: samples over all ranks.
        largest: no batch is larger.
        ranks: that share each batch evenly.
        largest_per_rank: samples that a rank has room for; None: as many as `largest` gives it.
    """

    def __init__(self, initial: int, largest: int, ranks: int, largest_per_rank: int | None = None) -> None:
        self.initial = self.batch = initial
        #: Steps that each update counts for, as the ranks agreed; and the fraction of a step counted so far.
        self.gain, self._rest = 1.0, 0.0
        most = largest if largest_per_rank is None else min(largest, largest_per_rank * ranks)
        sizes = (initial * multiple for multiple in _MULTIPLES if initial * multiple <= most)
        self._sizes = tuple(size for size in sizes if size % ranks == 0) or (initial,)
        self._timed: dict[int, float] = {}
        self._windows_seen = 0
        #: The batch that rank 0 wants, and the noise on which it is based, until the ranks have agreed.
        self._wish: tuple[int | None, float | None] = None, None
        #: Noise scale when the ranks agreed last; None before it was known.
        self.noise: float | None = None

    def restore(self, saved: dict[str, float]) -> int:
        """Takes in what a checkpoint says (`as_saved`); returns the batch to go on with here."""
        noise, rest = saved.get("noise"), saved.get("rest", 0.0)
        self.noise = None if noise is None else max(0.0, float(noise))
        self._rest = min(max(float(rest), 0.0), 1.0)
        wanted = float(saved.get("samples", self.initial))
        self.took(max((size for size in self._sizes if size <= wanted), default=self._sizes[0]))
        return self.batch

    def as_saved(self) -> dict[str, float]:
        """Returns what continues after a restart on any gang: batch, rest and noise."""
        known = {} if self.noise is None else {"noise": self.noise}
        return {"samples": self.batch, "rest": self._rest, **known}

    def agreed(self, request: ControlRequest) -> int:
        """Takes over what the ranks agreed on; returns the batch to change to, 0 for none."""
        if not request.noise:
            return 0
        self.noise, self._wish = request.noise / 1000.0, (None, None)
        if request.samples == self.batch:
            self.took(self.batch)
            return 0
        return request.samples

    def with_request(
        self, own: ControlRequest, meter: ThroughputMeter, noise: NoiseScaleMeter | None
    ) -> ControlRequest:
        """Adds to rank 0's request what it wants of the batch; computes it again once per window. `noise`: None on
        other ranks.
        """
        if noise is None or own.stop or own.samples:
            return own
        if meter.samples != self._windows_seen:
            self._windows_seen = meter.samples
            scale = noise.scale
            known = scale if noise.comparisons >= COMPARISONS_LEAST else None
            if known is not None and noise.every == NOISE_EVERY_AT_FIRST:
                noise.every = NOISE_EVERY
            self._wish = self.request(meter.samples, meter.steps_per_s, known), known
        samples, scale = self._wish
        if samples is None or scale is None:
            return own
        return replace(own, samples=samples, noise=max(1, round(1000.0 * min(scale, _NOISE_MOST))))

    def took(self, batch: int) -> None:
        """Records that the job continues with this batch: its updates count by the known noise."""
        self.batch = batch
        self.gain = 1.0 if self.noise is None else gain_of_update(batch, self.initial, self.noise)

    def steps_done(self, limit: int | None, step: int) -> int:
        """Returns the whole steps that the update which has just ended counts for: at least 1, and not beyond the
        limit.
        """
        whole = max(1, int(self._rest + self.gain))
        self._rest = min(max(self._rest + self.gain - whole, 0.0), 1.0)
        return whole if limit is None else min(whole, max(1, limit - step))

    def request(self, windows: int, updates_per_s: float | None, noise: float | None) -> int | None:
        """Returns the batch to go on with; None to leave all as it is. The present one: its gain is to be agreed anew.

        Args:
            windows: in which updates with the present batch were timed, without a break.
            updates_per_s: their median.
            noise: gradient noise scale, samples; None while it is not known.
        """
        if noise is None or updates_per_s is None or windows < WINDOWS_TO_TRY:
            return None
        self._timed[self.batch] = 1.0 / updates_per_s
        better = self._better(noise, windows)
        if better is not None:
            return better
        drift = gain_of_update(self.batch, self.initial, noise) / self.gain
        return self.batch if abs(math.log(drift)) > GAIN_BAND else None

    def _better(self, noise: float, windows: int) -> int | None:
        now = self._timed[self.batch]
        if len(self._timed) == 1:
            return self._neighbour(noise)
        fixed, per_sample = fit_update_s(self._timed)
        farthest = 2 * max(self._timed)

        def goodput(batch: int) -> float:
            seconds = self._timed.get(batch, fixed + per_sample * batch)
            return gain_of_update(batch, self.initial, noise) / seconds

        best = max((size for size in self._sizes if size <= farthest), key=goodput)
        if best in self._timed and windows < WINDOWS_TO_RETURN and goodput(self.batch) * 2.0 > goodput(best):
            return None
        own = gain_of_update(self.batch, self.initial, noise) / now
        return best if goodput(best) > WORTH_A_CHANGE * own else None

    def _neighbour(self, noise: float) -> int | None:
        """Returns twice the batch if it would pay where only starting an update took time, None if not; half the batch
        where twice is not allowed.
        """
        own = gain_of_update(self.batch, self.initial, noise)
        if 2 * self.batch in self._sizes:
            return (
                2 * self.batch if gain_of_update(2 * self.batch, self.initial, noise) > WORTH_A_CHANGE * own else None
            )
        half = self.batch // 2
        return half if half in self._sizes and half * 2 == self.batch else None

    @property
    def paced_part(self) -> float:
        """Returns how long an update lasts on an emulated accelerator, in updates of the first batch."""
        return PACED_FIXED_PART + (1.0 - PACED_FIXED_PART) * self.batch / self.initial

    @property
    def values(self) -> dict[str, float]:
        """Returns the values that are reported beside the job's own."""
        return {CHOSEN_BATCH_VALUE: float(self.batch), UPDATE_GAIN_VALUE: self.gain}


def batch_tuner_for(
    settings: JobEnvironment, gang: Gang, can_change: bool, log: Callable[[str], None]
) -> BatchTuner | None:
    """Returns the tuner of a job that chooses its batch; None for others, and, with a word, where it cannot."""
    if settings.batch is None or settings.largest_batch is None:
        return None
    if not can_change:
        log("the batch stays as it is: to let it change, give Loop on_change and a checkpoint with the optimizer")
        return None
    if gang.world_size != settings.world_size or settings.batch % gang.world_size:
        log(f"the batch stays as it is: {settings.world_size} ranks that do not know each other cannot share another")
        return None
    return BatchTuner(settings.batch, settings.largest_batch, gang.world_size, settings.largest_per_rank)
