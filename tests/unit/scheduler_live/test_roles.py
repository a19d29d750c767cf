"""Jobs with roles in a server: what each machine is told to start, and what people are told."""

import json
from pathlib import Path

import pytest

from tests.support.live_world import FIFO, FakeAgent, world
from walras.errors import JobSpecError
from walras.spec.roles import ROLES_COMMAND

POOLS = {"pools": [{"shape": f"{name}x2", "accelerator": name, "accelerators": 4, "cpus": 8, "memory": "16GiB"}
                   for name in ("a", "b")]}  # fmt: skip
WALRAS = {"policy": {"name": "walras"}, "rules": FIFO["rules"] | {"resolve_min_s": 0.0}}
SHELL = ["bash", "-euo", "pipefail", "-c"]
JOB = {
    "run": list(ROLES_COMMAND), "name": "rl-{seed}", "matrix": {"seed": "7-7"}, "array_index": 0,
    "roles": {
        "trainer": {"run": ["train", "{seed}"], "accelerators": "b:1"},
        "rollout": {"run": "roll", "accelerators": "a:2", "count": 2, "after": "trainer", "restarts": 4},
        "head": {"run": "head"},
    },
}  # fmt: skip


async def test_each_machine_starts_its_processes_and_the_leading_role_is_on_the_first(tmp_path: Path) -> None:
    """Whichever pool comes first; with the sweep's values in the commands, once all machines are prepared."""
    async with world(tmp_path, cluster=POOLS, policy=WALRAS) as w:
        agents = {name: FakeAgent(w, name, shape=f"{name}x2", accelerator=name, accelerators=4) for name in ("a", "b")}
        for agent in agents.values():
            await agent.names_itself().register()
        job_id = await w.submit(JOB)
        await w.advance(1.0)
        for name, port in (("a", 0), ("b", 4321)):
            await agents[name].beat()
            prepared = {"type": "prepared", "job_id": job_id, "attempt": 1, "address": f"10.0.0.{name}", "port": port}
            await agents[name].beat(prepared)
        starts = {name: (await agent.start_all())[0] for name, agent in agents.items()}
        assert {name: (start.node_rank, start.first_rank, start.is_launcher) for name, start in starts.items()} == {
            "b": (0, 0, True), "a": (1, 1, True),
        }  # fmt: skip
        told = {name: json.loads(start.env["WALRAS_ROLES"]) for name, start in starts.items()}
        assert told["b"]["here"] == [["trainer", 0, 0, 1], ["head", 0, 1, 0]]
        assert told["a"]["here"] == [["rollout", 0, 0, 2], ["rollout", 1, 2, 2]]
        assert told["a"]["roles"] == told["b"]["roles"]
        assert list(told["a"]["roles"].items())[:2] == [
            ("trainer", {"argv": ["train", "7"], "after": [], "restarts": 0, "count": 1}),
            ("rollout", {"argv": [*SHELL, "roll"], "after": ["trainer"], "restarts": 4, "count": 2}),
        ]  # fmt: skip
        assert w.state(job_id) == "RUNNING"
        row = w.server.store.job(job_id)
        assert row is not None
        assert w.server.views.why(row).startswith(
            "has trainer 0, head 0 on b (log of rank 0), rollout 0, rollout 1 on a"
        )
        await agents["b"].train(job_id, 1, steps_per_s=0.5)
        kind, held = w.live_state.jobs[job_id].kind, {"a": 4, "b": 1}
        assert w.server.core.ledger.table.measured_mix(kind, held) == 0.5
        await agents["a"].end(job_id, exit_code=3, failed_rank=1)
        await agents["b"].end(job_id, exit_code=85)
        assert w.state(job_id) == "FAILED"
    async with world(tmp_path, cluster=POOLS, policy=WALRAS) as w:
        table = w.server.core.ledger.table
        assert table.measured_mix(kind, held) == 0.5, "a restarted server knows it"
        assert table.measured(kind, "b", 5) is None, "of five of the first machine's type it says nothing"


async def test_they_may_be_submitted_before_the_first_machine_joins(tmp_path: Path) -> None:
    """As other jobs, and start once their machines have joined; a type that no pool has is refused all the same."""
    async with world(tmp_path, cluster=POOLS, policy=WALRAS) as w:
        job_id = await w.submit(JOB)
        with pytest.raises(JobSpecError):
            await w.submit({**JOB, "roles": {"trainer": {"run": "train", "accelerators": "c:1"}}})
        agents = [FakeAgent(w, name, shape=f"{name}x2", accelerator=name, accelerators=4) for name in ("a", "b")]
        for agent in agents:
            await agent.names_itself().register()
        await w.advance(1.0)
        for agent in agents:
            await agent.beat()
        assert [[command.job_id for command in agent.commands] for agent in agents] == [[job_id], [job_id]]


async def test_a_policy_that_does_not_plan_refuses_them(tmp_path: Path) -> None:
    """With what would help, before anything waits for ever."""
    async with world(tmp_path, cluster=POOLS) as w:
        for name in ("a", "b"):
            await FakeAgent(w, name, shape=f"{name}x2", accelerator=name, accelerators=4).register()
        with pytest.raises(JobSpecError) as refused:
            await w.submit(JOB)
        assert (refused.value.field, "such as `walras`" in refused.value.fix) == ("roles", True)
