"""What is believed of a job's speed on each pool, and where that comes from: for people who ask."""

from dataclasses import dataclass

from scheduler.core.core import SchedulerCore
from scheduler.core.ledger.throughput import Speed
from walras.ids import JobId, PoolId


@dataclass(frozen=True, slots=True)
class PoolSpeed:
    """Of the whole gang."""

    pool_id: PoolId
    accelerator: str
    accelerators: int
    speed: Speed


def speeds_of(core: SchedulerCore, job_id: JobId) -> tuple[PoolSpeed, ...]:
    """On every pool where the job can run, fastest first; empty for an unknown job."""
    job = core.ledger.jobs.get(job_id)
    if job is None:
        return ()
    ledger, found = core.ledger, list[PoolSpeed]()
    job_class = ledger.class_of(job)
    counts = ledger.classes.forms[job_class.form].counts
    for row in job_class.fastest:
        pool = ledger.fleet.pools[row].pool
        speed = ledger.table.speed(job_class.kind, pool.shape.accelerator, counts[row], ledger.classes.nominal)
        found.append(PoolSpeed(pool.pool_id, pool.shape.accelerator, counts[row], speed))
    return tuple(found)
