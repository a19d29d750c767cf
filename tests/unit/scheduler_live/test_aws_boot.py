"""The first boot of a machine of EC2, played on this one: commands that need one are stubs, files go to a folder."""

import hashlib
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.live.providers.machine_boot import boot_script, packed_wheel
from tests.support.http_face import facing
from tests.support.provider_kit import ON_DEMAND, SETTINGS, SPOT
from walras import __version__

STUBS = {
    "curl": 'case "$*" in *PUT*) echo session;; *@-*) cat >/dev/null;; *) echo i-0abc;; esac',
    "id": "exit 0",
    "chown": ":",
    "shutdown": 'echo shutdown >>"$LOG"',
    "systemctl": 'echo "systemctl $*" >>"$LOG"',
    "systemd-run": 'echo "systemd-run $*" >>"$LOG"',
    "python3": "exit ${PYTHON3:-0}",
    "runuser": 'echo "as $2" >>"$LOG"; shift 3; exec "$@"',
    "sha256sum": 'cat >>"$LOG"',
}


def boot(tmp_path: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script below a folder."""
    for folder in ("bin", "var/lib", "opt/walras/bin", "etc/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    stubs = {tmp_path / "bin" / name: body for name, body in STUBS.items()}
    stubs[tmp_path / "opt/walras/bin/pip"] = 'echo "pip $*" >>"$LOG"'
    stubs[tmp_path / "opt/walras/bin/walras"] = 'printf "%s\\n" "$@"'
    for path, body in stubs.items():
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    for root in ("/var/lib/walras", "/opt/walras", "/etc/systemd"):
        script = script.replace(root, f"{tmp_path}{root}")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    known = {"PATH": path, "LOG": str(tmp_path / "log"), **environment}
    return subprocess.run(["bash", "-c", script], env=known, capture_output=True, text=True, timeout=30)


def test_a_machine_boots_into_an_agent(tmp_path: Path) -> None:
    """Tokens lie in files of their own (0600), the agent is installed, named after the instance, and a service."""
    done = boot(tmp_path, boot_script(SETTINGS, SPOT, "r1", "wlr_e_token"))
    assert (done.returncode, done.stderr) == (0, "")
    state = tmp_path / "var/lib/walras"
    assert (state / "enrolment.token").read_text() == "wlr_e_token\n"
    assert (state / "rent.token").read_text() == "r1\n"
    assert {stat.S_IMODE((state / f"{name}.token").stat().st_mode) for name in ("enrolment", "rent")} == {0o600}
    log = (tmp_path / "log").read_text()
    wheel = packed_wheel()
    assert f"pip install --quiet {tmp_path}/opt/walras/{wheel.name}[torch]" in log
    assert f"{wheel.sha256}  " in log
    assert log.count("as walras") == 2
    assert "systemctl enable --now walras-agent.service" in log
    assert "wlr_e_token" not in log
    line = subprocess.run([state / "agent.sh"], capture_output=True, text=True, timeout=30).stdout.split()
    flags = dict(zip(line[1::2], line[2::2], strict=False))
    assert line[0] == "agent"
    assert "wlr_e_token" not in line
    assert (flags["--server"], flags["--market"], flags["--zone"]) == (SETTINGS.server_url, "spot", "us-east-1a")
    assert line[-3:] == ["--spot-notices", "--node", "i-0abc"]


def test_a_machine_that_cannot_become_one_ends_itself(tmp_path: Path) -> None:
    """An installation that fails shuts the machine down, which ends the rental; one never admitted does later."""
    done = boot(tmp_path, boot_script(SETTINGS, ON_DEMAND, "r1", "wlr_e_token"), PYTHON3="1")
    log = (tmp_path / "log").read_text().splitlines()
    assert done.returncode != 0
    assert log[-1] == "shutdown"
    assert log[0].startswith("systemd-run --on-active=1800")
    assert "credential.json || shutdown" in log[0]


def test_an_image_that_has_all_installs_nothing() -> None:
    """`install: []`: the image brings the command; on-demand machines are given no notices to look for."""
    script = boot_script(SETTINGS.model_copy(update={"install": ()}), ON_DEMAND, "r1", "wlr_e_token")
    assert "curl -sSf --retry 5 -m 300" not in script
    assert "pip install" not in script
    assert "--spot-notices" not in script


@pytest.mark.parametrize("name", ["", "; reboot", "$(reboot)", "'"])
def test_the_script_is_well_formed_whatever_the_names(name: str) -> None:
    """Names of the cluster file are quoted."""
    settings = SETTINGS.model_copy(update={"server_url": f"https://x{name}"})
    script = boot_script(settings, SPOT, "r1", "wlr_e_token")
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=30).returncode == 0
    (line,) = [line for line in script.splitlines() if line.startswith("exec ")]
    said = subprocess.run(
        ["bash", "-c", line.replace("exec /opt/walras/bin/walras", "printf '%s\\n'")],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert f"https://x{name}" in said.stdout.splitlines()


@pytest.mark.parametrize("wanted", ["walras", "walras[torch]==0.1", "Walras [torch]", "WALRAS>=0"])
def test_no_index_is_asked_for_our_name(wanted: str) -> None:
    """Whatever the cluster file says of it; other names are left as they are."""
    settings = SETTINGS.model_copy(update={"install": ("numpy>=2", wanted)})
    (line,) = [line for line in boot_script(settings, SPOT, "r1", "t").splitlines() if "bin/pip install" in line]
    _, installed = line.split(" --quiet ")
    names = shlex.split(installed)
    assert names[0] == "numpy>=2"
    assert names[1].removesuffix("[torch]") == f"/opt/walras/{packed_wheel().name}"


@pytest.mark.slow
def test_the_wheel_is_the_release_that_runs_here(tmp_path: Path) -> None:
    """pip installs it into a folder of its own, and its agent starts from there; its hashes hold."""
    wheel = packed_wheel()
    assert wheel.sha256 == hashlib.sha256(wheel.content).hexdigest()
    (tmp_path / wheel.name).write_bytes(wheel.content)
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "to"), str(tmp_path / wheel.name)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, timeout=120)
    asked = "import walras, workers.agent.startup; print(walras.__file__, walras.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "to")}
    command = [sys.executable, "-P", "-c", asked]
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == [str(tmp_path / "to/walras/__init__.py"), __version__], told.stderr


async def test_only_a_machine_that_may_join_fetches_the_wheel(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        token = face.world.server.secrets.enrolment_tokens.issue("r1")
        answer = await face.call("GET", "/agent/v1/wheel", token=token)
        assert (answer.status, await answer.read()) == (200, packed_wheel().content)
        assert (await face.call("GET", "/agent/v1/wheel")).status in (401, 403, 404)
