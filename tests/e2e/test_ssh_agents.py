"""Agents started, asked after and stopped over a real SSH connection."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.attempts import ROOT
from tests.support.real_server import FIFO, WALRAS, A, Serve, processes_of, wait_for
from tests.support.ssh_server import ssh_server

pytestmark = pytest.mark.slow


def test_agents_are_started_asked_after_and_stopped_over_ssh(serve: Serve, tmp_path: Path) -> None:
    """Twice started is once started; the token is in no command line; a host that is not there is named, and the others
    are served all the same; a job runs there; stopping twice is stopping."""
    walras = tmp_path / "walras"
    # Emulated machines are as large as their pool says, and an agent started by SSH has what the machine has.
    size = "--cpus 2 --memory 1GB"
    walras.write_text(f'#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} {WALRAS} "$@" {size}\n')
    walras.chmod(0o755)
    pool = {**A, "shape": "tower"}
    with ssh_server(tmp_path / "sshd") as sshd:
        server = serve([pool], FIFO)
        # OpenSSH reads no configuration of the environment's: a client that has one, for this test alone.
        client = tmp_path / "bin"
        client.mkdir()
        (client / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {sshd.config} "$@"\n')
        (client / "ssh").chmod(0o755)
        host = {
            "host": "127.0.0.1", "port": sshd.port, "node": "one", "walras": str(walras), "shape": "tower",
            "accelerator": "a", "accelerators": 1, "emulated": True, "state": str(tmp_path / "state"),
        }  # fmt: skip
        dead = {**host, "node": "dead", "port": 1}
        hosts = tmp_path / "hosts.yaml"
        hosts.write_text(yaml.safe_dump({"server": ["http://127.0.0.1:1", server.url], "hosts": [host, dead]}))

        def agents(*arguments: str) -> tuple[int, str]:
            environment = {**os.environ, "PATH": f"{client}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
            command = [WALRAS, "admin", "agents", *arguments, "--on", "ssh", "-f", str(hosts)]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
            return ran.returncode, ran.stdout + ran.stderr

        token = ("--join-token-file", str(server.data / "join.token"))
        code, told = agents("launch", *token)
        assert code == 1
        assert "one: started" in told
        assert "dead: " in told
        hosts.write_text(yaml.safe_dump({"server": ["http://127.0.0.1:1", server.url], "hosts": [host]}))
        wait_for(lambda: server.node_state("one") == "up", 30, f"it joins; {told}")
        assert agents("launch", *token)[1].startswith("one: running")
        assert agents("status")[1].startswith("one: running")
        secret = (server.data / "join.token").read_text().strip()
        for each in processes_of(tmp_path):
            with contextlib.suppress(psutil.Error):  # it has ended since
                assert not any(secret in word for word in each.cmdline())
        job_id = server.submit(run=["/bin/true"])
        server.until_state(job_id, "SUCCEEDED", 40)
        code, told = agents("stop")
        assert code == 0
        assert told.startswith("one: stopped ")
        assert agents("stop") == (0, "one: stopped\n")
        assert agents("status") == (0, "one: stopped\n")
