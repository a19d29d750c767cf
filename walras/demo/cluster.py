"""The demo's cluster: a server and agents as separate processes, tokens for the users, and the jobs handed in.

Talks to the server as anybody would, through the client; nothing here reaches into it.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from walras.client import Client
from walras.config import PoolEntry
from walras.demo.processes import Processes
from walras.demo.stage import Stage, child_environment, walras_command
from walras.errors import ClusterError, WalrasError

#: A fresh server imports its solvers and makes its database first.
SERVER_READY_S = 60.0
AGENTS_READY_S = 30.0
_LOOK_EVERY_S = 0.2


class Cluster:
    """Starts in `start`, ends in `stop`. Clients live in the exit stack that is handed in."""

    def __init__(self, stage: Stage, processes: Processes, clients: AsyncExitStack, inherited: Mapping[str, str]):
        self._stage = stage
        self._processes = processes
        self._clients = clients
        self._environment = child_environment(inherited)
        self._walras = walras_command()
        self.admin: Client
        self.users: dict[str, Client] = {}

    async def start(self) -> None:
        """Server, machines, users. Raises ClusterError, with the end of the log, if something does not come up."""
        stage = self._stage
        server = ["server", "--data", stage.server, "--host", "127.0.0.1", "--port", "0"]
        files = ["--cluster", stage.cluster_path, "--policy", stage.policy_path]
        self._run("server", *server, *files)
        url = await self._url()
        token = (stage.server / "admin.token").read_text().strip()
        self.admin = await self._clients.enter_async_context(Client(url, token))
        await self._until_ready()
        owned = [entry for entry in stage.cluster.pools for _ in range(entry.machines)]
        for number, entry in enumerate(owned, start=1):
            self._start_agent(url, f"{entry.accelerator}-{number}", entry)
        for user, project in stage.users.items():
            created = await self.admin.create_token(user, "user", [project])
            self.users[user] = await self._clients.enter_async_context(Client(url, created.token))
        await self._until_joined(len(owned))

    def _run(self, name: str, *arguments: object) -> None:
        self._processes.start(name, [self._walras, *map(str, arguments)], self._environment)

    def _start_agent(self, url: str, name: str, entry: PoolEntry) -> None:
        shape = ["--shape", entry.shape, "--accelerator", entry.accelerator, "--accelerators", entry.accelerators]
        size = ["--cpus", f"{entry.cpus:g}", "--memory", str(entry.memory), "--zone", entry.zone]
        emulation = ["--emulated", "--speeds", self._speeds_file(), "--nominal-speed", f"{entry.nominal_speed:g}"]
        place = ["--state", self._stage.folder / "machines" / name, "--node", name]
        join = ["--server", url, "--join-token-file", self._stage.server / "join.token"]
        self._run(name, "agent", *join, *place, *shape, *size, *(emulation if entry.emulated else []))

    def _speeds_file(self) -> Path:
        """The cluster's speed table alone, as agents read it (JSON is YAML)."""
        path = self._stage.folder / "speeds.yaml"
        if not path.exists():
            path.write_text(json.dumps(self._stage.cluster.speeds, indent=1))
        return path

    async def _url(self) -> str:
        path = self._stage.server / "server.json"
        async with asyncio.timeout(SERVER_READY_S):
            while not path.exists():
                self._fail_if_dead()
                await asyncio.sleep(_LOOK_EVERY_S)
        return str(json.loads(path.read_text())["url"])

    async def _until_ready(self) -> None:
        async with asyncio.timeout(SERVER_READY_S):
            while True:
                self._fail_if_dead()
                try:
                    if (await self.admin.health()).ok:
                        return
                except WalrasError:
                    pass
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _until_joined(self, count: int) -> None:
        async with asyncio.timeout(AGENTS_READY_S):
            while len([node for node in await self.admin.nodes() if node.state == "up"]) < count:
                self._fail_if_dead()
                await asyncio.sleep(_LOOK_EVERY_S)

    def _fail_if_dead(self) -> None:
        if (death := self._processes.died()) is not None:
            raise ClusterError(death)

    def check_alive(self) -> None:
        """Raises ClusterError if the server or an owned machine's agent has ended."""
        self._fail_if_dead()

    async def log_of(self, job_id: int, most_bytes: int = 100_000) -> str:
        """What the job printed in all its attempts, as text; empty if it cannot be had."""
        text = b""
        try:
            for attempt in await self.admin.attempts(job_id):
                async for piece in self.admin.logs(job_id, attempt=attempt.attempt):
                    text = (text + piece)[-most_bytes:]
        except WalrasError:
            return text.decode(errors="replace")
        return text.decode(errors="replace")
