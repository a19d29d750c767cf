"""A job's data, Python environment and setup are made where it lands, once; what fails is named, once."""

import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, A, RealServer
from tests.support.waiting import stays

pytestmark = pytest.mark.slow

TWO = {**A, "shape": "ax2", "accelerators": 2}
SHOW = """
import os, pathlib, sys, tiny, torch
data = pathlib.Path(os.environ["WALRAS_INPUTS"]) / "data"
made = pathlib.Path(os.environ["WALRAS_SETUP"]) / "made"
print("sees", data.read_text(), made.read_text().strip(), tiny.NAME, bool(torch.__version__), sys.prefix, flush=True)
"""


def wheel(folder: Path) -> Path:
    """A distribution of one module, made by hand: nothing is asked of any index."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "NAME = 'installed'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


def test_two_ranks_and_the_next_job_share_what_was_made_once(tmp_path: Path) -> None:
    """Data, environment (over the machine's torch) and setup are there for both ranks; a second job makes nothing."""
    (tmp_path / "data.txt").write_text("the data")
    spec = {
        "run": ["python", "-c", SHOW],
        "workdir": None,
        "inputs": {"data": f"file:{tmp_path}/data.txt"},
        "python": {"packages": [str(wheel(tmp_path))]},
        "setup": f'echo ran >> {tmp_path}/setups; echo made > "$WALRAS_SETUP/made"',
        "resources": {"accelerators": "a:2"},
    }
    server = RealServer(tmp_path, [TWO], FIFO).start()
    try:
        server.start_agent(pool=TWO)
        prefixes = set()
        for _ in range(2):
            job = server.submit(**spec)
            server.until_state(job, "SUCCEEDED", 90)
            for rank in (0, 1):
                told = next(line for line in server.log(job, 1, rank).splitlines() if line.startswith("sees"))
                assert told.startswith("sees the data made installed True ")
                prefixes.add(told.split()[-1])
        assert (tmp_path / "setups").read_text() == "ran\n"
        assert len(prefixes) == 1
        assert "/prepared/python/" in prefixes.pop()
    finally:
        server.close()


def test_a_setup_that_fails_fails_the_job_once_by_name(tmp_path: Path) -> None:
    """Not on the second machine, and not as often as `retry` would allow."""
    server = RealServer(tmp_path, [A], FIFO).start()
    try:
        for name in ("n1", "n2"):
            server.start_agent(name)
        setup = f"echo ran >> {tmp_path}/setups; echo no such compiler >&2; exit 7"
        spec = {"run": [sys.executable, "-c", "print('never')"], "workdir": None, "setup": setup}
        job = server.submit(**spec, resources={"accelerators": "a"}, retry={"max_restarts": 5})
        server.until_state(job, "FAILED", 60)
        stays(lambda: server.job(job)["attempts"] == 1, 2.0, "it is not tried again")
        found = server.job(job)
        assert (tmp_path / "setups").read_text() == "ran\n"
        assert "setup" in found["detail"]
        log = server.log(job, 1)
        assert "no such compiler" in log
        assert "[walras] not prepared: setup ended with code 7" in log
        assert "never" not in log
    finally:
        server.close()
