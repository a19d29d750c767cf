"""What can be judged only once a run is over: the books, the logs, the journal."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.live.store.event_journal import replay_folder
from scheduler.live.store.store_interface import JobQuery
from scheduler.live.store.table_rows import AttemptRow
from tests.whole_system.actors import disturbs

if TYPE_CHECKING:
    from tests.whole_system.world import World


def check_end(world: "World", *, with_replay: bool) -> None:
    """Raise nothing: what is wrong is told to the observer."""
    observer, life = world.observer, world.life
    if observer.broken or life is None or life.store is None or life.process.is_dead:
        return
    store = life.store
    rows = {row.job_id: row for row in store.jobs(JobQuery(limit=10_000))}
    for name, job_id in observer.acknowledged.items():
        if job_id not in rows or rows[job_id].name != name:  # type: ignore[index]
            observer.violate("acknowledged", f"{name} was acknowledged as job {job_id} and is not there")
    names = [row.name for row in rows.values() if row.name in observer.acknowledged]
    for name in {name for name in names if names.count(name) > 1}:
        observer.violate("acknowledged", f"{name} was submitted once and is there {names.count(name)} times")
    for job_id in rows:
        charged = sum(charge.usd for charge in store.charges(job_id))
        least, most = _owed_usd(world, store.attempts(job_id))
        slack = 1e-6 * max(1.0, most)
        if rows[job_id].state.is_final and not least - slack <= charged <= most + slack:
            observer.violate(
                "money", f"job {job_id} was charged {charged:.6f}, attempts cost {least:.6f} to {most:.6f}"
            )
    for words in () if world.cloud is None else world.cloud.wrong_bills(store):
        observer.violate("money", words)
    _check_logs(world)
    if with_replay:
        report = replay_folder(world._data.path)
        if not report.identical:
            observer.violate("replay", f"{report.different} events differ: {report.differences[:1]}")


def _owed_usd(world: "World", attempts: Iterable[AttemptRow]) -> tuple[float, float]:
    """What attempts that ended cost: what they held of owned machines, and of rented ones too.

    On a rented machine a job that states no value pays less than the price, down to nothing: it rides. On a machine
    that joined with a shape of its own, which has no price in the cluster file, it pays nothing.
    """
    least = most = 0.0
    rented = world.cloud.bills if world.cloud is not None else {}
    for attempt in attempts:
        for node_id, devices in json.loads(attempt.placement) if attempt.ended_at is not None else ():
            usd = len(devices) * (attempt.ended_at - attempt.leased_at) * world.usd_per_h / 3600.0
            most += usd if node_id in rented or node_id in world.plan.machines else 0.0
            least += usd if node_id in world.plan.machines else 0.0
    return least, most


def _check_logs(world: "World") -> None:
    for job_id, runs in world.observer.runs.items():
        # A job whose user was never answered is not waited for, and may be about to tell its end.
        if not runs or job_id not in world.observer.final:
            continue
        last = runs[-1]
        if last.how != "exit 0" or world.observer.lost_at.get(last.machine, 0.0) >= last.began_at:
            continue
        there = last.log
        here = world._data.logs / last.incarnation / str(job_id) / str(last.attempt) / f"{last.rank}.log"
        if not here.exists() and (last.ended_at or 0.0) < world.pruned_at:
            continue
        written = there.read_bytes() if there.exists() else None
        kept = here.read_bytes() if here.exists() else b""
        # The report of an end waits ten seconds for the rest of the logs, no longer.
        began, ended = last.began_at - 1000.0, (last.ended_at or 0.0) - 1000.0 + 12.0
        is_quiet = not disturbs(world.plan) and not any(began - 70.0 < each.at < ended for each in world.plan.faults)
        if written is not None and (not written.startswith(kept) or (is_quiet and kept != written)):
            world.observer.violate("log", f"job {job_id} attempt {last.attempt} rank {last.rank}")
