"""The demo's workload on hosts that share nothing, with a drain and the loss of a machine besides what the demo does.

    python -m tests.support.demo_apart FOLDER NUMBER FIELDS

Runs in a process of its own, as `walras demo` does, since it ends all that descends from it. The hosts of this NUMBER
are there already. FIELDS (JSON) stand in the cluster file besides the demo's. Writes FOLDER/told.json.
"""

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from scheduler.live.providers.local_provider import find_agent_process
from tests.support.hosts_apart import HostsApart
from walras.api import NodeView
from walras.demo.local_cluster import ChildProcesses, DemoHosts, DemoSetup, adopt_orphans, prepare_demo
from walras.demo.main import PLAIN_WIDTH, report_and_check, run_on_cluster
from walras.demo.run_report import check_ended_processes
from walras.demo.workload_run import LiveView, WorkloadRun
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_mapping, load_yaml
from walras.states import JobState

#: The machine that is drained, and the one that is lost and joins again, empty.
DRAINED, LOST = "k80-2", "a100-1"
#: The spot machine's host, by its provider.
SPOT = "spot"
HOSTS = ("server", DRAINED, LOST, SPOT)
GIVE_UP_S = 480.0
#: A drained machine takes jobs again once those that left it run elsewhere, or after this long, seconds.
_DRAINED_AT_MOST_S = 25.0
#: A machine is lost while it runs a job that has saved before; after this long, seconds, any job will do.
_BEST_JOB_WITHIN_S = 60.0
#: Variables by which the server gets into the store, and machines do not.
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_MAIN = "import sys; from walras.cli.main import main; sys.argv[0] = 'walras'; sys.exit(main())"


def main() -> None:
    stage = _stage(Path(sys.argv[1]), json.loads(sys.argv[3]))
    hosts = HostsApart(HOSTS, int(sys.argv[2]), stage.folder)
    drill = _Drill(stage)
    adopt_orphans()
    processes = ChildProcesses(stage.logs)
    console = Console(width=PLAIN_WIDTH)
    view, places = LiveView(console, live=False), _places(stage, hosts)
    began = time.monotonic()
    try:
        running = run_on_cluster(stage, processes, view, console, hosts=places, drills=(drill,), give_up_s=GIVE_UP_S)
        story = asyncio.run(running)
    finally:
        stubborn = processes.stop()
    checks = [*report_and_check(console, stage, story, began), check_ended_processes(stubborn)]
    told = {
        "checks": [asdict(check) for check in checks],
        "jobs": [job.model_dump(mode="json") for job in story.recording.jobs.values()],
        "rank_starts": story.recording.rank_starts(),
        "drill": drill.told,
    }
    (stage.folder / "told.json").write_text(json.dumps(told))


def _stage(folder: Path, fields: dict[str, Any]) -> DemoSetup:
    stage = prepare_demo(folder)
    path = stage.folder / "cluster.yaml"
    path.write_text(json.dumps(load_mapping(stage.cluster_path) | fields))
    return replace(stage, cluster_path=path, cluster=load_yaml(path, ClusterConfig))


def _places(stage: DemoSetup, hosts: HostsApart) -> DemoHosts:
    """Each process on a host of its own. The server's provider has a `walras` that starts agents on the spot host."""
    program = Path(sys.executable).parent / "walras"
    given = [stage.server / "join.token", stage.folder / "speeds.yaml"]
    stand_in = stage.folder / "walras"
    stand_in.write_text(_stand_in(hosts, [given[0], stage.server / "speeds.yaml"], program))
    stand_in.chmod(0o755)

    def enter(name: str) -> Sequence[str]:
        if name == "server":
            then = f"mount --bind {shlex.quote(str(stand_in))} {shlex.quote(str(program))}"
            return hosts.enter(name, str(stage.server), [stage.cluster_path, stand_in], then)
        own = stage.state_of(name)
        own.mkdir(parents=True, exist_ok=True)
        without_keys = [word for key in _KEYS for word in ("-u", key)]
        return ["env", *without_keys, f"HOME={own}", *hosts.enter(name, str(own), given)]

    return DemoHosts(("--host", hosts.address("server"), "--port", "0", "--tls", "self"), enter)


def _stand_in(hosts: HostsApart, given: Sequence[Path], program: Path) -> str:
    walras = shlex.join([sys.executable, "-c", _MAIN])
    settings = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION") if name in os.environ}
    enter = hosts.enter(SPOT, "$OWN", given, f"umount {shlex.quote(str(program))}")
    return f"""#!/bin/sh
[ "$1" = agent ] || exec {walras} "$@"
for word; do
    [ "$before" != --state ] || OWN=$word
    before=$word
done
export OWN HOME="$OWN" {shlex.join(f"{name}={value}" for name, value in settings.items())}
exec {shlex.join(enter)} {walras} "$@"
"""


@dataclass
class _Drill:
    """Notes what the hosts see; drains a machine and takes it back; then kills another, which joins again without its
    disk.
    """

    stage: DemoSetup
    #: `ended_ranks` is the most that the drain and the loss can have ended.
    told: dict[str, Any] = field(default_factory=lambda: {"ended_ranks": 0})
    _due_s: float = 0.0

    async def look(self, run: WorkloadRun, nodes: Sequence[NodeView]) -> list[str]:
        node = {each.node_id: each for each in nodes}
        if "hosts" not in self.told:
            return self._note_hosts(nodes)
        if "drained" not in self.told:
            return await self._drain(run, node[DRAINED])
        if "resumed_s" not in self.told:
            return await self._resume(run, node[DRAINED])
        if "lost" not in self.told:
            return await self._lose(run, node[LOST])
        if "joined_s" not in self.told:
            return await self._join(run)
        return []

    def _note_hosts(self, nodes: Sequence[NodeView]) -> list[str]:
        """Notes the namespaces of all hosts, what of the run and of the checkout's jobs they see, and who has keys."""
        states = {name: self.stage.state_of(name) for name in self.stage.machines}
        for node in nodes:
            if node.market == "spot" and node.state == "up":
                states[SPOT] = self.stage.server / "machines" / node.node_id
        agents = {name: find_agent_process(state) for name, state in states.items()}
        if len(agents) < len(HOSTS) - 1 or not all(agents.values()):
            return []
        server = json.loads((self.stage.server / "server.json").read_text())["pid"]
        pids = {"server": server} | {name: agent.pid for name, agent in agents.items() if agent is not None}
        self.told["hosts"] = {name: self._seen_by(pid) for name, pid in pids.items()}
        return ["all machines are here"]

    def _seen_by(self, pid: int) -> dict[str, Any]:
        about: dict[str, Any] = {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "mnt")}
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        about["has_keys"] = any(each.startswith(f"{key}=".encode()) for each in environment for key in _KEYS)
        root = Path(f"/proc/{pid}/root")
        looked: dict[str, Path] = {
            "folder": self.stage.folder,
            "machines": self.stage.folder / "machines",
            "server": self.stage.server,
            "rented": self.stage.server / "machines",
            "code": self.stage.configs / "jobs",
        }
        found = {name: root / path.relative_to("/") for name, path in looked.items()}
        return about | {name: sorted(os.listdir(path)) if path.is_dir() else [] for name, path in found.items()}

    async def _drain(self, run: WorkloadRun, node: NodeView) -> list[str]:
        drained = [job for job in node.jobs if run.recording.is_worth_saving(job)]
        if not drained:
            return []
        self.told["drained"] = drained
        self.told["ended_ranks"] += node.accelerators - node.free
        self._due_s = run.at_s + _DRAINED_AT_MOST_S
        return [await self._admin(run, "drain")]

    async def _resume(self, run: WorkloadRun, node: NodeView) -> list[str]:
        goes_on = any(run.recording.states[job][0] == JobState.RUNNING for job in self.told["drained"])
        has_left = not set(self.told["drained"]) & set(node.jobs)
        if not (has_left and (goes_on or run.at_s >= self._due_s)):
            return []
        if not await self._was_ended(run, self.told["drained"]):
            # The policy took them off, or they ended, in the moment of the drain: what it does is still to be seen.
            del self.told["drained"]
        else:
            self.told["resumed_s"] = run.at_s
            self._due_s = run.at_s + _BEST_JOB_WITHIN_S
        return [await self._admin(run, "resume")]

    async def _was_ended(self, run: WorkloadRun, jobs: Sequence[int]) -> bool:
        """Returns whether the drain ended an attempt of one of these."""
        details = [await run.cluster.admin.job(job) for job in jobs]
        return any(attempt.reason == "HOLD:ADMIN" for each in details for attempt in each.attempt_list)

    async def _admin(self, run: WorkloadRun, verb: str) -> str:
        """Types `walras admin drain` or `resume` at the server's address."""
        access = {"WALRAS_SERVER": run.cluster.url, "WALRAS_TOKEN_FILE": str(self.stage.server / "admin.token")}
        command = [sys.executable, "-c", _MAIN, "admin", verb, DRAINED]
        done = await asyncio.create_subprocess_exec(
            *command, env=os.environ | access, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        text = (await done.communicate())[0].decode().strip()
        assert done.returncode == 0, text
        return text

    async def _lose(self, run: WorkloadRun, node: NodeView) -> list[str]:
        worth = [job for job in node.jobs if run.recording.is_worth_saving(job)]
        details = {job: await run.cluster.admin.job(job) for job in worth}
        running = [job for job, each in details.items() if each.state == JobState.RUNNING]
        saved = {job: each.checkpoint.step for job in running if (each := details[job]).checkpoint is not None}
        if not running or not (saved or run.at_s >= self._due_s):
            return []
        attempts = {job: details[job].attempt_list[-1].attempt for job in running}
        self.told["lost"] = {"jobs": running, "attempts": attempts, "saved": saved, "at_s": run.at_s}
        self.told["ended_ranks"] += node.accelerators - node.free
        run.cluster.lose_machine(LOST)
        return [f"{LOST} is lost, with its disk and jobs {node.jobs}"]

    async def _join(self, run: WorkloadRun) -> list[str]:
        if "started_s" not in self.told:
            self.told["started_s"] = run.at_s
            run.cluster.start_machine(LOST)
            return [f"{LOST} starts again, empty"]
        if not (self.stage.state_of(LOST) / "credential.json").exists():
            return []
        ends = await self._ends_of_lost(run)
        if "INFRA:NODE_LOST" in ends:
            self.told["joined_s"] = run.at_s
        elif all(ends):
            # Its jobs ended, or the policy took them off, in the moment of the loss: what it does is still to be seen.
            del self.told["lost"], self.told["started_s"]
        else:
            return []
        return [f"{LOST} has joined again"]

    async def _ends_of_lost(self, run: WorkloadRun) -> list[str]:
        """How each attempt ended that ran on the lost machine; empty: it has not yet, as far as the server knows."""
        found = []
        for job, number in self.told["lost"]["attempts"].items():
            each = next(each for each in (await run.cluster.admin.job(job)).attempt_list if each.attempt == number)
            found.append("" if each.ended_at is None else each.reason or each.state)
        return found


if __name__ == "__main__":
    main()
