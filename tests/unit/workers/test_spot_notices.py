"""Notices and hints of EC2, told by a stub of its metadata service."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.metadata_service import Metadata, metadata_service
from workers.agent.machine_notices import SpotNoticeWatcher, read_notice


@pytest.fixture
async def metadata() -> AsyncIterator[tuple[Metadata, SpotNoticeWatcher]]:
    async with metadata_service() as stub, aiohttp.ClientSession() as session:
        yield stub, SpotNoticeWatcher(session, stub.url)


async def test_nothing_to_say_changes_nothing(metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path) -> None:
    """One session serves every look; without a notice there is no file."""
    stub, notices = metadata
    for _ in range(3):
        await notices.look(tmp_path, pytest.fail)
    assert (stub.tokens, read_notice(tmp_path)) == (1, None)


@pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
async def test_a_notice_becomes_the_notice_file(
    metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path, what: str
) -> None:
    """With the seconds that are left, and written once however often it is read."""
    stub, notices = metadata
    stub.take_away(120, what)
    await notices.look(tmp_path, pytest.fail)
    first = read_notice(tmp_path)
    assert first is not None
    assert 117 < first.gone_in_s <= 120
    await notices.look(tmp_path, pytest.fail)
    again = read_notice(tmp_path)
    assert again is not None
    assert again.digest == first.digest


async def test_a_hint_is_handed_on_with_its_instant(
    metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path
) -> None:
    """A hint is no notice; its words tell it from the next one."""
    stub, notices = metadata
    stub.recommend()
    hints: list[str] = []
    await notices.look(tmp_path, hints.append)
    assert len(hints) == 1
    assert "2026-05-01T08:22:00" in hints[0]
    assert read_notice(tmp_path) is None


async def test_a_session_that_ran_out_is_made_anew(
    metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path
) -> None:
    """The service forgets sessions; the notice is found all the same."""
    stub, notices = metadata
    await notices.look(tmp_path, pytest.fail)
    stub.tokens += 1
    stub.take_away(60)
    await notices.look(tmp_path, pytest.fail)
    assert read_notice(tmp_path) is not None


@pytest.mark.parametrize(
    "told", ["", "not json", "[]", "{}", '{"action": "dance", "time": "2026-05-01T08:22:00Z"}', '{"action": "stop"}',
             '{"action": "stop", "time": "soon"}', '{"action": ["stop"], "time": 3}', "x" * 10_000],
)  # fmt: skip
async def test_what_is_no_notice_is_left_alone(
    metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path, told: str
) -> None:
    """Whatever answers at that address, the agent goes on."""
    stub, notices = metadata
    stub.answers["spot/instance-action"] = told
    await notices.look(tmp_path, pytest.fail)
    assert read_notice(tmp_path) is None


async def test_where_nobody_answers_it_is_asked_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No metadata service costs a few failed calls an hour."""
    pauses: list[float] = []

    class Enough(Exception):
        pass

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise Enough

    monkeypatch.setattr("workers.agent.machine_notices.asyncio.sleep", pause)
    async with aiohttp.ClientSession() as session:
        nobody = SpotNoticeWatcher(session, "http://127.0.0.1:9")
        with pytest.raises(Enough):
            await nobody.watch(tmp_path, pytest.fail)
    assert pauses == [10, 20, 40, 60, 60, 60]
