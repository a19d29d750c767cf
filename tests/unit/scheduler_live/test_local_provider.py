"""The cloud on this machine: what becomes of a machine whose agent ends by itself."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.live.providers.local_provider import AgentLauncher, LocalPool, LocalProvider
from tests.support.provider_kit import SPOT
from walras.cluster import NodeId
from walras.contract import RESTARTS_MAX, STAYS_UP_S
from walras.states import Reason


class EndedAgent:
    """An agent that has ended."""

    returncode = 1

    def poll(self) -> int:
        return 1

    def wait(self, timeout: float) -> int:
        return 1


@pytest.mark.parametrize(("ran_s", "is_given_up"), [(STAYS_UP_S, False), (1.0, True)])
async def test_an_agent_that_dies_now_and_then_for_months_is_no_reason_to_give_its_machine_up(
    tmp_path: Path, ran_s: float, is_given_up: bool
) -> None:
    """Only ends one soon after the other count."""
    now, started = [1000.0], []

    class Launcher(AgentLauncher):
        def start(self, *_: Any) -> Any:
            started.append(now[0])
            return EndedAgent()

    launcher = Launcher(("walras",), tmp_path / "join")
    provider = LocalProvider(tmp_path, {SPOT.pool_id: LocalPool(SPOT)}, launcher, lambda: now[0])
    gone: list[NodeId] = []

    async def tell_gone(node_id: NodeId, reason: Reason, token: str) -> None:
        gone.append(node_id)

    provider.attach("http://here", tell_gone)
    (machine,) = await provider.request("t", SPOT, 1)
    for _ in range(3 * RESTARTS_MAX):
        now[0] += ran_s
        await provider.look()
    assert gone == ([machine.node_id] if is_given_up else [])
    assert len(started) == 1 + (RESTARTS_MAX if is_given_up else 3 * RESTARTS_MAX)
