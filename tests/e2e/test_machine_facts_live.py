"""Real agents say what their machines have: jobs start where they can be prepared, and where their data are."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import FIFO, A, RealServer, Serve

pytestmark = pytest.mark.slow

#: Takes the words of podman and runs the command behind the image's name on the machine itself.
STAND_IN = """#!/bin/sh
[ "$1" = run ] || exit 0
while [ "$1" != demo:1 ]; do shift; done
shift
exec "$@"
"""
PROGRAMS = ("sh", "bash", "env", "cat", "test")


def folder_of_programs(folder: Path, *, podman: bool) -> str:
    """A PATH with few programs, so that no container engine of this machine is found."""
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    if podman:
        (folder / "podman").write_text(STAND_IN)
        (folder / "podman").chmod(0o755)
    return os.fspath(folder)


def machine_of(server: RealServer, job: int) -> str:
    (attempt,) = server.job(job)["attempt_list"]
    (machine,) = attempt["placement"]
    return str(machine).split(":")[0]


def test_jobs_start_where_their_tools_and_their_data_are(serve: Serve, tmp_path: Path) -> None:
    """Of two machines the first is taken, unless the job needs what only the second has, or has its data there."""
    server = serve([{**A, "machines": 2}], FIFO)
    bare, able = (folder_of_programs(tmp_path / f"bin-{podman}", podman=podman) for podman in (False, True))
    server.start_agent("n1", path=bare)
    spec: dict[str, Any] = {"workdir": None, "resources": {"accelerators": "a"}}
    status, answer = server.call("POST", "/jobs", {**spec, "run": ["true"], "image": "demo:1"})
    assert (status, answer["field"]) == (400, "image"), answer
    assert "podman" in answer["fix"]
    server.start_agent("n2", path=able)
    plain = server.submit(**spec, run=[sys.executable, "-c", "print('plain')"])
    server.until_state(plain, "SUCCEEDED", 60)
    assert machine_of(server, plain) == "n1"
    (tmp_path / "data.txt").write_text("the data")
    given = {**spec, "inputs": {"d": f"file:{tmp_path}/data.txt"}}
    read = "import os, pathlib; print(pathlib.Path(os.environ['WALRAS_INPUTS'], 'd').read_text())"
    first = server.submit(**given, image="demo:1", run=[sys.executable, "-c", read])
    server.until_state(first, "SUCCEEDED", 60)
    assert (machine_of(server, first), "the data" in server.log(first, 1)) == ("n2", True)
    second = server.submit(**given, run=[sys.executable, "-c", read])
    server.until_state(second, "SUCCEEDED", 60)
    assert machine_of(server, second) == "n2"
