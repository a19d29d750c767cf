"""Finish-time fairness as Shockwave reports it: completion time over that on a share of the cluster all to oneself.

    rho = JCT / (time alone x max(1, jobs / accelerators))

The time alone is reckoned at the batches that were profiled for each epoch, which are not quite those that a job has.
"""

from collections import Counter
from collections.abc import Sequence

from simulator.compat.shockwave.batches import Batching, BatchRule
from simulator.truth import Truth

_DECIMALS = 5
#: Accordion's profile holds on to the first batch for this part of the epochs.
_HELD = 0.3


def alone_s(batching: Batching, steps: int, truth: Truth, accelerator: str) -> float:
    """Run time of a job of so many steps (at its first batch) on accelerators of its own.

    Raises ConfigError where nobody knows a speed.
    """
    network = batching.network
    epochs = -(-steps // network.epoch_steps(batching.original))
    trained = Counter(profiled_batch(batching, epoch, epochs) for epoch in range(epochs))
    speed = {batch: truth.steps_per_s(batching.kind(batch), accelerator, batching.gang) for batch in trained}
    return sum(count * network.samples / batch / speed[batch] for batch, count in trained.items())


def profiled_batch(batching: Batching, epoch: int, epochs: int) -> int:
    """The batch of an epoch (from 0) in the profile of a job of so many."""
    if not batching.network.is_dynamic:
        return batching.original
    match batching.rule:
        case BatchRule.STATIC:
            return batching.original
        case BatchRule.GNS:
            breaks = batching.breaks
            passed = sum(at <= epoch for at in breaks)
            if not breaks or epochs <= breaks[0] or (epoch == epochs - 1 and passed >= 2):
                return batching.original
            return batching.doubled(epoch)
    late = batching.name == "Recommendation" and (60 <= epoch < 70 or 80 <= epoch < 90)
    held = late or batching.is_critical(epoch) or epoch <= _HELD * epochs
    return batching.original if held else batching.network.largest


def finish_time_fairness(jct_s: Sequence[float], alone: Sequence[float], accelerators: int) -> list[float]:
    """rho of each job, of five decimals; above 1: unfair."""
    share = max(1.0, len(jct_s) / accelerators)
    return [round(jct / (time_s * share), _DECIMALS) for jct, time_s in zip(jct_s, alone, strict=True)]
