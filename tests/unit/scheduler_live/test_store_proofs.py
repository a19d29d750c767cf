"""Machines that do not reach the store of checkpoints are private: people, the core and the next server know it."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from tests.support.live_world import FakeAgent, World, world
from tests.support.waiting import until
from walras.store_proof import StoreProof, answer_challenge
from walras.wire import HeartbeatAnswer

A = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB"}


async def asked(w: World, agent: FakeAgent) -> HeartbeatAnswer:
    """The first answer with a challenge."""
    for _ in range(500):
        if (answer := await agent.beat()).challenge is not None:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError("it is not asked")


async def say(w: World, agent: FakeAgent, proof: StoreProof) -> HeartbeatAnswer:
    """A heartbeat with the proof, and the next one once the server has looked."""
    agent.identity["proof"] = proof.model_dump()
    await agent.beat()

    def has_looked() -> bool:
        return not any("StoreProofs." in str(task.get_coro()) for task in asyncio.all_tasks())

    await until(has_looked, 20.0, "the server has looked")
    await w.quiet()
    return await agent.beat()


def shown(w: World) -> tuple[bool, str]:
    (node,) = w.server.views.nodes()
    return node.private, node.detail


def core_knows(w: World) -> bool:
    machine = w.server.core.ledger.fleet.machine("n1")  # type: ignore[arg-type]
    assert machine is not None
    return machine.is_private


def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {"pools": [A], "checkpoints": f"file://{tmp_path}/disk"}


async def test_a_machine_that_shares_the_disk_is_asked_until_it_has_shown_it(tmp_path: Path) -> None:
    async with world(tmp_path / "data", cluster=on_disk(tmp_path)) as w:
        agent = await FakeAgent(w, "n1").register()
        challenge = (await asked(w, agent)).challenge
        assert challenge is not None
        answer = await say(w, agent, answer_challenge(challenge, "n1"))
        assert answer.challenge is None
        assert shown(w) == (False, "")


async def test_a_machine_that_does_not_is_private_until_the_disk_is_mounted(tmp_path: Path) -> None:
    """The next server knows it before the machine has said anything."""
    cluster = on_disk(tmp_path)
    async with world(tmp_path / "data", cluster=cluster) as w:
        agent = await FakeAgent(w, "n1").register()
        challenge = (await asked(w, agent)).challenge
        assert challenge is not None
        answer = await say(w, agent, StoreProof(nonce=challenge.nonce, problem="no disk here"))
        assert answer.challenge == challenge
        assert shown(w) == (True, "private: no disk here")
        assert core_knows(w)
    async with world(tmp_path / "data", cluster=cluster) as w:
        assert core_knows(w)
        agent.world = w
        stale = await say(w, agent, StoreProof(nonce=challenge.nonce))
        assert shown(w)[0], "an answer to another server's question says nothing"
        assert stale.challenge != challenge
        challenge = (await asked(w, agent)).challenge
        assert challenge is not None
        await say(w, agent, answer_challenge(challenge, "n1"))
        assert shown(w) == (False, "")
        assert not core_knows(w)


async def test_what_a_machine_claims_is_looked_at(tmp_path: Path) -> None:
    """It wrote its answer to a disk of its own: nothing arrives at the server's."""
    async with world(tmp_path / "data", cluster=on_disk(tmp_path)) as w:
        agent = await FakeAgent(w, "n1").register()
        challenge = (await asked(w, agent)).challenge
        assert challenge is not None
        proof = answer_challenge(challenge, "n1")
        shutil.rmtree(tmp_path / "disk" / "proofs")
        await say(w, agent, proof)
        assert shown(w)[0]
        assert "does not arrive" in shown(w)[1]


async def test_an_older_agent_is_taken_to_share_and_with_the_server_nobody_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path / "data", cluster=on_disk(tmp_path)) as w:
        agent = await FakeAgent(w, "n1").register()
        await asked(w, agent)
        assert shown(w) == (False, "")
    async with world(tmp_path / "other") as w:
        agent = await FakeAgent(w, "n1").register()
        await agent.beat()
        await w.quiet()
        assert (await agent.beat()).challenge is None
