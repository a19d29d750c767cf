"""What would happen to a job submitted now: its configurations with speeds and prices, and the arrival rule's choice.

Reads the core's ledger and stores nothing.
"""

from math import inf
from typing import Any

import numpy as np

from optimizer.arrival import choose
from optimizer.policy import Newcomer
from scheduler.core.core import SchedulerCore
from scheduler.core.ledger.classes import count_on
from scheduler.core.ledger.ledger import Ledger, Standing
from walras.api import DryRun
from walras.reasons import Reason
from walras.request import JobRequest


def dry_run(core: SchedulerCore, request: JobRequest) -> DryRun:
    """Answer for the ledger as it is; the request must be one that the fleet may come to run."""
    ledger, standing = core.ledger, core.ledger.standing
    configurations = _configurations(ledger, request)
    counts = [int(each["accelerators"]) for each in configurations]
    answer: dict[str, Any] = {
        "kind": request.kind,
        "accelerators": min(counts, default=min(demand.count for demand in request.demands)),
        "configurations": configurations,
    }
    if not configurations:
        return DryRun(**answer, reason=Reason.WAIT_CAPACITY, detail="no machine has joined this cluster yet")
    if all(each["accelerators"] > each["capacity"] for each in configurations):
        return DryRun(**answer, reason=Reason.WAIT_CAPACITY, detail="waits for machines to join, or to come back")
    best = _chosen(ledger, standing, request, configurations)
    if best is None:
        return DryRun(
            **answer, reason=Reason.WAIT_PRICE, detail="no configuration is worth its price before the next solve"
        )
    chosen = configurations[best]
    if not chosen["is_free"]:
        return DryRun(
            **answer, reason=Reason.WAIT_CAPACITY, detail=f"{chosen['pool']} is full: waits for the next round"
        )
    return DryRun(**answer, chosen=chosen, detail=f"would start at once on {chosen['pool']}")


def _configurations(ledger: Ledger, request: JobRequest) -> list[dict[str, Any]]:
    nominal = {state.pool.shape.accelerator: state.pool.shape.nominal_speed for state in ledger.fleet.pools}
    declared = dict(request.declared)
    quote = None if ledger.standing is None else ledger.standing.quote
    found = []
    for state in ledger.fleet.pools:
        accelerator = state.pool.shape.accelerator
        count = count_on(request.demands, request.nodes, state.pool)
        if not count:
            continue
        speed = ledger.table.speed(request.kind, accelerator, count, nominal)
        source, steps_per_s = speed.source.name.lower(), speed.steps_per_s
        if accelerator in declared and source != "measured":
            source, steps_per_s = "declared", declared[accelerator]
        price = 0.0 if quote is None or state.row >= len(quote.prices) else float(quote.prices[state.row])
        usd_per_h = state.pool.usd_per_h * count / state.pool.shape.accelerators
        found.append(
            {
                "pool": state.pool.pool_id,
                "accelerator": accelerator,
                "accelerators": count,
                "steps_per_s": steps_per_s,
                "source": source,
                "price": price * count,
                "unit": "" if quote is None else quote.unit,
                "usd_per_h": usd_per_h,
                "capacity": max(state.capacity, state.pool.quota * state.pool.shape.accelerators),
                "free": state.free,
                "is_free": state.free >= count,
            }
        )
    return found


def _chosen(
    ledger: Ledger, standing: Standing | None, request: JobRequest, configurations: list[dict[str, Any]]
) -> int | None:
    """The arrival rule's choice; where there are no prices, the fastest configuration that is free."""
    rows = {state.pool.pool_id: state.row for state in ledger.fleet.pools}
    speeds = np.array([each["steps_per_s"] for each in configurations], float)
    if standing is None or standing.quote is None or standing.sharing is None:
        free = np.array([each["is_free"] for each in configurations])
        return int(np.argmax(np.where(free, speeds, -1.0)))
    pool = np.array([rows[each["pool"]] for each in configurations])
    priced = pool < len(standing.quote.prices)
    if not priced.all():
        return None
    newcomer = Newcomer(
        steps_per_s=speeds,
        pool=pool,
        count=np.array([each["accelerators"] for each in configurations], float),
        weight=request.weight,
        capacity=np.array([float(state.capacity) for state in ledger.fleet.pools]),
        usd_per_h=np.array([state.pool.usd_per_h / state.pool.shape.accelerators for state in ledger.fleet.pools]),
        remaining_steps=inf if request.steps is None else request.steps,
        length_s=inf if request.duration_s is None else request.duration_s,
        restart_s=ledger.costs.restart_s(request.kind, standing.rules.restart_default_s),
        priority_class=request.priority_class,
    )
    best, _ = choose(standing.sharing, newcomer, standing.quote)
    return best
