"""In-job client: counts steps, paces emulated accelerators, checkpoints and resumes.

    from walras.training import Checkpoint, Loop

    loop = Loop(Checkpoint(model=model, optimizer=optimizer))
    for epoch in loop.epochs(10):
        for images, labels in loop.steps(loader):
            ...
            loop.report(loss=loss)

Without a scheduler around it the same script runs as it is. Standard library only; torch is used where the script has
imported it. No signal handlers, no logging configuration; a thread between calls of `steps()`, and one in ranks
that may save for their gang.
"""

from walras.training.batch_sharing import BatchShares as Shares
from walras.training.batch_sharing import Fork
from walras.training.checkpoint import Checkpoint, TornCheckpoint
from walras.training.loop import Loop
from walras.training.supervisor_link import batch_per_rank, whole_batch

__all__ = ["Checkpoint", "Fork", "Loop", "Shares", "TornCheckpoint", "batch_per_rank", "whole_batch"]
