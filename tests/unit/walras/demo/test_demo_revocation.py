"""The revocation of the demo's spot machine: when it comes, and that it comes again until it interrupted a job."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from walras.demo.local_cluster import LocalCluster, prepare_demo
from walras.demo.workload_run import LiveView, WorkloadRun
from walras.resources.fleet import NodeView
from walras.resources.jobs import AttemptView, JobDetail
from walras.states import AttemptState, JobState, Reason

POOL = "v100x1/spot/default"
STEPS = 400.0
INSTANT = datetime(2026, 1, 1, tzinfo=UTC).isoformat()


def a_machine(name: str, state: str = "up") -> NodeView:
    return NodeView(
        node_id=name, pool=POOL, accelerator="v100", market="spot", zone="default",
        state=state, accelerators=1, free=0, jobs=[1], emulated=True,
    )  # fmt: skip


def the_job(steps: float, ended_by: Reason | None = None) -> JobDetail:
    """Job 1, whose attempt on `first` ended by this."""
    attempt = AttemptView(
        job_id=1, attempt=1, pool=POOL, accelerator="v100", accelerators=1, placement=["first:0"], reason=ended_by,
        state=AttemptState.PREEMPTED if ended_by else AttemptState.RUNNING,
        leased_at=INSTANT, started_at=INSTANT, ended_at=INSTANT if ended_by else None,
    )  # fmt: skip
    return JobDetail(
        id=1, name="table", project="vision", user="ada", kind="mlp", state=JobState.RUNNING, priority=50,
        accelerators=1, accelerator="v100", attempts=1, steps=steps, steps_total=STEPS, steps_per_s=10.0,
        submitted_at=INSTANT, first_values={}, last_values={}, accelerator_s={}, spec={}, attempt_list=[attempt],
    )  # fmt: skip


class _Admin:
    """Counts revocations, and tells of job 1 what it was given."""

    def __init__(self) -> None:
        self.revoked: list[str] = []
        self.found = the_job(0)

    async def revoke_pool(self, pool_id: str, notice_s: float) -> None:
        self.revoked.append(pool_id)

    async def job(self, job_id: int) -> JobDetail:
        return self.found


class _Incident:
    """A run of the demo in which the revocation is due, job 1 has made its first steps, and nothing else happens."""

    def __init__(self, folder: Path) -> None:
        stage = prepare_demo(folder)
        due = [incident.model_copy(update={"at": 0.0}) for incident in stage.workload.incidents]
        stage = replace(stage, workload=stage.workload.model_copy(update={"incidents": due}))
        self.admin = _Admin()
        cluster = cast(LocalCluster, SimpleNamespace(admin=self.admin))
        self.run = WorkloadRun(stage, cluster, LiveView(Console(file=StringIO()), live=False))

    async def look(self, steps: float, *machines: NodeView) -> int:
        """Has the driver look once; returns how often it has revoked the pool."""
        self.run.recording.note_jobs([the_job(steps)], self.run.at_s)
        await self.run._revoke_if_due(list(machines))
        return len(self.admin.revoked)


@pytest.mark.parametrize(("steps", "revocations"), [(10, 0), (100, 1), (370, 0)])
def test_a_machine_is_taken_while_its_job_has_something_to_lose(tmp_path: Path, steps: float, revocations: int) -> None:
    """Not before the job has trained for a while, and not when it would have ended within the notice."""

    async def check() -> None:
        incident = _Incident(tmp_path / "run")
        await incident.look(0, a_machine("first"))
        assert await incident.look(steps, a_machine("first")) == revocations

    asyncio.run(check())


@pytest.mark.parametrize(
    ("ended_by", "revocations"), [(Reason.INFRA_SPOT_RECLAIM, 1), (Reason.POLICY_PREEMPTED, 2), (None, 2)]
)
def test_a_revocation_that_interrupted_no_job_comes_again(
    tmp_path: Path, ended_by: Reason | None, revocations: int
) -> None:
    """The policy may take the job off in the moment of the notice: the next machine of the pool is taken too."""

    async def check() -> None:
        incident = _Incident(tmp_path / "run")
        await incident.look(0, a_machine("first"))
        assert await incident.look(100, a_machine("first")) == 1
        assert await incident.look(110, a_machine("first", "leaving")) == 1
        incident.admin.found = the_job(120, ended_by)
        assert await incident.look(130, a_machine("second")) == revocations

    asyncio.run(check())
