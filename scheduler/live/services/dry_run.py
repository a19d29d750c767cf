"""The answer to a dry run of a job: its configurations with speeds and prices, and whether it would start at once.

A dry run reads the core's ledger and stores nothing. The configuration that it names is the arrival rule's.
"""

from math import inf
from typing import Any

import numpy as np

from optimizer.policy import Newcomer, best_configuration_at
from scheduler.core.core import SchedulerCore
from scheduler.core.explain.pending_reasons import why_not_rented
from scheduler.core.state.ledger import ActivePolicy, Ledger
from scheduler.core.state.unsaved_work import CANNOT_MOVE, CANNOT_MOVE_FIX
from walras.api import DryRun
from walras.job_request import JobRequest, Kind
from walras.spec.accelerator_names import named_type
from walras.states import Reason


def unsaved_note(core: SchedulerCore, kind: Kind) -> str:
    """Returns a note for kinds that have not yet saved their work; empty where a job of the kind has."""
    return "" if kind in core.ledger.saving_kinds else f"{CANNOT_MOVE}; {CANNOT_MOVE_FIX}"


def dry_run(core: SchedulerCore, request: JobRequest) -> DryRun:
    """Returns the dry run's answer for the ledger as it is. `check_feasible` must have accepted the request."""
    ledger, standing = core.ledger, core.ledger.policy
    configurations = _configurations(ledger, request)
    counts = [int(each["accelerators"]) for each in configurations]
    value, by = ledger.policy.rules.value_of(request)
    answer: dict[str, Any] = {
        "kind": request.kind,
        "accelerators": min(counts, default=min(demand.count for demand in request.demands)),
        "configurations": configurations,
        "value_usd_per_h": value,
        "value_by": by,
        "note": unsaved_note(core, request.kind) if request.unproven and request.preemptible else "",
    }
    if not configurations:
        return DryRun(**answer, reason=Reason.WAIT_CAPACITY, detail="no machine has joined this cluster yet")
    told = _not_rented(ledger, request, configurations)
    if told:
        return DryRun(**answer, reason=Reason.WAIT_PRICE, detail=told)
    if all(each["accelerators"] > each["capacity"] for each in configurations):
        return DryRun(**answer, reason=Reason.WAIT_CAPACITY, detail="waits for machines to join, or to come back")
    best = _chosen_on_arrival(ledger, standing, request, configurations)
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


def _not_rented(ledger: Ledger, request: JobRequest, configurations: list[dict[str, Any]]) -> str:
    """Returns why no machines are rented, in the cheapest pool, for a job that could only run on rented ones that are
    not here; empty for all other jobs.
    """
    states = {state.name: state for state in ledger.fleet.pools}
    told = []
    for each in sorted(configurations, key=lambda each: float(each["usd_per_h"])):
        state, count = states[each["pool"]], int(each["accelerators"])
        detail, fix = why_not_rented(ledger.policy.rules, request, state, count)
        if state.capacity >= count or not detail:
            return ""
        told.append(f"{state.pool.pool_id}: {detail}; {fix}")
    return told[0] if told else ""


def _configurations(ledger: Ledger, request: JobRequest) -> list[dict[str, Any]]:
    nominal = {state.pool.shape.accelerator: state.pool.shape.nominal_speed for state in ledger.fleet.pools}
    declared = dict(request.declared)
    quote = ledger.policy.quote
    found = []
    for state in ledger.fleet.pools:
        accelerator = state.pool.shape.accelerator
        count = request.size_on(state.pool)
        if not count or not state.can_prepare(request.tools):
            continue
        speed = ledger.table.speed(request.kind, accelerator, count, nominal)
        source, steps_per_s = speed.source.name.lower(), speed.steps_per_s * state.pace
        stated = named_type(declared, accelerator)
        if stated is not None and source != "measured":
            source, steps_per_s = "declared", declared[stated] * state.pace
        price = 0.0 if quote is None or state.row >= len(quote.prices) else float(quote.prices[state.row])
        usd_per_h = state.pool.usd_per_h * count / state.pool.shape.accelerators
        found.append(
            {
                "pool": state.name,
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


def _chosen_on_arrival(
    ledger: Ledger, standing: ActivePolicy | None, request: JobRequest, configurations: list[dict[str, Any]]
) -> int | None:
    """Returns the arrival rule's choice, None for none; without prices, the fastest free configuration."""
    rows = {state.name: state.row for state in ledger.fleet.pools}
    speeds = np.array([each["steps_per_s"] for each in configurations], float)
    if standing is None or standing.quote is None or standing.pricing is None:
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
    best, _ = best_configuration_at(standing, newcomer, standing.quote)
    return best
