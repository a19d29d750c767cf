"""What can befall the whole system: each kind of fault, carried out."""

import asyncio
import contextlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp

from scheduler.live.store import backup as backup_module
from scheduler.live.store.backup import back_up, restore
from scheduler.live.store.retention import prune
from scheduler.live.store.store_interface import JobQuery
from tests.whole_system.network import Weather
from tests.whole_system.plans import RENTED_KINDS, Fault
from workers.agent.machine_notices import write_notice

if TYPE_CHECKING:
    from tests.whole_system.world import World


async def act(world: "World", fault: Fault) -> None:
    """Let it happen; what lasts is undone after `fault.amount` seconds."""
    if world.is_healed:
        return
    name, machine = fault.target, world.machines.get(fault.target)
    life = world.agents.get(name)
    if fault.kind in RENTED_KINDS:
        assert world.cloud is not None
        await world.cloud.befall(fault)
        return
    match fault.kind:
        case "kill_server":
            _kill_server(world)
        case "kill_server_in":
            if world.life is not None:
                world.life.process.countdown = int(fault.amount)
        case "kill_in_commit":
            world.commits_to_crash, odd = divmod(int(fault.amount), 2)
            world.commits_to_crash, world.crashes_after_commit = world.commits_to_crash + 1, bool(odd)
        case "down":
            world.server_down_until = world.loop.time() + fault.amount
            _kill_server(world)
        case "kill_agent" if life is not None:
            life.process.kill()
        case "kill_agent_in" if life is not None:
            life.process.countdown = int(fault.amount)
        case "kill_in_write":
            left, after = divmod(int(fault.amount), 2)
            world.writes_to_crash[name] = left, bool(after)
        case "freeze_agent" if life is not None:
            world.agents_down_until[name] = world.loop.time() + fault.amount
            life.process.kill()
        case "kill_both" if life is not None:
            await _kill_both(world, fault)
        case "reboot" if machine is not None and life is not None:
            life.process.kill()
            world.observer.lost_at[name] = world.loop.time()
            machine.reboot()
        case "lose_state" if machine is not None and life is not None:
            life.process.kill()
            world.observer.lost_at[name] = world.loop.time()
            shutil.rmtree(world.folder / name, ignore_errors=True)
        case "cut_off" | "cut_long":
            world.network.cut_off.add(name)
            await asyncio.sleep(fault.amount)
            world.network.cut_off.discard(name)
        case "weather":
            world.network.weather = world.plan.storm
            await asyncio.sleep(fault.amount)
            world.network.weather = Weather()
        case "kill_supervisor" if machine is not None:
            for each in machine.live[:1]:
                each.die()
        case "kill_rank" if machine is not None:
            for each in machine.live[:1]:
                each.ranks.all[0].run.was_killed_alone = True
                each.ranks.all[0].end(number=9)
        case "notice":
            if (world.folder / name).exists():
                world.drained.add(name)
                write_notice(world.folder / name, fault.amount)
        case _:
            await _act_otherwise(world, fault)


async def _act_otherwise(world: "World", fault: Fault) -> None:
    """Disks, clocks, operators, strangers."""
    match fault.kind:
        case "slow_disk":
            world.slow_disk_s = fault.amount
            await asyncio.sleep(10.0)
            world.slow_disk_s = 0.004
        case "full_disk":
            world.is_disk_full = True
            world.observer.commit_may_take_s += fault.amount + 5.0
            await asyncio.sleep(fault.amount)
            world.is_disk_full = False
        case "full_disk_agent":
            world.full_agents.add(fault.target)
            await asyncio.sleep(fault.amount)
            world.full_agents.discard(fault.target)
        case "wall":
            world.wall_offset_s += fault.amount
        case "cancel" | "hold":
            await _ask_about_job(world, fault.target, fault.kind)
        case "drain" | "resume":
            await _ask_about_machine(world, fault.target, fault.kind)
        case "drain_and_kill":
            await _ask_about_machine(world, fault.target, "drain", {"now": True})
            await asyncio.sleep(fault.amount)
            if not world.is_healed:
                _kill_server(world)
        case "drain_and_reboot":
            await _ask_about_machine(world, fault.target, "drain")
            world.agents_down_until[fault.target] = world.loop.time() + fault.amount
            await act(world, replace(fault, kind="reboot"))
        case "hold_and_kill":
            await _ask_about_job(world, fault.target, "hold")
            await asyncio.sleep(fault.amount)
            if not world.is_healed:
                _kill_server(world)
        case "policy":
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await world.call("PUT", "policy", world.plan.other_policy)
        case "restore" | "move":
            await _restore(world, fault.amount, elsewhere=fault.kind == "move")
        case "prune":
            _prune(world, fault.amount)
        case "hang":
            await _hang(world, fault.amount)
        case "refuse_gang":
            await _refuse_gang(world, fault.amount)
        case "break_gang":
            await _break_gang(world, fault.target)
        case "rogue":
            await _rogue(world)
        case "twin":
            await _twin(world, fault.target)


#: A standby ends the connection of a leader that has not renewed for so long, and leads; who is replaced ends soon.
_LEADS_AFTER_S, _ENDS_WITHIN_S = 8.0, 5.0


async def _hang(world: "World", for_s: float) -> None:
    """The leader takes no turn for a while; if that is longer than its lease, another leads when it goes on."""
    life = world.life
    if life is None or life.store is None or life.process.is_dead or life.process.stopped_until > world.loop.time():
        return
    life.process.stopped_until = world.loop.time() + for_s
    await asyncio.sleep(min(for_s, _LEADS_AFTER_S))
    if for_s <= _LEADS_AFTER_S or life.process.is_dead or world.life is not life:
        return
    life.store.replace()
    world.observer.tell("another server leads")
    world.start_server()
    await asyncio.sleep(for_s - _LEADS_AFTER_S + _ENDS_WITHIN_S)
    if not life.process.is_dead:
        world.observer.violate("server", "one that another has replaced goes on")


def _kill_server(world: "World") -> None:
    if world.life is not None:
        world.life.process.kill()


async def _kill_both(world: "World", fault: Fault) -> None:
    """Server down, a while later the agent; both come back at about the same time."""
    back_at = world.loop.time() + 6.0 + fault.amount
    world.server_down_until = back_at
    world.agents_down_until[fault.target] = back_at
    _kill_server(world)
    await asyncio.sleep(fault.amount)
    world.agents[fault.target].process.kill()


#: A machine that is cut off is believed to be there for a while, and its lease runs out later than all of this.
_GANGS_FORM_S, _GANG_WAITS_S = 6.0, 17.0


async def _break_gang(world: "World", name: str) -> None:
    """A gang waits for a machine that is cut off, while the agent of one that is ready for it dies."""
    world.network.cut_off.add(name)
    until = world.loop.time() + _GANGS_FORM_S
    while world.loop.time() < until:
        await asyncio.sleep(0.25)
        for life in world.agents.values():
            if life.agent is not None and not life.process.is_dead and life.agent._holds.prepared:
                await asyncio.sleep(0.5)
                life.process.kill()
                until = 0.0
    await asyncio.sleep(_GANG_WAITS_S)
    world.network.cut_off.discard(name)


async def _refuse_gang(world: "World", later_s: float) -> None:
    """A machine refuses its part of a gang, for its disk is full; later a backup of just before is restored."""
    until, waits = world.loop.time() + later_s, list[str]()
    while not waits and world.loop.time() < until:
        await asyncio.sleep(0.02)
        server = None if world.life is None or world.life.process.is_dead else world.life.server
        attempts = [] if server is None else [job.attempt for job in server.loop.state.jobs.values()]
        parts = [part for each in attempts if each is not None for part in each.parts.values() if len(each.parts) > 1]
        waits = [part.node_id for part in parts if part.ordered and not (part.prepared or part.ended)]
    if waits:
        name = world.chance.choice(waits)
        world.full_agents.add(name)
        world.loop.call_later(later_s / 2, world.full_agents.discard, name)
        await _restore(world, later_s)


async def _restore(world: "World", later_s: float, *, elsewhere: bool = False) -> None:
    """A backup is taken, and some time later it is put in the place of what the server has.

    `elsewhere`: on a machine that has nothing but the backup.
    """
    if world.life is None or world.life.store is None or world.life.process.is_dead or world.is_disk_full:
        return
    data, taken_at = world._data.path, world.loop.time()
    backup = world.folder / f"backup-{taken_at:.3f}"
    back_up(data, backup)
    await asyncio.sleep(later_s)
    if world.is_healed or world.is_disk_full:
        return
    _kill_server(world)
    logs = world.folder / f"logs-{taken_at:.3f}"
    if elsewhere:  # logs are copied only if they are asked for; what this run looks at later is kept aside
        shutil.copytree(world._data.logs, logs)
        shutil.rmtree(data)
    backup_module.random_hex = lambda _, digits: f"{world.chance.getrandbits(4 * digits):0{digits}x}"
    restore(backup, data, replace=True)
    if elsewhere:
        shutil.copytree(logs, world._data.logs, dirs_exist_ok=True)
    world.observer.tell(f"the backup of {taken_at - 1000.0:.3f} is restored")
    world.observer.restored(taken_at)


def _prune(world: "World", older_s: float) -> None:
    """What belongs to jobs that ended so long ago is deleted, at times their rows, and generations of the journal."""
    store = None if world.life is None or world.life.process.is_dead else world.life.store
    if store is None or world.is_disk_full or store.is_replaced:
        return
    logs, data, observer = world._data.logs, world._data.path, world.observer
    rows = {row.job_id: row for row in store.jobs(JobQuery(limit=10_000))}
    active = sorted(job_id for job_id, row in rows.items() if row.ended_at is None)
    kept = [path for path in logs.glob("*/*/*/*") if int(path.parts[-3]) in active]
    jobs_older_s = world.chance.choice((1e9, older_s))
    prune(data, jobs_older_s=jobs_older_s, logs_older_s=older_s, journal_older_s=older_s)
    for path in kept:
        if not path.exists():
            observer.violate("retention", f"{path.relative_to(logs)} is deleted while its job is active")
    left = {row.job_id for row in store.jobs(JobQuery(limit=10_000))}
    for job_id in sorted(rows.keys() - left):
        if active and job_id >= active[0]:
            observer.violate("retention", f"the row of job {job_id} is deleted, and job {active[0]} has not ended")
        observer.forget(job_id)
    world.pruned_at = world.loop.time()


async def _ask(world: "World", path: str, body: object = None) -> int:
    """Returns the status of the answer; 0 without one."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        return (await world.call("POST", path, body))[0]
    return 0


async def _ask_about_machine(world: "World", name: str, verb: str, body: object = None) -> None:
    """An administrator drains a machine, or lets it take jobs again; once everything is healed somebody does so."""
    observer, asked_at = world.observer, world.loop.time()
    world.drained.add(name)
    if verb == "resume":
        observer.resume(name)
    if await _ask(world, f"nodes/{name}/{verb}", body) == 200 and verb == "drain":
        observer.drain(name, asked_at)


async def _ask_about_job(world: "World", name: str, verb: str) -> None:
    observer = world.observer
    job_id = observer.acknowledged.get(name)
    if job_id is None:
        return
    if verb == "hold":
        observer.asked_to_hold.add(job_id)
    status = await _ask(world, f"jobs/{job_id}/{verb}")
    if verb == "hold" and status == 200 and not world.is_healed:
        observer.hold(job_id)


async def _rogue(world: "World") -> None:
    """A machine that holds the join token and says what it likes."""
    token = world._data.join_token_file.read_text().strip()
    facts = {"shape": "rogue", "accelerator": "r", "accelerators": 1, "cpus": 1.0, "memory_bytes": 1 << 30}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        credential = await _registered(world, "rogue", token, {"node_id": "rogue", "facts": facts})
        for report_id in (10**30, 2**63, 1) if credential else ():
            report = {"type": "notice", "report_id": report_id, "gone_in_s": 1e308}
            await _beat(world, "rogue", credential, {"node_id": "rogue", "resync": True, "reports": [report]}, 5.0)
        if credential:
            report = {"type": "newer", "report_id": 2, "what": "nobody knows"}
            await _beat(world, "rogue", credential, {"node_id": "rogue", "reports": [report]}, 5.0)


async def _registered(world: "World", who: str, token: str, message: object) -> str:
    """The credential of a machine that speaks for itself; empty for one that is refused."""
    status, answer = await world.send("POST", "/agent/v1/register", message, who, token=token, timeout_s=5.0)
    return str(json.loads(answer)["credential"]) if status == 200 else ""


async def _beat(world: "World", who: str, credential: str, message: object, timeout_s: float) -> None:
    await world.send("POST", "/agent/v1/heartbeat", message, who, token=credential, timeout_s=timeout_s)


async def _twin(world: "World", name: str) -> None:
    """Somebody with the join token registers under the name of a machine that lives."""
    token = world._data.join_token_file.read_text().strip()
    count = world.plan.machines.get(name, 1)  # rented ones have one
    boot_id = world.machines[name].boot_id
    facts = {
        "shape": f"a{count}", "accelerator": "a", "accelerators": count, "cpus": 64.0, "memory_bytes": 64 << 30,
    }  # fmt: skip
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        message = {"node_id": name, "facts": facts, "boot_id": boot_id}
        credential = await _registered(world, "twin", token, message)
        for _ in range(5 if credential else 0):
            await _beat(world, "twin", credential, {"node_id": name, "resync": True}, 10.0)
            await asyncio.sleep(1.0)
