"""Servers for a test, a stand-in for the server's side, agents that talk to it; the program as people install it."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_commands import AgentStand
from tests.support.installed import installed_once
from tests.support.real_server import RealServer, Serve
from tests.support.stop_runs import Run, stopping


def serving(folder: Path) -> Iterator[Serve]:
    started: list[RealServer] = []

    def start(*pools_and_policy: Any, **cluster: Any) -> RealServer:
        started.append(RealServer(folder, *pools_and_policy, **cluster))
        return started[-1].start()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    yield from serving(tmp_path)


@pytest.fixture(scope="module")
def serve_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Servers for all tests of a file, which leave their machines free."""
    yield from serving(tmp_path_factory.mktemp("all"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from stopping(tmp_path)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AgentStand]:
    async with AgentStand(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the built wheel, one for all processes of the session."""
    own = tmp_path_factory.getbasetemp()
    return installed_once(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
