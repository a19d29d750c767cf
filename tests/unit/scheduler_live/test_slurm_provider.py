"""Allocations of Slurm as rented machines: what is submitted, what is concluded, and what bad weather does."""

import time
from pathlib import Path

import psutil
import pytest

from scheduler.core.events import PoolDeclared
from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers import slurm_provider
from scheduler.live.providers.provisioning import QueueWatch
from scheduler.live.providers.slurm_provider import (
    SlurmCommands,
    SlurmProvider,
    classify_slurm_error,
    parse_allocations,
)
from scheduler.providers.provider import ProviderProblem, ProviderProblemKind
from tests.support.fake_slurm import FakeSlurm
from tests.support.live_world import world
from tests.support.provider_kit import SPOT
from tests.support.waiting import until
from walras.cluster import NodeId
from walras.spec.cluster_file import SlurmSettings
from walras.states import Reason

Kind = ProviderProblemKind
TOKEN = "g4dn.xlarge/spot/us-east-1a@12.500000"


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def provider_over(slurm: FakeSlurm, call_s: float = 20.0, **settings: object) -> SlurmProvider:
    chosen = SlurmSettings.model_validate({"commands": str(slurm.bin), "server_url": "http://walras:8080", **settings})
    commands = SlurmCommands(chosen, "walras-1", {"PATH": "/usr/bin:/bin", "WALRAS_TOKEN": "secret"}, call_s)
    return SlurmProvider(chosen, [SPOT], EnrolmentTokens(b"secret"), commands)


class Gone:
    """What a provider reports to be gone."""

    def __init__(self, provider: SlurmProvider) -> None:
        self.told: list[tuple[str, Reason, str]] = []
        provider.attach("http://elsewhere", self)

    async def __call__(self, node_id: NodeId, reason: Reason, token: str) -> None:
        self.told.append((node_id.rpartition("-")[2], reason, token))


async def test_a_request_is_a_pilot_job_of_the_pool(slurm: FakeSlurm) -> None:
    """Resources and requeue are options, the site's names are settings, secrets are in the script alone."""
    provider = provider_over(
        slurm, gres={"t4": "tesla"}, partitions={SPOT.zone: "gpu"}, time="4h", options=["--account=lab"]
    )
    provider.attach("http://elsewhere", None)  # type: ignore[arg-type]
    (machine,) = await provider.request(TOKEN, SPOT, 1)
    options = slurm.options(1)
    wanted = {
        "--gres=gpu:tesla:1", "--signal=B:TERM@120", "--requeue", "--cpus-per-task=4", "--mem=16384M", "--time=240",
        "--partition=gpu", "--account=lab", "--job-name=walras-1", "--nodes=1",
    }  # fmt: skip
    assert wanted <= set(options)
    script = slurm.script(1)
    enrolment = EnrolmentTokens(b"secret").issue(TOKEN)
    assert enrolment in script
    assert not any(enrolment in word for word in options)
    assert "--server http://walras:8080" in script
    assert "secret" not in script.replace(enrolment, "")
    assert machine.node_id.startswith("slurm-")


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Kind.REFUSED),
        ("sbatch: error: invalid partition specified: gpu", Kind.REFUSED),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", Kind.QUOTA),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", Kind.THROTTLED),
        ("squeue: error: Unable to contact slurm controller (connect failure)", Kind.UNAVAILABLE),
        ("sbatch: error: slurm_receive_msg: Socket timed out on send/recv operation", Kind.UNAVAILABLE),
    ],
)
async def test_what_slurm_says_is_the_problem(slurm: FakeSlurm, told: str, kind: ProviderProblemKind) -> None:
    """Its words and its kind: the core backs off, and `explain` shows the words."""
    assert classify_slurm_error(told) is kind
    slurm.set_weather(f'case "$0" in *sbatch) echo "{told}" >&2; exit 1;; esac')
    if kind is not Kind.UNAVAILABLE:
        with pytest.raises(ProviderProblem, match=told.rpartition("error: ")[2][:40].replace("(", r"\(")) as raised:
            await provider_over(slurm).request(TOKEN, SPOT, 1)
        assert raised.value.kind is kind


async def test_commands_that_hang_flood_or_are_missing_are_problems(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is concluded, nothing waits for ever, nothing is read without end, and no process is left behind."""
    provider = provider_over(slurm, call_s=0.3)
    slurm.set_weather(f"sleep 61.25 & echo $! >{slurm.bin}/pid; wait")
    began = time.monotonic()
    with pytest.raises(ProviderProblem, match=r"squeue: no answer within 0.3 s") as hung:
        await provider.describe()
    assert hung.value.kind is Kind.UNAVAILABLE
    assert time.monotonic() - began < 30
    await until(lambda: has_ended(int((slurm.bin / "pid").read_text())), 10.0, "what it started has ended")
    monkeypatch.setattr(slurm_provider, "_MOST_BYTES", 1 << 16)
    slurm.set_weather("yes")
    with pytest.raises(ProviderProblem, match="of output"):
        await provider_over(slurm).describe()
    with pytest.raises(ProviderProblem, match="squeue: No such file"):
        await provider_over(slurm, commands="/nowhere/bin").describe()


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_rows_that_are_not_ours_are_left_out() -> None:
    """Anybody may name a job as ours are named; a machine is only what has our comment, and numbers are numbers."""
    good = f"{7:<24}{'RUNNING':<20}{'None':<80}{0:<12}{3:<16}{f'walras {SPOT.pool_id} {TOKEN}':<700}"
    hostile = ["", "x" * 5000, good.replace("walras ", "wallas "), good.replace("7", "9" * 20, 1), "\x00" * 900,
               good.replace("RUNNING", "\ud800UNNING"), good.replace("0  ", "-1 ", 1)]  # fmt: skip
    found = parse_allocations("\n".join([*hostile, good]))
    assert [each.job for each in found if each.state == "RUNNING"] == [7]
    assert {each.token for each in found} == {TOKEN}


async def test_an_allocation_that_slurm_ends_is_a_lost_machine(slurm: FakeSlurm) -> None:
    """Taken back (cancelled, preempted, out of time), or its node failed; once, and also when Slurm forgot the job."""
    provider = provider_over(slurm)
    gone = Gone(provider)
    await provider.request(TOKEN, SPOT, 3)
    for job in (1, 2, 3):
        slurm.set_job(job, "RUNNING", waited_s=40)
    await provider.look()
    slurm.set_job(1, "TIMEOUT")
    slurm.set_job(2, "NODE_FAIL")
    slurm.forget(3)
    for _ in range(2):
        await provider.look()
    reclaimed, lost = Reason.INFRA_SPOT_RECLAIM, Reason.INFRA_NODE_LOST
    assert gone.told == [("1", reclaimed, TOKEN), ("2", lost, TOKEN), ("3", reclaimed, TOKEN)]


async def test_a_requeued_pilot_is_another_machine_and_never_comes_back_for_ever(slurm: FakeSlurm) -> None:
    """Put back while it ran: lost. Before: to come, a few times. Held, or for what there never is: cancelled."""
    provider = provider_over(slurm)
    gone = Gone(provider)
    before = await provider.request(TOKEN, SPOT, 3)
    await provider.look()
    slurm.set_job(1, "RUNNING")
    slurm.set_job(2, "PENDING", restarts=2)
    await provider.look()
    assert gone.told == []
    slurm.set_job(1, "PENDING", restarts=1)
    slurm.set_job(2, "PENDING", restarts=4)
    slurm.set_job(3, "PENDING", reason="(launch failed requeued held)")
    await provider.look()
    assert [name for name, _, _ in gone.told] == ["1", "r2"]
    assert slurm.states() == ["PENDING", "CANCELLED", "CANCELLED"]
    await provider.look()
    assert [name for name, _, _ in gone.told] == ["1", "r2", "r4", "3"]
    (requeued,) = await provider.describe()
    assert requeued.node_id not in {machine.node_id for machine in before}


async def test_requeues_before_it_runs_count_and_those_of_months_do_not(slurm: FakeSlurm) -> None:
    """A pilot that Slurm puts back again and again, after it ran each time, stays; also over a restarted server."""
    provider = provider_over(slurm)
    await provider.request(TOKEN, SPOT, 2)
    for restarts in range(8):
        slurm.set_job(1, "PENDING", restarts=restarts)
        await provider.look()
        assert slurm.states()[0] == "PENDING", restarts
        slurm.set_job(1, "RUNNING", restarts=restarts)
        await provider.look()
    slurm.set_job(1, "PENDING", restarts=11)
    later = provider_over(slurm)
    await later.look()
    assert slurm.states()[0] == "PENDING"
    slurm.set_job(1, "PENDING", restarts=15)
    await later.look()
    assert slurm.states()[0] == "CANCELLED"


async def test_the_queue_is_part_of_the_time_until_a_machine_comes(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Those that wait count with what they have waited; what people stated is added once."""
    provider = provider_over(slurm)
    async with world(tmp_path / "server") as w:
        await w.emit(lambda at: PoolDeclared(at, SPOT))
        queues = QueueWatch(w.loop, provider)

        async def boot_s() -> float:
            await provider.look()
            await queues.look()
            return w.live_state.pools[SPOT.pool_id].boot_s

        await provider.request(TOKEN, SPOT, 1)
        assert await boot_s() == SPOT.boot_s
        slurm.set_job(1, "PENDING", waited_s=900)
        assert [await boot_s() for _ in range(3)] == [SPOT.boot_s + 900] * 3
        slurm.set_job(1, "RUNNING", waited_s=1500)
        assert [await boot_s() for _ in range(3)] == [SPOT.boot_s + 1500] * 3
