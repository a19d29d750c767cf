"""Plants bugs where features cross in a copy of the product, one at a time, and names the situation that finds each.

    python -m tests.crossings.planted [--only NAME,NAME] [--situations 500] [--first 0] [--jobs 2]

A situation finds a bug only if it keeps every promise without it. Returns 1 if fewer than 95 % were found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutations.__main__ import ROOT, WANTED_SHARE, copy_product
from tests.mutations.planted_bugs import PlantedBug

_WHERE = "scheduler/core/placement/where.py"
_SEARCH = "scheduler/core/placement/search.py"
_RESERVATIONS = "scheduler/core/placement/reservations.py"
_BACKFILL = "scheduler/core/cycle/backfill.py"
_LIMITS = "scheduler/core/state/placement_limits.py"
_STOPPING = "scheduler/core/state/stopping.py"
_WORKING_SET = "scheduler/core/state/working_set.py"
_LEDGER = "scheduler/core/state/ledger.py"
_BOOKINGS = "scheduler/core/state/bookings.py"
_SHARES = "scheduler/core/ordering/share_ordering.py"
_RANKS = "scheduler/core/ordering/rank_ordering.py"
_MACHINES = "scheduler/core/handlers/machine_events.py"
_BUDGETS = "scheduler/core/handlers/budgets.py"
_CORE = "scheduler/core/core.py"
_SNAPSHOT = "scheduler/core/cycle/problem_snapshot.py"
_LIFECYCLE = "scheduler/core/placement/attempt_lifecycle.py"
_GANGS = "scheduler/core/placement/planned_gangs.py"
_SHARING = "scheduler/core/placement/co_location.py"
_OWNED = "scheduler/core/state/owned_places.py"
_RETURNS = "scheduler/core/handlers/owned_returns.py"
_WINDOWS = "scheduler/core/handlers/booking_windows.py"
_DEADLINES = "scheduler/core/handlers/deadlines.py"
_JOBS = "scheduler/core/handlers/job_events.py"
_POLICIES = "scheduler/core/handlers/policy_events.py"
_ENDS = "scheduler/core/handlers/attempt_events.py"
_SPENDING = "scheduler/core/state/spending.py"
_PLANS = "scheduler/core/ordering/plan_ordering.py"

CROSSING_BUGS = (
    PlantedBug(
        "booking_ignored_by_free_places", _SEARCH,
        "cycle.ledger.retries, cycle.closed_to(", "cycle.ledger.retries, cycle.avoided(",
    ),
    PlantedBug(
        "booking_ignored_where_others_leave", _WHERE,
        "FREED = (Obstacle.AWAY, Obstacle.TOOLS, Obstacle.BOOKED,", "FREED = (Obstacle.AWAY, Obstacle.TOOLS,",
    ),
    PlantedBug(
        "bookings_close_private_machines_only", _BOOKINGS, "if machine.is_private or not may_leave]",
        "if machine.is_private]",
    ),
    PlantedBug(
        "tools_ignored_by_machines", _WHERE, "not can_prepare(machine.tools, job.request.tools)", "False",
    ),
    PlantedBug(
        "reservation_starts_on_silent_machine", _RESERVATIONS, "if is_up and job.waits and", "if job.waits and",
    ),
    PlantedBug(
        "reservation_outlives_drain", _MACHINES,
        "    drop_reservations_on(cycle, machine)\n"
        "    cycle.ledger.fleet.set_condition(machine, MachineCondition.LEAVING,",
        "    cycle.ledger.fleet.set_condition(machine, MachineCondition.LEAVING,",
    ),
    PlantedBug(
        "limit_ignored_by_reservation", _RESERVATIONS, " and cycle.limits.allows(job, parts, kept=False):", ":",
    ),
    PlantedBug(
        "limit_ignored_by_free_places", _SEARCH,
        "place if place is not None and may_hold(cycle, job, pool, shape.counts[pool]) else None", "place",
    ),
    PlantedBug(
        "limit_ignored_by_borrower", _BACKFILL,
        "if _may_borrow(cycle, job, reservation) and may_hold(cycle, job, pool, count):",
        "if _may_borrow(cycle, job, reservation):",
    ),
    PlantedBug(
        "limit_of_type_ignores_rented", _LIMITS,
        "enumerate(ledger.fleet.pools) if limit.covers(state.pool)]",
        "enumerate(ledger.fleet.pools) if limit.covers(state.pool) and not state.rented]",
    ),
    PlantedBug(
        "limit_ignored_by_victims", _SEARCH,
        "victims) if may_hold(cycle, job, pool, sum(parts), victims) else None", "victims)",
    ),
    PlantedBug(
        "higher_class_yields_to_shares", _SHARES, "found: BoolArray = (there.priority_class < own_class) | equal",
        "found: BoolArray = (there.priority_class != own_class) | equal",
    ),
    PlantedBug(
        "equal_class_yields_at_once", _RANKS, "yielding: Iterable[JobRecord] = there.jobs[:lower]",
        "yielding: Iterable[JobRecord] = there.jobs[:own]",
    ),
    PlantedBug(
        "every_class_yields_to_order", _RANKS,
        "lower, own = bisect_left(there.priority_class, own_class), bisect_right(there.priority_class, own_class)",
        "lower = own = len(there.jobs)",
    ),
    PlantedBug(
        "preemptible_ignored_by_moves", _STOPPING,
        "PLACE = (Protection.ASKED, Protection.NOT_RUNNING, Protection.OWNER,",
        "PLACE = (Protection.ASKED, Protection.NOT_RUNNING,",
    ),
    PlantedBug(
        "preemptible_ignored_by_bookings", _STOPPING, "BOOKING = (Protection.OWNER,)", "BOOKING = ()",
    ),
    PlantedBug(
        "preemptible_ignored_by_gentle_drain", _STOPPING, "MACHINE = (Protection.OWNER, ", "MACHINE = (",
    ),
    PlantedBug(
        "preemptible_ignored_by_lender", _STOPPING, "RETURN = (Protection.OWNER, ", "RETURN = (",
    ),
    PlantedBug(
        "run_time_counted_by_attempt", _BOOKINGS, "max(job.request.max_runtime_s - job.held_s, 0.0)",
        "job.request.max_runtime_s",
    ),
    PlantedBug(
        "budget_spares_starting_jobs", _BUDGETS,
        "if job.holds and job.revoked is None:\n            cycle.spending.held",
        "if job.state.name == 'PREEMPTING':\n            cycle.spending.held",
    ),
    PlantedBug(
        "over_budget_jobs_stay_eligible", _LEDGER, "            and not job.over_budget\n", "",
    ),
    PlantedBug(
        "dependencies_ignored_in_problem", _LEDGER, "            and not job.blocked_by\n", "",
    ),
    PlantedBug(
        "owned_places_taken_by_equals", _SEARCH,
        "return stops and not cycle.ledger.usage.owned.keeps(cycle.ledger, holder, job)", "return stops",
    ),
    PlantedBug(
        "owned_places_lent_for_good", _STOPPING, "LOAN = (Protection.OWNER, ", "LOAN = (",
    ),
    PlantedBug(
        "owned_places_not_returned", _CORE, "lambda cycle: cycle.ledger.usage.owned.claims,", "lambda cycle: False,",
    ),
    PlantedBug(
        "half_of_a_quota_is_rented", _SNAPSHOT, "        return most\n", "        return most // 2\n",
    ),
    PlantedBug(
        "drained_machine_open_where_others_leave", _WHERE, "machine.condition is not MachineCondition.UP,", "False,",
    ),
    PlantedBug(
        "booking_ignored_by_guest", _WHERE,
        "*(Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED, Obstacle.RESERVED),",
        "*(Obstacle.TOOLS, Obstacle.FAILED, Obstacle.RESERVED),",
    ),
    PlantedBug(
        "tools_ignored_by_guest", _WHERE,
        "*(Obstacle.TOOLS, Obstacle.BOOKED, Obstacle.FAILED, Obstacle.RESERVED),",
        "*(Obstacle.BOOKED, Obstacle.FAILED, Obstacle.RESERVED),",
    ),
    PlantedBug(
        "drain_ignored_by_guest", _WHERE, "*(Obstacle.AWAY, Obstacle.KEPT, Obstacle.PRIVATE),",
        "*(Obstacle.KEPT, Obstacle.PRIVATE),",
    ),
    PlantedBug(
        "limit_ignored_by_guest", _SHARING, "!= 1 or not may_hold(cycle, guest, machine.pool, 1):", "!= 1:",
    ),
    PlantedBug(
        "deadline_ignored_by_guest", _SHARING, "request.nodes == 1 and request.deadline_at == inf",
        "request.nodes == 1",
    ),
    PlantedBug(
        "private_machine_of_a_gang_ignored", _STOPPING, "machines[row] for row, _ in job.place)",
        "machines[row] for row, _ in job.place[:1])",
    ),
    PlantedBug(
        "private_machine_protects_nobody", _STOPPING,
        "    if is_on_private(ledger, job):\n        ledger.columns.fixed_at",
        "    if is_on_private(ledger, job) and job.loses_work:\n        ledger.columns.fixed_at",
    ),
    PlantedBug(
        "budgets_end_with_the_policy", _POLICIES, "set_budgets(event.rules.budgets,",
        "set_budgets(event.rules.budgets if event.at == 0.0 else (),",
    ),
    PlantedBug(
        "budget_ignores_new_prices", _SPENDING, "        for job_id in (*self._pays, *free):\n",
        "        for job_id in free:\n",
    ),
    PlantedBug(
        "tools_ignored_in_booked_window", _WHERE, "BOOKED = (Obstacle.NOT_BOOKED, Obstacle.KEPT, Obstacle.TOOLS,",
        "BOOKED = (Obstacle.NOT_BOOKED, Obstacle.KEPT,",
    ),
    PlantedBug(
        "limit_ignored_in_booked_window", _WINDOWS, "<= most and may_hold(cycle, job, pool, n))", "<= most)",
    ),
    PlantedBug(
        "limit_ignored_by_owner", _WHERE, "return not cycle.limits.are_asked or count <= cycle.limits.room(",
        "return cycle.ledger.usage.owned.fits(cycle.ledger, job, pool, count) or count <= cycle.limits.room(",
    ),
    PlantedBug(
        "owner_stops_a_higher_class", _RETURNS,
        "below_it = [each for each in others if each.request.priority_class <= job.request.priority_class]",
        "below_it = others",
    ),
    PlantedBug(
        "owned_places_counted_on_rented_machines", _OWNED,
        "state.pool.market is Market.OWNED and scope_covers(claim.scope, state.pool) for",
        "scope_covers(claim.scope, state.pool) for",
    ),
    PlantedBug(
        "run_time_forgets_failed_attempts", _LIFECYCLE, "    job.held_s += max(cycle.now - job.running_at, 0.0)\n",
        "    job.held_s += max(cycle.now - job.running_at, 0.0) if job.revoked is not None else 0.0\n",
    ),
    PlantedBug(
        "queue_time_counted_after_a_start", _JOBS, "if job.attempt == 0 and not job.holds:", "if not job.holds:",
    ),
    PlantedBug(
        "machine_losses_use_up_retries", _ENDS, "    job.infra_failures += 1\n",
        "    job.infra_failures += 1\n    job.restarts += 1\n",
    ),
    PlantedBug(
        "deadline_before_a_higher_class", _DEADLINES,
        "if not pools[found.pool].rented and _is_wanted_above(cycle, job, found.pool):", "if False:",
    ),
    PlantedBug(
        "deadline_rents_beyond_the_quota", _DEADLINES, "missing = min(needed, state.quota - state.machines - coming)",
        "missing = needed",
    ),
    PlantedBug(
        "limit_ignored_by_deadline", _DEADLINES,
        "    if not may_hold(cycle, job, row, ledger.count_on(job, row)):\n        return",
        "    if not may_hold(cycle, job, row, 0):\n        return",
    ),
    PlantedBug(
        "preemptible_ignored_by_deadline", _STOPPING, "OWN_DEADLINE = (Protection.NOT_RUNNING, Protection.OWNER,",
        "OWN_DEADLINE = (Protection.NOT_RUNNING,",
    ),
    PlantedBug(
        "machines_rented_again_while_they_boot", _MACHINES,
        "missing = min(target, state.quota) - state.machines - sum(state.awaited.values())",
        "missing = min(target, state.quota) - state.machines",
    ),
    PlantedBug(
        "limit_ignored_by_roles", _GANGS,
        "    if not cycle.limits.allows(job, parts, found.victims):\n        return\n", "",
    ),
    PlantedBug(
        "class_ignored_by_gang", _GANGS,
        "        if not self._is_planned(job) and job.request.priority_class > self._job.request.priority_class:\n"
        "            return False\n", "",
    ),
    PlantedBug(
        "new_priority_keeps_old_class", _JOBS,
        "    cycle.ledger.columns.priority_class[job.slot] = job.request.priority_class\n    cycle.solves",
        "    cycle.solves",
    ),
    PlantedBug(
        "protected_time_ends_with_a_higher_class", _PLANS,
        "return job.protected_from + protected_s if protected_s > 0 else -inf",
        "return job.protected_from + protected_s if protected_s > rules.protected_s else -inf",
    ),
)  # fmt: skip


def found_by(folder: Path, bug: PlantedBug, given: argparse.Namespace) -> str:
    """Returns the first situation that finds the bug, and the promise that it breaks; empty if none does."""
    path, first = folder / bug.path, given.first
    whole = path.read_text()
    while first < given.first + given.situations:
        path.write_text(bug.planted(whole))
        try:
            left = given.first + given.situations - first
            said = _run(folder, "--first", first, "--situations", left, "--jobs", given.jobs, "--most-broken", 1)
        finally:
            path.write_text(whole)
        seed = re.search(r"^seed (\d+):.*\n +(.*)$", said, re.MULTILINE)
        if seed is None:
            return ""
        if not re.search(r"^seed ", _run(folder, "--first", seed[1], "--situations", 1, "--jobs", 1), re.MULTILINE):
            return f"seed {seed[1]}: {seed[2][:110]}"
        first = int(seed[1]) + 1
    return ""


def _run(folder: Path, *arguments: object) -> str:
    """Returns what the situations of the copy print; raises if they do not come to their end."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.crossings", *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    if "situations/s" not in ran.stdout:
        raise RuntimeError(ran.stderr[-2000:])
    return ran.stdout


def main() -> int:
    """Returns the exit code: 1 if too few were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.crossings.planted")
    parser.add_argument("--only", default="")
    parser.add_argument("--situations", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    bugs = [bug for bug in CROSSING_BUGS if not only or bug.name in only]
    folder, found = Path(tempfile.mkdtemp(prefix="walras-crossings-")), 0
    try:
        copy_product(folder)
        for name in ("simulator", "tests/crossings", "tests/mutations"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for bug in bugs:
            words = found_by(folder, bug, given)
            found += bool(words)
            print(f"{'found ' if words else 'MISSED'} {bug.name:40} {words}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{found} of {len(bugs)} found")
    return 0 if found >= WANTED_SHARE * len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
