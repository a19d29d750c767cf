"""Machines that exchange less than others of their pool: what that means for the speed of the job that got them.

A plan takes a pool's machines to be alike. What a gang over several machines measures when its ranks meet is compared
with what gangs on the pool usually got; where more than a tolerated part is missing, the job is of a kind of its own
for as long as it holds these machines: slower here, and as fast as its kind elsewhere. So a solve may move it, and what
is measured on a bad network is not held against the kind. How much slower is an estimate until steps are counted.
"""

from math import isfinite

from optimizer.performance.choosing.spatial import Obtained
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.speed_events import NetworkMeasured
from scheduler.core.speeds.oddities import become
from walras.ids import Kind

#: Part of a step that is taken to go to exchanging gradients, until it is measured there.
EXCHANGE_PART = 0.5
#: Networks are told apart by this part of the plan: few kinds, and noise makes none.
_BUCKET = 0.1


def measured(cycle: Cycle, job: JobRecord, event: NetworkMeasured) -> None:
    """Take in what the job's machines exchange; where it is too little, the job is slower here from now on."""
    ledger, bytes_per_s = cycle.ledger, event.bytes_per_s
    if job.placement is None or not (isfinite(bytes_per_s) and bytes_per_s > 0):
        return
    pool_id = job.placement.pool_id
    planned = ledger.networks.planned(pool_id)
    ledger.networks.saw(pool_id, bytes_per_s)
    if planned is None or ledger.kind_of(job) != job.request.kind:
        return
    obtained = Obtained(planned, bytes_per_s)
    if not obtained.replan:
        return
    part = max(_BUCKET, round(bytes_per_s / planned / _BUCKET) * _BUCKET)
    kind = Kind(f"{job.request.kind} at {part:.0%} of the network of {pool_id}")
    accelerator = ledger.fleet.pools[int(ledger.columns.pool[job.slot])].pool.shape.accelerator
    count = job.placement.accelerators
    slower = 1.0 / (1.0 + EXCHANGE_PART * (1.0 / part - 1.0))
    usual = ledger.table.speed(job.request.kind, accelerator, count, ledger.classes.nominal)
    ledger.table.derive(kind, job.request.kind)
    ledger.table.guess(kind, accelerator, count, slower * usual.steps_per_s)
    become(cycle, job, kind)
    cycle.dirty = True
