"""Jobs go on anywhere though their machines share nothing: what they commit reaches a store, and comes back from it.

In the stories each machine is an agent with folders of its own, in a mount namespace in which the server's folders and
those of the other machines are empty. One of them is drained, one is killed; the job ends with the bits of a quiet run,
also where each machine has a network of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.agent_commands import LOOP, AgentStand, a_stop
from tests.support.networks_apart import CABLE, NetworksApart, networks_apart
from tests.support.object_stores import bucket_of_s3
from tests.support.quiet_run import RESUME_JOB, run_alone
from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from walras.storage.checkpoint_store import SERVER_STORE
from walras.wire import Manifest
from workers.agent.checkpoints import local_folder

__all__ = ["bucket_of_s3"]

pytestmark = pytest.mark.slow

#: Steps/s, once the job has been stopped as often as it is to be: until then it takes its time.
SPEED = 20.0
MACHINES = ("n1", "n2", "n3")
#: Machines of three types, with one accelerator each.
UNLIKE = [A, *({**A, "shape": f"{name}x1", "accelerator": name} for name in "bc")]


def can_hide() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


class Apart:
    """A server and three machines that see nothing of each other's disks; a job of so many machines runs on them.

    `networks`: where they are. One machine alone is followed by one of another type.
    """

    def __init__(self, folder: Path, ranks: int, networks: NetworksApart | None = None, **cluster: Any) -> None:
        self.folder, self.ranks, self.networks = folder, ranks, networks
        if networks is not None:
            cluster["listen"] = ["--host", networks.outside, "--insecure"]
        self.pools = UNLIKE if ranks == 1 else [A]
        self.server = RealServer(folder, self.pools, FIFO, lease="12s", **cluster)
        (folder / "speeds.yaml").write_text(yaml.safe_dump({"digits": {"a": SPEED, "b": 0.6 * SPEED, "c": SPEED}}))
        #: Where ranks leave their result: users have a home that jobs see.
        self.home = folder / "home"
        self.home.mkdir()
        self.hurry = self.home / "hurry"

    def start(self) -> int:
        if self.server.process is None:
            self.server.start()
        for name in MACHINES:
            self._start_agent(name)
        # The name of this host is of an address that is in none of the networks.
        interface = {} if self.networks is None else {"GLOO_SOCKET_IFNAME": CABLE}
        job_id = self.server.submit(
            name="apart",
            profile="digits",
            workdir=str(self.home),
            run=["sh", "-c", f"env > environment; exec {sys.executable} {RESUME_JOB} {self.home}/result"],
            resources={"accelerators": f"any:{self.ranks}"},
            envs={"TEST_SLOWLY_UNTIL": str(self.hurry), **interface},
        )
        self.server.until_step(job_id, 5, 60)
        return job_id

    def _start_agent(self, name: str) -> None:
        others = [self.folder / other for other in MACHINES if other != name]
        for path in others:
            path.mkdir(exist_ok=True)
        hidden = [self.server.data, *others] if can_hide() else []
        within = [] if self.networks is None else self.networks.enter(name)
        pool = self.pools[MACHINES.index(name) % len(self.pools)]
        agent = self.server.start_agent(
            name, pool, speeds=str(self.folder / "speeds.yaml"), unseen=hidden, within=within
        )
        for path in hidden:
            assert not list(Path(f"/proc/{agent.pid}/root{path}").iterdir()), "a machine sees what is not its own"

    def places(self, job_id: int) -> set[str]:
        return {place.split(":")[0] for place in self.server.attempt(job_id)["placement"]}

    def lose(self, name: str) -> None:
        """kill -9 of the machine, and its disk with it."""
        agent = self.server.agents[name]
        agent.close()
        shutil.rmtree(agent.state)


def test_a_job_that_is_drained_and_loses_its_machine_ends_with_the_bits_of_a_quiet_run(tmp_path: Path) -> None:
    """One rank, on machines of three types."""
    drain_and_lose(Apart(tmp_path, 1))


def test_a_gang_meets_where_each_machine_has_a_network_of_its_own(tmp_path: Path) -> None:
    """Ranks' own states come from both; no address is this machine's: what is said to a loopback reaches nobody."""
    with networks_apart(*MACHINES) as networks:
        drain_and_lose(Apart(tmp_path, 2, networks))


def test_the_same_through_an_object_store(tmp_path: Path, bucket: Any) -> None:
    """The job's own place holds what it goes on from, whole; ranks do not see the credentials of their agents."""
    apart = Apart(tmp_path, 1, checkpoints="s3://bucket/run")
    drain_and_lose(apart)
    assert {path.split("/")[4] for path in bucket.find("bucket/run/jobs/1")} == {"chunks", "trees"}
    assert any(path.endswith("-n1") for path in bucket.find("bucket/run/proofs"))
    assert not list((apart.server.data / "content").glob("??/*"))
    environment = (apart.home / "environment").read_text()
    assert "WALRAS" in environment
    assert "AWS" not in environment


def test_machines_without_credentials_get_into_the_store_by_what_the_server_hands_them(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof, an upload, and a resume from it; no file of the machine or the server holds what was handed out."""
    from moto.sts.models import sts_backends

    role = "arn:aws:iam::123456789012:role/checkpoints"
    apart = Apart(tmp_path, 1, checkpoints="s3://bucket/run", checkpoint_access={"role": role})
    server = apart.server
    try:
        server.start()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        job_id = apart.start()
        wait_for(lambda: not server.node("n2")["private"], 30, "n2 has shown that it reaches the store")  # type: ignore[index]
        (first, *_) = apart.places(job_id)
        assert server.call("POST", f"/nodes/{first}/drain")[0] == 200
        server.until_running(job_id, 2, 150)
        apart.hurry.touch()
        assert first not in apart.places(job_id)
        assert server.recorded(job_id)
        server.until_state(job_id, "SUCCEEDED", 120)
    finally:
        server.close()
    tokens = [role.session_token.encode() for role in sts_backends["123456789012"]["aws"].assumed_roles]
    assert tokens
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and any(t in path.read_bytes() for t in tokens)]
    assert any(path.endswith("-n2") for path in bucket.find("bucket/run/proofs"))


def drain_and_lose(apart: Apart) -> None:
    server = apart.server
    try:
        job_id = apart.start()
        if apart.networks is not None:
            pids = ["self", *(agent.pid for agent in server.agents.values())]
            assert len({os.readlink(f"/proc/{pid}/ns/net") for pid in pids}) == 1 + len(MACHINES)
        (first, *_) = apart.places(job_id)
        assert server.call("POST", f"/nodes/{first}/drain")[0] == 200
        server.until_running(job_id, 2, 150)
        assert first not in apart.places(job_id)
        (_, saved_at, _) = server.recorded(job_id)[-1]
        server.until_step(job_id, saved_at + 3, 150)
        assert server.call("POST", f"/nodes/{first}/resume")[0] == 200
        apart.lose(sorted(apart.places(job_id))[0])
        apart.hurry.touch()
        server.until_state(job_id, "SUCCEEDED", 120)
        job = server.job(job_id)
        drained, lost, _ = job["attempt_list"]
        assert drained["reason"] == "POLICY:DRAINED"
        assert lost["reason"].startswith("INFRA:")
        assert job["restarts"] == 0
    finally:
        server.close()
    assert not list((server.data / "checkpoints").rglob("manifest.json"))
    (apart.folder / "quiet").mkdir()
    quiet = run_alone(apart.folder / "quiet", apart.ranks).split()
    assert (apart.home / "result").read_text().split() == quiet
    assert float.hex(job["last_values"]["loss"]) == quiet[1]


STORED = {"store": SERVER_STORE, "checkpoint_dir": "/srv/walras/jobs/1"}


async def saved_by(server: AgentStand) -> Manifest:
    """What an attempt commits that is stopped while it trains."""
    await server.start(LOOP, **STORED)
    await server.report("progress")
    await server.send(a_stop())
    await server.report("ended", 40)
    manifest: Manifest = server.of_type("committed")[0].manifest
    return manifest


async def test_a_commit_counts_once_the_store_has_it_and_an_agent_that_was_killed_takes_it_up(
    server: AgentStand,
) -> None:
    """kill -9 of the agent while the newest state leaves: the next one sends it, and then tells the end."""
    agent = server.begin()
    await server.start(LOOP, **STORED)
    await server.report("progress")
    server.gives_content.clear()
    await server.send(a_stop(grace_s=10.0))
    await server.until(lambda: server.offered_content, 40, "the upload has begun")
    agent.kill()
    server.offered_content.clear()
    agent.start()
    await server.until(lambda: server.offered_content, 40, "the upload has begun again")
    assert not server.of_type("committed")
    assert not server.of_type("ended")
    server.gives_content.set()
    await server.report("ended", 40)
    (commit,) = server.of_type("committed")
    assert commit.manifest.path.startswith("/srv/walras/jobs/1/attempt-0001/step-")
    assert commit.manifest.content in server.content
    assert server.reports.index(commit) < server.reports.index(server.of_type("ended")[0])


async def test_a_checkpoint_that_is_here_is_not_fetched_and_a_damaged_copy_is(server: AgentStand) -> None:
    agent = server.begin()
    resume = await saved_by(server)
    for attempt, damage in ((2, False), (3, True)):
        server.asked_content.clear()
        if damage:
            (copy,) = local_folder(agent.state, "/srv/walras/jobs/1").glob("attempt-0001/*/counter.json")
            copy.write_text("{}")
        await server.start(LOOP, attempt=attempt, resume=resume, **STORED)
        said = f"resumed at {resume.step:.0f} {resume.step:.0f}\n".encode()
        await server.until(lambda n=attempt, line=said: line in server.logs[1, n, 0], 40, "it goes on")
        assert bool(server.asked_content) is damage
        await server.send(a_stop(attempt))
        await server.until(lambda n=attempt: len(server.of_type("ended")) == n, 40, "it ends")


@pytest.mark.parametrize("what", ["gone", "lying"])
async def test_a_checkpoint_that_the_store_does_not_have_is_named_in_the_refusal(server: AgentStand, what: str) -> None:
    """The server falls back by it; the machine is not at fault."""
    agent = server.begin()
    resume = await saved_by(server)
    shutil.rmtree(local_folder(agent.state, "/srv/walras/jobs/1"))
    if what == "gone":
        del server.content[resume.content]
    else:
        name = next(name for name, content in server.content.items() if b'"n"' in content)
        server.content[name] = b"{}"
    await server.start(LOOP, attempt=2, resume=resume, **STORED)
    assert (await server.report("refused", 40)).lost == resume.digest


async def test_a_machine_without_the_shared_disk_refuses_and_fails_no_job(server: AgentStand, tmp_path: Path) -> None:
    server.begin()
    resume = {"step": 5, "path": str(tmp_path / "elsewhere/attempt-0001/step-0000000005"), "digest": "0" * 64}
    await server.start(LOOP, attempt=2, resume=resume)
    refusal = await server.report("refused", 40)
    assert "is not on this machine" in refusal.detail
    assert refusal.lost == ""


def test_a_shared_folder_that_is_not_shared_makes_a_machine_private(serve: Serve, tmp_path: Path) -> None:
    """It has a folder of that name, and can write there; the server's secret is not in it."""
    if not can_hide():
        pytest.skip("no mount namespaces here")
    disk = tmp_path / "disk"
    disk.mkdir()
    server = serve([A], FIFO, checkpoints=f"file://{disk}")
    server.start_agent("n1")
    server.start_agent("n2", unseen=[disk])
    wait_for(lambda: server.node("n2")["private"], 30, "n2 is private")  # type: ignore[index]
    assert "is not here what it is for the server" in server.node("n2")["detail"]  # type: ignore[index]
    wait_for(lambda: list(disk.glob("proofs/*/*-n1")), 30, "n1 has answered")
    assert not server.node("n1")["private"]  # type: ignore[index]


async def test_a_torn_checkpoint_ends_with_a_code_of_its_own(server: AgentStand, tmp_path: Path) -> None:
    server.begin()
    torn = tmp_path / "checkpoints/attempt-0001/step-0000000005"
    torn.mkdir(parents=True)
    resume = {"step": 5, "path": str(torn), "digest": "0" * 64}
    await server.start(LOOP, attempt=2, resume=resume)
    ended = await server.report("ended", 40)
    assert ended.exit_code == 86
    assert b"cannot resume" in server.logs[1, 2, 0]
