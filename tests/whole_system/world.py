"""One run of the whole system: the real server, real agents, users, and what befalls them.

`World.run` plays a plan; afterwards `World.observer.broken` has the broken promises and `World.observer.story` what
happened. Lives of the server and of agents are `SimProcess`es; `_keep_running` restarts what has died, as systemd
would.
"""

import asyncio
import contextlib
import contextvars
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import aiohttp

import workers.agent.agent as agent_module
import workers.agent.launch as launch_module
import workers.agent.machine_notices as notices_module
import workers.agent.server_client as shipping_module
from scheduler.live import main as main_module
from scheduler.live.assembly import ServerConfig, settings_for_cluster
from scheduler.live.http import cluster_api as overview_module
from scheduler.live.http import connection_guard as guard_module
from scheduler.live.http import request_bodies as bodies_module
from scheduler.live.loop import live_state as state_module
from scheduler.live.loop import solver_pool as solver_pool_module
from scheduler.live.loop import worker_process as worker_process_module
from scheduler.live.main import ListenOptions, alone_with
from scheduler.live.providers import local_provider as local_module
from scheduler.live.services import cluster_metrics as metrics_module
from scheduler.live.services.start_forecasts import StartForecasts
from scheduler.live.store.content_store import FREE_LEAST_BYTES
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.store_interface import EXIT_NOT_LEADING, StoreUnavailable
from scheduler.live.store.table_rows import DrainedBy, OutboxRow
from scheduler.live.web.page import PageFiles
from tests.support.stores import new_database
from tests.whole_system import actors
from tests.whole_system.fake_machine import InlineReader, InlineWorker, Machine, installed, replaced
from tests.whole_system.final_checks import check_end
from tests.whole_system.lives import AgentLife, ServerLife, SimAgentStore, SimStore, close_store
from tests.whole_system.network import Listener, Network, OlderSession, SimSession, Weather
from tests.whole_system.observer import Observer
from tests.whole_system.plans import (
    BACK_S,
    CALLS_MOST,
    FAULTS_UNTIL_S,
    HEARTBEAT_S,
    JOBS_MOST,
    LEASE_S,
    LIVENESS_S,
    RENTED_POOL,
    Fault,
    Plan,
)
from tests.whole_system.rented import KNOWN_WITHIN_S, PlayedCloud, rented_entry
from tests.whole_system.virtual_loop import PROCESS, ProcessKilled, SimProcess, VirtualLoop
from walras.clocks import Clocks
from walras.cluster import Market
from walras.contract import PROTOCOL
from walras.errors import ConfigError, Forbidden
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.states import JobState
from walras.wire import Register, ShapeFacts
from workers.agent.agent import Agent
from workers.agent.launch import AgentMachine
from workers.agent.server_client import Enrolment, ServerClient
from workers.devices import Accelerators, Host

WALL = 1_700_000_000.0
_AT_START = Clocks(lambda: WALL + 1000.0, lambda: 1000.0, lambda: 1000.0)
USD_PER_H = 3600.0
_JOINED_BY_S = 1060.0


class World:
    """Everything of one run. `folder` should lie in memory."""

    usd_per_h = USD_PER_H

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.loop = VirtualLoop()
        self.chance = Random(f"world {plan.seed}")
        self.network = Network(self.loop, Random(f"network {plan.seed}"), plan.lag_s)
        scripts = {script.name: script for _, script, _ in plan.jobs}
        self.observer = Observer(self.loop, scripts, LEASE_S)
        self.network.misunderstood = partial(self.observer.violate, "protocol")
        self.network.heard, self.network.renewed = self.observer.heard, self.observer.renewed
        self.observer.written = lambda: None if self.life is None or self.life.process.is_dead else self.life.store
        self.machines = {name: Machine(name, self.loop, self.observer) for name in plan.machines}
        self.observer.machines = list(self.machines.values())
        self.agents: dict[str, AgentLife] = {}
        self.life: ServerLife | None = None
        self.is_disk_full, self.full_agents = False, set[str]()
        self.observer.full_disks = self.full_agents
        #: Machine -> the agent dies at so manieth write from now, right after it or before.
        self.writes_to_crash: dict[str, tuple[int, bool]] = {}
        self.wall_offset_s = 0.0
        #: The administrator's token, as the first start made it. No restart and no restore changes it.
        self.admin_token = ""
        #: Bytes that the content store may take; 0: no bound.
        self.content_room = 0
        self.is_calm = not plan.faults and not actors.disturbs(plan)
        #: When logs of jobs that had ended were last deleted.
        self.pruned_at = 0.0
        #: A write takes up to this long, twice.
        self.slow_disk_s = 0.004
        #: So many commits from now the server dies, before it writes the batch or right after.
        self.commits_to_crash, self.crashes_after_commit = -1, False
        self.port = self.first_port = 0
        self.server_down_until = 0.0
        self.server_died_at: list[float] = []
        self.agents_down_until: dict[str, float] = {}
        self.is_healed = False
        self.is_listening = asyncio.Event()
        self.drained: set[str] = set()
        #: Jobs that are held for good, by a rule of the server.
        self._held: set[int] = set()
        self._ports = iter(range(7000, 8000))
        self._context = contextvars.copy_context()
        self._data = DataFolder(folder / "data")
        self._data.path.mkdir()
        (self._data.path / "walras.db").write_bytes(new_database(_AT_START))
        shape = {"shape": "s", "accelerator": "a", "cpus": 64, "memory": "64GiB", "usd_per_h": 0}
        pools = [
            {**shape, "shape": f"a{size}", "accelerators": size, "usd_per_h": USD_PER_H * size}
            for size in sorted(set(plan.machines.values()))
        ]
        if plan.rented:
            pools.append(rented_entry(shape, plan.rented, USD_PER_H))
        # What is played saves no files that could be sent to a store.
        settings = {"pools": pools, "lease": f"{LEASE_S:g}s", "checkpoints": f"file://{folder}/shared"}
        self._cluster = check_model(ClusterConfig, settings, source="cluster")
        self.cloud = PlayedCloud(self, self._cluster.pools[-1]) if plan.rented else None

    # ---------------------------------------------------------------- clocks

    def clocks(self) -> Clocks:
        return Clocks(lambda: WALL + self.loop.time() + self.wall_offset_s, self.loop.time, self.loop.time)

    # ---------------------------------------------------------------- the server

    def start_server(self) -> None:
        process = SimProcess("server", self.loop)
        process.executor_delay = self._disk_delay
        life = self.life = ServerLife(process, self.loop.time())
        process.on_kill.append(lambda: self.server_died_at.append(self.loop.time()))
        process.on_kill += [lambda: self.network.stop_listening(process), lambda: close_store(life.store)]
        process.spawn(self._serve(life))

    def content_bytes(self) -> int:
        """Bytes that lie in the content store."""
        return sum(path.stat().st_size for path in (self._data.path / "content").glob("*/*"))

    def _disk_delay(self) -> float:
        return self.chance.random() * self.slow_disk_s

    async def _serve(self, life: ServerLife) -> None:
        self._data.create()
        chance = Random(f"server {self.plan.seed} {life.began_at}")
        try:
            life.store = SimStore(self._data.path, self.clocks(), chance)
            life.store.world = self
            settings = settings_for_cluster(self._cluster)
            settings = replace(settings, heartbeat_s=HEARTBEAT_S, concurrency=CALLS_MOST)
            config = ServerConfig(self._data, self._cluster, self.plan.policy, settings, self.clocks(), chance)
            opened = replace(alone_with(life.store), wait_until_lost=life.store.wait_until_lost)
            why = f"exit code {await main_module._serve(config, opened, ListenOptions(), None)}"
            if life.store.is_replaced and why == f"exit code {EXIT_NOT_LEADING}":
                life.process.kill()
                return
        except Exception as error:
            why = f"{type(error).__name__}: {error}".replace(str(self.folder), "")
            if isinstance(error, StoreUnavailable) and life.server is None:
                self.observer.tell(f"the server does not start: {why}")
                life.process.kill()
                return
        self.observer.violate("server", f"the server ends by itself: {why}")
        life.process.kill()

    async def _listen(self, runner: Any, guard: Any, wanted: ListenOptions, *_: Any, **__: Any) -> tuple[str, int]:
        life = self.life
        assert life is not None
        assert PROCESS.get() is life.process
        await runner.setup()
        self.port = wanted.port or next(self._ports)
        self.first_port = self.first_port or self.port
        self.admin_token = self.admin_token or self._data.admin_token_file.read_text().strip()
        self.is_listening.set()
        server = next(each for each in _closure_servers(runner.app))
        life.server = server
        self.network.listener = Listener(life.process, runner.app, self.port)
        return f"http://10.0.0.2:{self.port}", self.port

    # ---------------------------------------------------------------- the agents

    def start_agent(self, name: str, folder: str = "") -> AgentLife:
        process = SimProcess(name, self.loop, self.machines[name])
        process.executor_delay = lambda: 0.001
        life = AgentLife(process, self.loop.time())
        self.observer.agent_began_at[name] = life.began_at
        process.on_kill.append(lambda: close_store(life.store))
        process.spawn(self._run_agent(name, life, self.folder / (folder or name)))
        return life

    async def _run_agent(self, name: str, life: AgentLife, state: Path) -> None:
        rent_token = "" if self.cloud is None else self.cloud.token_of(name)
        devices = self.plan.rented if rent_token else self.plan.machines[name]
        (state / "s").mkdir(parents=True, exist_ok=True)
        chance = Random(f"agent {name} {self.plan.seed} {life.began_at}")
        host = Host(64.0, 64 << 30)
        beneath = self.machines[name]
        # Neither of the clocks that never go back outlives a reboot.
        clocks = replace(self.clocks(), monotonic=beneath.boottime, boottime=beneath.boottime)
        machine = AgentMachine(state, Accelerators("a", devices), host, False, {}, {}, clocks, chance)
        shape, market = (RENTED_POOL, Market.SPOT) if rent_token else (f"a{devices}", Market.OWNED)
        facts = ShapeFacts(
            shape=shape, accelerator="a", accelerators=devices, cpus=64.0, memory_bytes=64 << 30, market=market
        )
        token_file = self._data.join_token_file
        try:
            life.store = SimAgentStore(state, chance)
            life.store.world, life.store.name = self, name
            session = (OlderSession if name in self.plan.older else SimSession)(self.network, name)
            client = ServerClient(session, f"http://10.0.0.2:{self.first_port}")  # type: ignore[arg-type]
            message = Register(
                node_id=name, facts=facts, version="1", protocol=PROTOCOL, agent=life.store.agent,
                boot_id=beneath.boot_id, rent_token=rent_token,
            )  # fmt: skip
            life.agent = Agent(machine, life.store, client, Enrolment(state, message, token_file, "10.0.0.1"))
            await life.agent.run()
            why = "it returned"
        except (Forbidden, ConfigError) as error:
            # Nobody asked for it any more: its agent is told so, and the machine is given back.
            why = "" if self.first_port == 0 or rent_token else str(error)
        except BaseExceptionGroup as error:
            why = "" if error.subgroup(ProcessKilled) else f"{error.exceptions[0]!r}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            self.observer.violate("server", f"the agent of {name} ends by itself: {why}")
        life.process.kill()

    # ---------------------------------------------------------------- users

    async def call(self, method: str, path: str, body: Any = None, key: str = "", who: str = "user") -> tuple[int, Any]:
        """An admin's request. Raises ClientError or TimeoutError."""
        status, answer = await self.send(method, f"/api/v1/{path}", body, who, key=key)
        return status, json.loads(answer) if answer else None

    async def send(
        self, method: str, path: str, body: Any, who: str, *, token: str = "", key: str = "", timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        """A request as it is, an admin's without another token. Raises as `call`."""
        headers = {"Authorization": f"Bearer {token or self.admin_token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.network.call(who, method, f"http://10.0.0.2:{self.port}{path}", headers, content, timeout_s)

    async def insist(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Until it is answered with anything but a failure, or with a refusal while machines may still be joining."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                status, answer = await self.call(method, path, body, key)
                is_early = status == 400 and self.loop.time() < _JOINED_BY_S
                if status < 500 and status not in (401, 429) and not is_early:
                    return status, answer
            await asyncio.sleep(1.0)

    async def _submit(self, at: float, spec: dict[str, Any]) -> None:
        await asyncio.sleep(at)
        status, answer = await self.insist("POST", "jobs", spec, key=f"key-{spec['name']}")
        assert status in (200, 201), answer
        job_id = int(answer["id"])
        self.observer.tell(f"{spec['name']} is acknowledged as job {job_id}")
        if job_id in self.observer.acknowledged.values():
            self.observer.violate("acknowledged", f"{spec['name']} got the number of another job, {job_id}")
        self.observer.acknowledge(spec["name"], job_id)

    # ---------------------------------------------------------------- the run

    async def play(self) -> None:
        self.start_server()
        await self.is_listening.wait()
        for name in self.machines:
            self.agents[name] = self.start_agent(name)
        users = [asyncio.create_task(self._submit(at, spec)) for at, _, spec in self.plan.jobs]
        others = [
            asyncio.create_task(self._keep_running()),
            asyncio.create_task(self._look_around()),
            *(asyncio.create_task(self._befall(fault)) for fault in self.plan.faults),
            *(asyncio.create_task(actors.play(self, *each)) for each in zip(self.plan.actors, count())),
        ]
        await asyncio.sleep(FAULTS_UNTIL_S)
        await self._heal()
        await self._until_all_have_ended(users)
        for task in (*users, *others):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
            task.cancel()

    async def _keep_running(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = self.loop.time()
            if self.life is not None and self.life.process.is_dead and now >= self.server_down_until:
                self.start_server()
            for name, life in list(self.agents.items()):
                if life.process.is_dead and now >= self.agents_down_until.get(name, 0.0):
                    self.agents[name] = self.start_agent(name)

    async def _look_around(self) -> None:
        while not self.observer.broken:
            await asyncio.sleep(2.0)
            server = None if self.life is None or self.life.process.is_dead else self.life.server
            self.observer.look(self.agents, server, can_write=not self.is_disk_full)
            self._check_requests(server)
            for words in () if self.cloud is None else self.cloud.missed_too_late(server):
                self.observer.violate("missed", words)

    def _check_requests(self, server: Any) -> None:
        """No request that is over counts."""
        listener = self.network.listener
        if server is None or listener is None or self.life is None or listener.process is not self.life.process:
            return
        for share in server.shares_of_requests[1:]:
            if sum(share.held.values()) > listener.requests:
                self.observer.violate("holders", f"{share.what} that are over count: {share.held}")

    async def _befall(self, fault: Fault) -> None:
        from tests.whole_system.faults import act

        await asyncio.sleep(fault.at)
        self.observer.tell(f"-- {fault}")
        await act(self, fault)

    async def _heal(self) -> None:
        self.observer.tell("-- healed")
        self.is_healed = self.observer.is_healed = True
        self.network.weather, self.is_disk_full, self.slow_disk_s = Weather(), False, 0.004
        self.full_agents.clear()
        self.writes_to_crash.clear()
        self.network.cut_off.clear()
        self.server_down_until = 0.0
        self.agents_down_until.clear()
        if self.cloud is not None:
            self.cloud.heal()
        for name in sorted(self.drained):
            await self.insist("POST", f"nodes/{name}/resume")

    async def _until_all_have_ended(self, users: list["asyncio.Task[None]"]) -> None:
        until = self.loop.time() + LIVENESS_S
        observer = self.observer
        while self.loop.time() < until and not observer.broken:
            await asyncio.sleep(3.0)
            if all(task.done() for task in users):
                if not self._left():
                    break
                await self._release_held()
                await self._resume_machines()
        left = sorted(self._left() - self._held)
        if not observer.broken and (left or not all(task.done() for task in users)):
            observer.violate("liveness", f"after {LIVENESS_S:g} s not ended: jobs {left}")
        await self._until_all_are_back()
        await asyncio.sleep(6.0)

    def _left(self) -> set[int]:
        """Jobs that are to end still. Who waits for one that is held for its failures waits with it."""
        waits, more = set[int](), set(self._held)
        while more:
            waits |= more
            more = {child for child, parent in self.observer.parents.items() if parent in waits} - waits
        left = set(self.observer.acknowledged.values()) - set(self.observer.final)
        return left - (waits - self._held)

    async def _until_all_are_back(self) -> None:
        """Machines that were drained by a notice or that ended for good are waited for in vain."""
        bound_s = BACK_S if self.cloud is None else KNOWN_WITHIN_S
        until, missing = self.loop.time() + bound_s, list[str]()
        while self.loop.time() < until and not self.observer.broken:
            server = None if self.life is None else self.life.server
            missing = self.observer.check_back(server, set())
            missing += [] if self.cloud is None else self.cloud.unknown(server)
            store = self.observer.written()
            missing += [] if store is None else [f"command {each.command_id}" for each in store.load().rows(OutboxRow)]
            if not missing:
                return
            await asyncio.sleep(3.0)
        if not self.observer.broken:
            self.observer.violate("back", f"after {bound_s:g} s not up again: {missing}")

    async def _resume_machines(self) -> None:
        """A full disk has made one look broken, or a drain has arrived late; somebody has to say that it is well."""
        server = None if self.life is None else self.life.server
        nodes = {} if server is None else server.loop.state.nodes
        for name, node in list(nodes.items()):
            if node.row.cordon == "quarantined" or node.row.drained_by is DrainedBy.ADMIN:
                await self.insist("POST", f"nodes/{name}/resume")

    async def _release_held(self) -> None:
        """Held by a user or an admin: released. Held for repeated failures: that is an end."""
        server = None if self.life is None else self.life.server
        jobs = () if server is None else server.loop.state.jobs.values()
        if not any(job.row.state is JobState.HELD for job in jobs):
            return
        status, page = await self.insist("GET", "jobs?state=HELD&limit=200")
        self._held = set()
        for job in page["items"] if status == 200 else ():
            if str(job.get("reason") or "").startswith("HOLD:REPEATED"):
                self._held.add(job["id"])
                self.observer.final.setdefault(job["id"], job["state"])
            else:
                self.observer.held_since.pop(job["id"], None)
                await self.insist("POST", f"jobs/{job['id']}/release")

    def run(self, *, with_replay: bool = False) -> Observer:
        """Play the plan to its end. The loop and all files are given back."""
        asyncio.set_event_loop(self.loop)
        sys.unraisablehook = lambda _: None
        try:
            with installed(self.loop, self.observer.machines), self._patched():
                try:
                    self.loop.run_until_complete(self.loop.create_task(self.play(), context=self._context))
                except RuntimeError:
                    if not self.observer.broken:
                        raise
                check_end(self, with_replay=with_replay)
        finally:
            for process in [*(each.process for each in self.agents.values()), self.life.process if self.life else None]:
                if process is not None:
                    process.kill()
            self.loop.close()
            asyncio.set_event_loop(None)
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.observer

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        """Paces that only cost time, and the one place where the server asks for a real port."""

        class Disk:
            total, free = 1 << 41, 1 << 40

        class FullDisk(Disk):
            free = 0

        def disk_usage(path: Any) -> Any:
            if self.content_room and Path(path).name == "content":
                return SimpleNamespace(free=FREE_LEAST_BYTES + self.content_room - self.content_bytes())
            return FullDisk if self.full_agents and Path(path).name in self.full_agents else Disk

        changes: list[tuple[Any, str, Any]] = [
            (main_module, "_listen", self._listen),
            (main_module, "freeze_gc", lambda: None),
            (main_module, "collect_young", _rest),
            (overview_module, "PageFiles", _page_files),
            (solver_pool_module, "new_worker_process", InlineWorker),
            # Nothing is decided by forecasts, and a rollout takes longer than the run.
            (StartForecasts, "watch", _rest),
            (worker_process_module, "new_worker_process", InlineWorker),
            (bodies_module, "_Worker", InlineReader),
            (notices_module, "NOTICE_POLL_S", 4.0),
            (state_module, "_JOBS_MOST", JOBS_MOST),
            (shipping_module, "SHIP_EVERY_S", 8.0),
            (metrics_module, "_LOOK_AT_LAG_EVERY_S", 10.0),
            (guard_module, "_SWEEP_S", 10.0),
            (local_module, "_WATCH_S", 60.0),
            (agent_module, "tools_here", list),
            # Files are opened by the process that simulates, and no machine of this world has them.
            (agent_module, "descriptor_problem", str),
            (launch_module.shutil, "disk_usage", disk_usage),
            *(() if self.cloud is None else self.cloud.changes()),
        ]
        logging.disable(logging.CRITICAL)
        try:
            with replaced(changes):
                yield
        finally:
            logging.disable(logging.NOTSET)


@cache
def _page_files() -> PageFiles:
    """They are read once and not at each start of a server."""
    return PageFiles()


async def _rest(*_: Any) -> None:
    await asyncio.Event().wait()


def _closure_servers(app: Any) -> Iterator[Any]:
    """The `Server` behind an application: its middleware holds it."""
    for middleware in app.middlewares:
        yield middleware.__self__._server
