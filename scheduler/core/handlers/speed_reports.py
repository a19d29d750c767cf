"""Reports about speeds: jobs that are faster or slower than their kind, and machines whose network is slow.

A job whose speed differs from its kind's, or whose machines exchange gradients slower than others of their pool,
becomes a kind of its own for as long as it holds its machines, with its kind's speed times a factor. So a plan uses its
true speed, and its measurements do not affect other jobs of the kind.
"""

from math import isfinite, log2

from optimizer.prediction.step_time import ObtainedNetwork, pace_over
from scheduler.core.speed_events import (
    FactsTold,
    NetworkKnown,
    NetworkMeasured,
    RestartMeasured,
    SpeedDiffers,
    SpeedsPredicted,
    ThroughputMeasured,
)
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from walras.cluster import PoolId
from walras.job_request import Kind, plain_kind, project_of


def on_throughput_measured(cycle: Cycle, event: ThroughputMeasured) -> None:
    """Sets a speed that is known from elsewhere."""
    ledger = cycle.ledger
    if ":" in event.accelerator:
        counts = (each.split(":") for each in event.accelerator.split(","))
        changes = ledger.table.measure_mix(event.kind, {name: int(count) for name, count in counts}, event.steps_per_s)
    else:
        changes = ledger.table.set_known(event.kind, event.accelerator, event.count, event.steps_per_s)
    if changes:
        ledger.classes.refresh_kind(event.kind)
        cycle.solves.problem_changed = True


def on_speeds_predicted(cycle: Cycle, event: SpeedsPredicted) -> None:
    """Takes over predicted speeds of cells that were never measured."""
    ledger = cycle.ledger
    changed = [predicted.kind for predicted in event.speeds if ledger.table.predict(predicted)]
    for kind in dict.fromkeys(changed):
        ledger.classes.refresh_kind(kind)
        cycle.solves.problem_changed = True


def on_model_facts(cycle: Cycle, event: FactsTold) -> None:
    """Updates facts about a kind's model that are stated, or counted by a job."""
    cycle.ledger.facts.update(event.kind, event.facts, counted=event.counted)


def on_network_known(cycle: Cycle, event: NetworkKnown) -> None:
    """Restores a network bandwidth that was measured before the core was restarted."""
    project, pool_id = project_of(Kind(event.pool_id)), PoolId(plain_kind(Kind(event.pool_id)))
    cycle.ledger.networks.saw(project, pool_id, event.bytes_per_s)


def on_restart_measured(cycle: Cycle, event: RestartMeasured) -> None:
    """Sets the cost of a restart that is known from elsewhere."""
    cycle.ledger.costs.saw_start(event.kind, event.restart_s)


#: A job differs from its kind if it is faster or slower by this factor...
OUTLIER_FACTOR = 1.5
#: ... in the median over this many windows of steps.
OUTLIER_WINDOWS = 10


def is_speed_outlier(usual: float | None, own: float, windows: int) -> bool:
    """Returns whether a job that reports this speed differs from its kind.

    `usual` is the median speed of the kind's other jobs in that place; None if none was measured.
    """
    return (
        usual is not None
        and windows >= OUTLIER_WINDOWS
        and min(usual, own) > 0
        and abs(log2(own / usual)) >= log2(OUTLIER_FACTOR)
    )


def on_speed_differs(cycle: Cycle, job: JobRecord, event: SpeedDiffers) -> None:
    """Gives the job a kind of its own. Factors are rounded, so that there are few such kinds."""
    ledger = cycle.ledger
    if job.placement is None or ledger.kind_of(job) != job.request.kind:
        return
    if not cycle.sharing.is_settled(job.job_id):
        return  # it was slow because it shared its accelerator until now
    if not (event.usual > 0 and event.own > 0 and isfinite(event.own / event.usual)):
        return
    factor = float(f"{2.0 ** (round(2.0 * log2(event.own / event.usual)) / 2.0):.2g}")
    kind = Kind(f"{job.request.kind} at {factor:g} times its speed")
    ledger.table.derive(kind, job.request.kind, factor)
    ledger.change_kind(job, kind)
    cycle.solves.problem_changed = True


#: Bandwidths are rounded to this fraction of the usual one, so that there are few kinds and noise makes no new ones.
_NETWORK_BUCKET = 0.1


def on_network_measured(cycle: Cycle, job: JobRecord, event: NetworkMeasured) -> None:
    """Records the network of the job's machines. If it is much slower than usual, the job becomes a kind of its own."""
    ledger, bytes_per_s = cycle.ledger, event.bytes_per_s
    if job.placement is None or not (isfinite(bytes_per_s) and bytes_per_s > 0):
        return
    pool_id, project = job.placement.pool_id, project_of(job.request.kind)
    if ledger.kind_of(job) != job.request.kind or ledger.is_spread(job):
        return  # its machines are known to be further apart than others, or in several pools
    planned = ledger.networks.planned(project, pool_id)
    ledger.networks.saw(project, pool_id, bytes_per_s)
    if planned is None:
        return
    obtained = ObtainedNetwork(planned, bytes_per_s)
    if not obtained.replan:
        return
    part = max(_NETWORK_BUCKET, round(bytes_per_s / planned / _NETWORK_BUCKET) * _NETWORK_BUCKET)
    kind = Kind(f"{job.request.kind} at {part:.0%} of the network of {pool_id}")
    ledger.slow_down(job, kind, pace_over(part))
    cycle.solves.problem_changed = True
