"""Jobs in an image, by podman as Debian has it, and by engines that fail."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_machine_facts_live import folder_of_programs
from tests.support.attempts import wait_for
from tests.support.not_here import not_here
from tests.support.real_server import FIFO, A, RealServer, Serve

pytestmark = pytest.mark.slow

IMAGE = "localhost/walras-tests:1"
#: Saves for longer than leftover processes may live; its words are not those of the shell around it.
SAVE = "trap 'echo caught; sleep 2.6; echo saved; exit 85' TERM; echo up; while :; do sleep .05; done"


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an image with a shell; skips where podman runs nothing (WALRAS_REQUIRE=podman: fails)."""
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or busybox is None:
        not_here("podman", "no podman and busybox here: `make podman` installs them")
    files = tmp_path / "files" / "bin"
    files.mkdir(parents=True)
    shutil.copy(busybox, files / "busybox")
    for name in ("sh", "sleep", "echo", "ls"):
        (files / name).symlink_to("busybox")
    # A kernel may let nobody raise a limit, and the default runtime may not know its control groups.
    (tmp_path / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    with subprocess.Popen(["tar", "-C", str(files.parent), "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["podman", "import", "--quiet", "-", IMAGE], stdin=packed.stdout, check=True)
    tried = subprocess.run(["podman", "run", "--rm", "--pid", "host", IMAGE, "sh", "-c", ":"], capture_output=True)
    if tried.returncode != 0:
        not_here("podman", f"podman runs nothing here: {tried.stderr.decode(errors='replace')}")
    return IMAGE


def _until_up(server: RealServer, job: int) -> None:
    wait_for(lambda: "up\n" in server.log(job, 1), 120, "the program is up")


def test_a_job_in_an_image_runs_saves_and_leaves_nothing(serve: Serve, podman: str) -> None:
    """Its code and its output are the program's, a stop reaches it below its shell, and what was killed is removed."""
    server = serve([{**A, "machines": 1}], FIFO)
    server.start_agent("n1", pass_env=("CONTAINERS_CONF",))
    spec = {"image": podman, "resources": {"accelerators": "a"}, "grace_period": "20s"}
    fails = server.submit(**spec, run=["sh", "-c", "echo rank $RANK; exit 3"])
    server.until_state(fails, "FAILED", 120)
    assert (server.job(fails)["reason"], server.attempt(fails)["exit_code"]) == ("USER:EXIT_CODE", 3)
    assert "rank 0\n" in server.log(fails, 1)
    saves = server.submit(**spec, run=["sh", "-c", f'sh -c "{SAVE}"; rc=$?; echo after $rc; exit $rc'])
    _until_up(server, saves)
    assert server.call("POST", f"/jobs/{saves}/hold")[0] == 200
    server.until_state(saves, "HELD", 120)
    said = [line for line in server.log(saves, 1).splitlines() if line in ("caught", "saved", "after 85")]
    assert said == ["caught", "saved", "after 85"]
    stays = server.submit(
        **{**spec, "grace_period": "1s"}, run=["sh", "-c", "trap : TERM; echo up; while :; do sleep 9; done"]
    )
    _until_up(server, stays)
    assert server.call("POST", f"/jobs/{stays}/cancel")[0] == 200
    server.until_state(stays, "CANCELLED", 120)
    last = server.submit(**spec, run=["sh", "-c", "exit 0"])
    server.until_state(last, "SUCCEEDED", 120)
    kept = ["podman", "ps", "--all", "--quiet", "--filter", "label=walras.attempt"]
    wait_for(lambda: subprocess.check_output(kept) == b"", 60, "no container is kept")


#: podman's answer where the machine has no access to its GPUs.
FAILING = '#!/bin/sh\n[ "$1" = run ] || exit 0\necho "Error: unresolvable CDI devices" >&2\nexit 125\n'


def test_an_engine_that_fails_is_the_machines_fault(serve: Serve, tmp_path: Path) -> None:
    """The job goes to another machine, and has not failed."""
    server = serve([{**A, "machines": 2}], FIFO)
    broken, able = (folder_of_programs(tmp_path / f"bin-{n}", podman=True) for n in (1, 2))
    Path(broken, "podman").write_text(FAILING)
    server.start_agent("n1", path=broken)
    job = server.submit(image="demo:1", run=["sh", "-c", "exit 0"], resources={"accelerators": "a"})
    wait_for(lambda: server.job(job)["attempts"] >= 1 and server.attempt(job)["ended_at"], 60, "it has ended on n1")
    assert server.attempt(job)["reason"] == "INFRA:START_REFUSED"
    server.start_agent("n2", path=able)
    server.until_state(job, "SUCCEEDED", 120)
    assert "unresolvable CDI devices" in server.log(job, 1)
