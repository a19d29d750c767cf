"""Jobs that are not as fast as their kind: two kinds of job under one name, or machines that are worse than others.

Such a job is of a kind of its own for as long as it holds its machines, as fast as its kind times what it differs by.
So a plan counts with its true speed, and what it reaches is not held against the others. On other machines it is one of
its kind again until it is seen to differ there as well.
"""

from math import isfinite, log2

from scheduler.core.cycle import Cycle
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.speed_events import SpeedDiffers
from walras.ids import Kind

#: A job differs from its kind when it is faster or slower by this factor...
DIFFERS = 1.5
#: ... in the median of so many windows of its steps.
WINDOWS = 10


def is_odd(usual: float | None, own: float, windows: int) -> bool:
    """Whether a job that reports this speed differs from its kind. `usual`: what others reached; None: nobody was."""
    return usual is not None and windows >= WINDOWS and min(usual, own) > 0 and abs(log2(own / usual)) >= log2(DIFFERS)


def differs(cycle: Cycle, job: JobRecord, event: SpeedDiffers) -> None:
    """Give the job a kind of its own. Factors are rounded, so that there are few such kinds."""
    ledger = cycle.ledger
    if job.placement is None or ledger.kind_of(job) != job.request.kind:
        return
    if not (event.usual > 0 and event.own > 0 and isfinite(event.own / event.usual)):
        return
    factor = float(f"{2.0 ** (round(2.0 * log2(event.own / event.usual)) / 2.0):.2g}")
    kind = Kind(f"{job.request.kind} at {factor:g} times its speed")
    ledger.table.derive(kind, job.request.kind, factor)
    become(cycle, job, kind)
    cycle.dirty = True


def become(cycle: Cycle, job: JobRecord, kind: Kind) -> None:
    """From now on the job's speeds are those of this kind."""
    columns, classes = cycle.ledger.columns, cycle.ledger.classes
    job.class_row = columns.class_row[job.slot] = classes.of_kind(job.class_row, kind)
    columns.runs_as[job.slot] = classes.of_kind(int(columns.runs_as[job.slot]), kind)
    job.ends_known = -1
    for row, _ in job.place:
        if (machine := cycle.ledger.fleet.machines[row]) is not None:
            machine.ends_known = -1


def forget(cycle: Cycle, job: JobRecord) -> None:
    """Its machines are given back: elsewhere it is one of its kind again."""
    if cycle.ledger.kind_of(job) != job.request.kind:
        become(cycle, job, job.request.kind)
