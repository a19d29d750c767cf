"""The server of most tests here: of the usual cluster and policy, with or without its HTTP face."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, World, world


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as found:
        yield found


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        yield found


@pytest.fixture
async def agent(request: pytest.FixtureRequest) -> FakeAgent:
    """The agent of a machine `n1`, of the test's `face` or `w`, which stands before it."""
    w = request.getfixturevalue("face").world if "face" in request.fixturenames else request.getfixturevalue("w")
    return await FakeAgent(w, "n1").register()


@pytest.fixture(scope="module")
def stand_in() -> Iterator[str]:
    """Where a stand-in of AWS answers."""
    from tests.support.provider_kit import stand_in_of_aws

    with stand_in_of_aws() as url:
        yield url
