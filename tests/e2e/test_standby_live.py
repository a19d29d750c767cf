"""Two servers over one PostgreSQL: whoever leads is killed or stopped, and nobody's job notices."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import running_postgres
from tests.support.real_server import A, wait_for
from tests.support.standby_pair import StandbyPair
from tests.support.stores import shared_postgres

pytestmark = pytest.mark.slow

#: Every start of the script is a line of its own in a file.
SCRIPT = "echo $WALRAS_JOB_ID >> {starts}; sleep {seconds}"


#: In each server: from this signal on its event loop takes no turn, while its threads go on.
HANG = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandbyPair]:
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "sitecustomize.py").write_text(HANG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hang"))
    pair = StandbyPair(tmp_path, shared_postgres().new_database(), [A], lease="60s")
    try:
        yield pair.start()
    finally:
        pair.close()


def starts(folder: Path) -> list[str]:
    """The job of every start of a script, in order."""
    path = folder / "starts"
    return path.read_text().split() if path.exists() else []


def submit(pair: StandbyPair, key: str, seconds: float = 0.3) -> int:
    """A job, submitted until somebody acknowledges it; the key makes it one however often it was sent."""
    spec = {"run": SCRIPT.format(starts=pair.folder / "starts", seconds=seconds), "workdir": str(pair.folder),
            "resources": {"accelerators": "a:1"}}  # fmt: skip
    until = time.monotonic() + 300.0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            status, answer = pair.call("POST", "/jobs", spec, key)
            if status in (200, 201):
                return int(answer["id"])
        time.sleep(0.1)
    raise AssertionError(f"nobody took {key}")


def test_jobs_run_once_while_leaders_are_killed(pair: StandbyPair) -> None:
    """Three kills under submits: the other takes over before a lease ends; none of the jobs is lost or runs twice."""
    for name in ("n1", "n2"):
        pair.start_agent(name, servers=pair.urls)
    long = submit(pair, "long", seconds=60.0)
    pair.until_running(long)
    taken = [long]
    for kill in range(3):
        taken += [submit(pair, f"{kill}-{each}") for each in range(4)]
        killed = pair.kill_leader()
        pair.until_one_leads(other_than=killed)
        pair.restart(killed)
        taken += [submit(pair, f"{kill}-after")]
    for job in taken:
        pair.until_state(job, "SUCCEEDED", 90)
    assert sorted(map(int, starts(pair.folder))) == sorted(taken), "each script started once"
    assert len(pair.job(long)["attempt_list"]) == 1, "its ranks were not disturbed"


def test_a_leader_that_hangs_is_replaced_and_writes_nothing_more(pair: StandbyPair) -> None:
    """It is stopped past its lease; the other leads. Going on, it commits nothing and ends with the code for that."""
    pair.start_agent("n1", servers=pair.urls)
    first = submit(pair, "first")
    pair.until_state(first, "SUCCEEDED")
    old = pair.leader
    assert old is not None
    process = pair.process_of(old)
    process.send_signal(signal.SIGSTOP)
    pair.until_one_leads(other_than=old)
    second = submit(pair, "second")
    pair.until_state(second, "SUCCEEDED")
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == 75, pair.log_of(old)[-2000:]
    assert pair.leader == 1 - old
    assert (pair.state(first), pair.state(second)) == ("SUCCEEDED", "SUCCEEDED")
    assert starts(pair.folder) == [str(first), str(second)]


def test_a_leader_whose_loop_hangs_gives_up_and_shows_where(pair: StandbyPair) -> None:
    """Its threads go on, so its renewals prove nothing: the other leads, and the stacks say what hung."""
    pair.start_agent("n1", servers=pair.urls)
    long = submit(pair, "long", seconds=30.0)
    pair.until_running(long)
    old = pair.leader
    assert old is not None
    pair.process_of(old).send_signal(signal.SIGUSR1)
    pair.until_one_leads(other_than=old)
    assert pair.process_of(old).wait(300) == 75
    log = pair.log_of(old)
    assert "sitecustomize.py" in log[log.index("no turn of the loop") :], log[-4000:]
    pair.until_state(long, "SUCCEEDED", 90)
    assert starts(pair.folder) == [str(long)]


def test_the_command_line_asks_the_next_address(pair: StandbyPair) -> None:
    """Of two addresses with a comma between them the one that leads is found."""
    pair.told("nodes", env={"WALRAS_SERVER": ",".join(reversed(pair.urls))})


def test_a_database_that_restarts_ends_the_leader_and_loses_nothing(tmp_path: Path) -> None:
    """A server that is started again, as systemd does, stands by until the database answers and goes on."""
    with running_postgres() as database:
        pair = StandbyPair(tmp_path, database.new_database(), [A], lease="60s")
        try:
            pair.start()
            done = submit(pair, "before")
            database.stop()
            for which in (0, 1):
                leads = pair.leader == which
                if leads:
                    assert pair.process_of(which).wait(300) == 75
            database.start()
            wait_for(lambda: pair.leader is not None, 60, "the one that stood by leads")
            assert pair.job(done)["id"] == done
        finally:
            pair.close()
