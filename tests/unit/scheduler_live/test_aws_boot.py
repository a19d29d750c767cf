"""The first boot of a machine of EC2, played on this one: commands that need one are stubs, files go to a folder."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from scheduler.live.providers.machine_boot import boot_script
from tests.support.provider_kit import ON_DEMAND, SETTINGS, SPOT

STUBS = {
    "curl": 'case "$*" in *PUT*) echo session;; *) echo i-0abc;; esac',
    "id": "exit 0",
    "chown": ":",
    "shutdown": 'echo shutdown >>"$LOG"',
    "systemctl": 'echo "systemctl $*" >>"$LOG"',
    "systemd-run": 'echo "systemd-run $*" >>"$LOG"',
    "python3": "exit ${PYTHON3:-0}",
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
    assert "pip install --quiet walras[torch,nvidia]" in log
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
