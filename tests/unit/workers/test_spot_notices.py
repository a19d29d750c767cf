"""Notices that a machine ends: of a cloud, and of an allocation of Slurm."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.attempts import ROOT, wait_for
from tests.support.metadata_service import Metadata, metadata_service
from workers.agent.machine_notices import SpotNoticeWatcher, read_notice
from workers.pilot import parse_seconds_left, seconds_left


@pytest.fixture
async def metadata() -> AsyncIterator[tuple[Metadata, SpotNoticeWatcher]]:
    async with metadata_service() as stub, aiohttp.ClientSession() as session:
        yield stub, SpotNoticeWatcher(session, stub.url)


async def test_nothing_to_say_changes_nothing(metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path) -> None:
    """One session serves every look; the service forgets sessions, and the notice is found all the same."""
    stub, notices = metadata
    for _ in range(3):
        await notices.look(tmp_path, pytest.fail)
    assert (stub.tokens, read_notice(tmp_path)) == (1, None)
    stub.tokens += 1
    stub.take_away(60)
    await notices.look(tmp_path, pytest.fail)
    assert read_notice(tmp_path) is not None


@pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
async def test_a_notice_becomes_the_notice_file(
    metadata: tuple[Metadata, SpotNoticeWatcher], tmp_path: Path, what: str
) -> None:
    """With the seconds that are left, and written once however often it is read."""
    stub, notices = metadata
    stub.take_away(120, what)
    await notices.look(tmp_path, pytest.fail)
    first = read_notice(tmp_path)
    assert 117 < first.gone_in_s <= 120
    await notices.look(tmp_path, pytest.fail)
    again = read_notice(tmp_path)
    assert again.digest == first.digest


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-inf", "1e400", "1796000000"])
def test_a_notice_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    """It neither ends the agent nor lets the machine end at once: an instant is no number of seconds from now."""
    (tmp_path / "notice").write_text(text)
    assert read_notice(tmp_path) is None


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


#: The pilot with short pauses; the rest is as it is.
_RUN = "import sys, workers.pilot as p; p._TELL_S = 0.2; p._LOOK_EVERY_S = 0.05; sys.exit(p.run_pilot(sys.argv[1:]))"
_END = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_800_000_040))


@pytest.mark.parametrize(
    ("shown", "left_s"),
    [
        (f"JobId=3 JobState=RUNNING Reason=None EndTime={_END} Deadline=N/A", 40.0),
        (f"JobId=3 JobState=COMPLETING EndTime={_END} Deadline=N/A", 20.0),
        ("JobId=3 JobState=RUNNING EndTime=Unknown Deadline=N/A", 60.0),
        ("JobId=3 JobState=RUNNING EndTime=9999-99-99T99:99:99 Deadline=N/A", 60.0),
        ("JobState=RUNNING EndTime=2999-01-01T00:00:00 ", 120.0),
        ("slurm_load_jobs error: Invalid job id specified", 20.0),
        ("", 20.0),
    ],
)
def test_what_slurm_shows_says_how_long_the_allocation_lasts(shown: str, left_s: float) -> None:
    """Until the limit if it runs; if it is being ended, what Slurm grants; what makes no sense is not believed."""
    assert parse_seconds_left(shown, 60.0, 1_800_000_000.0) == pytest.approx(left_s)


def test_without_slurm_the_stated_notice_counts(tmp_path: Path) -> None:
    """No command, or one that fails."""
    assert seconds_left(45.0, {"SLURM_JOB_ID": "7", "PATH": str(tmp_path)}, 0.0) == 45.0
    assert seconds_left(45.0, {"SLURM_JOB_ID": "../7", "PATH": os.environ["PATH"]}, 0.0) == 45.0


def start_pilot(state: Path, agent: str, before: str = "") -> "subprocess.Popen[bytes]":
    state.mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", before + _RUN, str(state), "30", "--", "/bin/sh", "-c", agent]
    return subprocess.Popen(command, env=environment)


def test_a_signal_becomes_a_notice_and_the_pilot_ends_once_nothing_runs(tmp_path: Path) -> None:
    """With the seconds left; a detached process keeps the allocation, then agent, folder and pilot go."""
    state = tmp_path / "state"
    pilot = start_pilot(state, f"setsid sleep 300 & echo $! >{tmp_path}/job; sleep 300 & echo $! >{tmp_path}/own; "
                               f"cp {state}/../job {state}/started; exec sleep 299")  # fmt: skip
    try:
        wait_for((state / "started").exists, 10, "the agent runs")
        own, job = (psutil.Process(int((tmp_path / name).read_text())) for name in ("own", "job"))
        own.kill()
        pilot.send_signal(signal.SIGTERM)
        wait_for((state / "notice").exists, 10, "the notice")
        assert 0 < float((state / "notice").read_text()) <= 30.0
        time.sleep(0.6)
        assert pilot.poll() is None, "something runs there"
        job.kill()
        assert pilot.wait(10) == 0
        assert not state.exists()
    finally:
        pilot.kill()
        pilot.wait()


def test_an_agent_that_dies_is_started_again_and_nothing_outlives_the_pilot(tmp_path: Path) -> None:
    """Until it says that this does not help; what has left its session and its parent dies with the allocation."""
    state = tmp_path / "state"
    agent = (
        f"echo x >>{tmp_path}/starts; setsid sh -c 'sleep 300 & echo $! >>{tmp_path}/orphans'; "
        f"[ $(wc -l <{tmp_path}/starts) -ge 2 ] && exit 78; kill -9 $$"
    )
    pilot = start_pilot(state, agent)
    try:
        assert pilot.wait(15) == 0
    finally:
        pilot.kill()
        pilot.wait()
    assert (tmp_path / "starts").read_text() == "x\nx\n"
    orphans = [int(line) for line in (tmp_path / "orphans").read_text().split()]
    assert len(orphans) == 2
    assert not any(psutil.pid_exists(pid) for pid in orphans)


@pytest.mark.parametrize(("stays_up_s", "starts"), [(0.0, 9), (600.0, 6)])
def test_only_ends_soon_after_a_start_count_against_an_agent(tmp_path: Path, stays_up_s: float, starts: int) -> None:
    """An allocation of months may see any number of them."""
    agent = f"echo x >>{tmp_path}/starts; [ $(wc -l <{tmp_path}/starts) -ge 9 ] && exit 78; setsid sleep 300 & exit 0"
    before = f"import walras.contract as c; c.STAYS_UP_S = {stays_up_s}; "
    pilot = start_pilot(tmp_path / "state", agent, before)
    try:
        assert pilot.wait(30) == 0
    finally:
        pilot.kill()
        pilot.wait()
    assert (tmp_path / "starts").read_text() == "x\n" * starts
