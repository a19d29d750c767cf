"""A stand-in for the server's side, and agents that talk to it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_commands import Begin
from tests.support.agent_process import AgentProcess
from tests.support.fake_agent_server import FakeAgentServer


@pytest.fixture
async def server() -> AsyncIterator[FakeAgentServer]:
    async with FakeAgentServer() as server:
        yield server


@pytest.fixture
async def begin(server: FakeAgentServer, tmp_path: Path) -> AsyncIterator[Begin]:
    agents: list[AgentProcess] = []

    def begin_agent(**changes: Any) -> AgentProcess:
        agents.append(AgentProcess(tmp_path, server.url, server.join_token, **changes))
        return agents[-1].start()

    yield begin_agent
    for agent in agents:
        agent.close()
