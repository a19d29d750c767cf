"""Splits work by speed (the samples of a global batch, or the steps of a round) so that no worker waits.

A batch over unlike workers (Tyagi & Sharma, ACSOS 2020):

    b_k ~ X_k                            to begin with: by speed
    b_k <- b_k mean(t) / t_k             then: by how long each took, smoothed

The global batch stays what it is, because learning depends on it; gradients are weighted by b_k / sum b. Shares change
only when the step becomes shorter by more than the dead band: every change costs a restart of the input, and where
shares are few samples, rounding would follow every noise.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

#: The part by which a step must become shorter for other shares to be worth a change.
DEAD_BAND = 0.05


@dataclass(frozen=True, slots=True)
class SampleBounds:
    """The fewest samples that a worker has to take, and the most that fit its memory."""

    least: int = 1
    most: int = 2**31


def split_samples(batch: int, speeds: Sequence[float], bounds: Sequence[SampleBounds]) -> tuple[int, ...]:
    """Returns whole samples in proportion to speed, within the bounds, that sum to the batch exactly.

    Raises ValueError if the bounds do not admit the batch.
    """
    if not sum(bound.least for bound in bounds) <= batch <= sum(bound.most for bound in bounds):
        raise ValueError(f"a batch of {batch} does not fit between the least and the most that the workers can take")
    exact = _shares_within_bounds(float(batch), speeds, bounds)
    shares = [floor(share + 1e-9) for share in exact]
    # Samples left over by rounding go where the most was cut off, ties to the first.
    order = sorted(range(len(shares)), key=lambda k: shares[k] - exact[k])
    for k in order[: batch - sum(shares)]:
        shares[k] += 1
    assert sum(shares) == batch, "less than one sample of each worker is left over"
    return tuple(shares)


def _shares_within_bounds(batch: float, speeds: Sequence[float], bounds: Sequence[SampleBounds]) -> list[float]:
    """Returns the shares c v_k clamped to their bounds, with c such that they sum to the batch (bisection on c)."""
    low, high = 0.0, max(bound.most / speed for bound, speed in zip(bounds, speeds, strict=True))
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if sum(_clamped_shares(middle, speeds, bounds)) < batch:
            low = middle
        else:
            high = middle
    return _clamped_shares(high, speeds, bounds)


def _clamped_shares(factor: float, speeds: Sequence[float], bounds: Sequence[SampleBounds]) -> list[float]:
    return [
        min(max(factor * v, float(bound.least)), float(bound.most)) for v, bound in zip(speeds, bounds, strict=True)
    ]


def rebalance_shares(
    shares: Sequence[int], times_s: Sequence[float], bounds: Sequence[SampleBounds]
) -> tuple[int, ...]:
    """Returns new shares from the times that workers took for theirs (smoothed by the caller); the old ones inside the
    dead band.

    Shares and times are positive, and the shares keep to the bounds.
    """
    speeds = [share / time_s for share, time_s in zip(shares, times_s, strict=True)]
    found = split_samples(sum(shares), speeds, bounds)
    step_s = max(share / speed for share, speed in zip(found, speeds, strict=True))
    return found if step_s < (1.0 - DEAD_BAND) * max(times_s) else tuple(shares)


def split_round(whole: int, speeds: Sequence[float]) -> list[int]:
    """Returns the steps of each part so that the last is through as early as can be; one for everybody where there are
    enough.

    Equal parts are served in their order. Speeds are positive, in any unit.
    """
    least = 1 if whole >= len(speeds) else 0
    shares = [least] * len(speeds)
    # The worker that would end first with one more step takes it: no other order ends earlier.
    through_at = [((least + 1) / speed, part) for part, speed in enumerate(speeds)]
    heapq.heapify(through_at)
    for _ in range(whole - sum(shares)):
        part = through_at[0][1]
        shares[part] += 1
        heapq.heapreplace(through_at, ((shares[part] + 1) / speeds[part], part))
    return shares
