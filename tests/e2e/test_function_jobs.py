"""Python functions as jobs of a real server and agent: values, exceptions, maps, and what nobody else unpickles."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import RealServer, server_and_cpu_machine

pytestmark = pytest.mark.slow
#: A script as users have it: its functions are of `__main__`, and `helper` lies beside it.
SCRIPT = r"""
import os
import time

import walras
from walras.remote_session import Channel, SessionAsked, parse_note


class Wrong(Exception):
    def __init__(self, code):
        super().__init__(f"wrong by {code}")
        self.code = code


def add(a, b=1):
    import helper

    print("adding", a, b)
    return helper.double(a) + b, os.getpid()


def fail(code):
    raise Wrong(code)


def leave():
    os._exit(7)


def square(number):
    return number * number


def note(place):
    with open(place, "a") as file:
        file.write(f"{os.getpid()}\n")
    return place


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)
    return open("here").read()


class Noted:
    # Whoever unpickles it leaves a line with the number of their process.
    def __reduce__(self):
        return note, (os.environ["NOTES"],)


def whoever(noted):
    return os.getpid()


work = {"workdir": ".", "name": "adding"}
with walras.Client() as client:
    future = walras.submit(add, 20, b=2, client=client, resources={"accelerators": "any:1"}, job=work)
    value, process = future.result(timeout=300)
    assert (value, process != os.getpid()) == (42, True), value
    assert future.done() and future.exception() is None
    assert future.job.name == "adding" and "adding 20 2" in future.logs()

    failed = walras.submit(fail, 3, client=client)
    ended = walras.submit(leave, client=client)
    noted = walras.submit(whoever, Noted(), client=client)
    mapped = walras.map_jobs(square, [1, 2, 3], client=client, at_most=2)
    error = failed.exception(timeout=300)
    assert type(error) is Wrong and error.code == 3, error
    assert "in fail" in error.__notes__[0] and "Wrong: wrong by 3" in error.__notes__[0], error.__notes__
    assert [future.result(timeout=300) for future in mapped] == [1, 4, 9]
    process = noted.result(timeout=300)
    assert open(os.environ["NOTES"]).read() == f"{process}\n" and process != os.getpid()
    running = walras.submit(wait_for, os.path.abspath("leave"), client=client)
    while running.job.state != "RUNNING":
        time.sleep(0.05)
    said = b""
    asked = SessionAsked(kind="exec", argv=["sh", "-c", "echo hi > here; cat here"])
    with client.open_session(running.job_id, asked) as session:
        while (message := session.receive()).type.name != "TEXT" or parse_note(message.data).type != "exit":
            said += message.data[1:] if message.type.name == "BINARY" and message.data[0] == Channel.MAIN else b""
    open("leave", "w").close()
    assert (said, running.result(timeout=300)) == (b"hi\n", "hi\n"), said
    print(mapped[0].job.sweep == mapped[0].job_id, len({future.job_id for future in mapped}))
    print(ended.exception(timeout=300))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    with server_and_cpu_machine(tmp_path, monkeypatch) as server:
        yield server


def test_functions_return_raise_and_are_mapped(cluster: RealServer, tmp_path: Path) -> None:
    """A value comes back, an exception as itself with its traceback, a map in order; a dead rank is named.

    An argument is unpickled once: by the rank.
    """
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("def double(number):\n    return 2 * number\n")
    environment = os.environ | {
        "WALRAS_SERVER": cluster.url,
        "WALRAS_TOKEN_FILE": str(cluster.data / "admin.token"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "NOTES": str(tmp_path / "notes"),
    }
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    first, told = done.stdout.splitlines()
    assert first == "True 3"
    assert "is FAILED (USER:EXIT_CODE" in told
    assert "its function neither returned nor raised" in told
