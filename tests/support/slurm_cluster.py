"""A real Slurm on this machine, without root's daemons: a controller and two unlike nodes in a temporary folder.

The programs are Debian's packages, unpacked by `make slurm`. Two `slurmd` share the host under names and ports of their
own, and plain files stand in for their accelerators' devices. Nobody authenticates: everything listens on loopback and
belongs to whoever runs the test.
"""

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.support.debian_packages import unpacked
from tests.support.newcomer import unused_port
from tests.support.waiting import PATIENCE

#: Debian installs them under these names by links. Under others they do not know that they are daemons.
_DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
#: What each node has: two unlike ones.
NODES: Mapping[str, str] = {"one": "gpu:t4:2", "two": "gpu:a100:1"}
#: Slurm waits so long between SIGTERM and SIGKILL; its own default is 30 s.
KILL_WAIT_S = 5

_SETTINGS = """ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
BatchStartTimeout=10
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


class SlurmCluster:
    """Started daemons, and the commands of their users."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        libraries = programs / "usr/lib/x86_64-linux-gnu"
        # A daemon's jobs inherit nothing of this: Slurm hands them the environment of whoever submitted them.
        self._libraries = f"{libraries}:{libraries / 'slurm-wlm'}"
        self.bin = folder / "bin"
        self._write_commands()
        self._write_settings(libraries / "slurm-wlm")

    def _write_commands(self) -> None:
        """The commands as an installed Slurm has them: they find their libraries and their cluster by themselves."""
        self.bin.mkdir(parents=True)
        for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
            command = self.bin / name
            program = self._programs / "usr/bin" / name
            # The loader's variable would travel into jobs with the rest of the environment: sbatch alone needs it.
            command.write_text(
                f"#!/bin/sh\nexport SLURM_CONF={self.folder}/slurm.conf LD_LIBRARY_PATH={self._libraries}\n"
                f'exec {program} "$@"\n'
            )
            command.chmod(0o755)
        for name in _DAEMONS:
            (self.folder / name).symlink_to(self._programs / f"usr/sbin/{name}-wlm")

    def _write_settings(self, plugins: Path) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        nodes, devices = [], []
        for node, gres in NODES.items():
            _, kind, count = gres.split(":")
            port = unused_port()
            for number in range(int(count)):
                (self.folder / f"{kind}-{number}").touch()
            nodes.append(
                f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
                f"CPUs=8 RealMemory=64000 Gres={gres}"
            )
            file = self.folder / f"{kind}-[0-{int(count) - 1}]"
            devices.append(f"NodeName={node} Name=gpu Type={kind} File={file}")
        text = _SETTINGS.format(
            folder=self.folder, port=unused_port(), user=getpass.getuser(), plugins=plugins, kill_wait=KILL_WAIT_S,
            nodes="\n".join(nodes),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("\n".join(devices) + "\n")

    # ------------------------------------------------------------------------------------------- daemons

    def start(self) -> "SlurmCluster":
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.until_idle()
        return self

    def start_controller(self) -> None:
        self._start("controller", [str(self.folder / "slurmctld"), "-D"])

    def start_node(self, node: str) -> None:
        self._start(node, [str(self.folder / "slurmd"), "-D", "-N", node, "-d", str(self.folder / "slurmstepd")])

    def _start(self, name: str, command: list[str]) -> None:
        environment = {
            **os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "LD_LIBRARY_PATH": self._libraries,
        }  # fmt: skip
        with open(self.folder / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def kill(self, name: str) -> None:
        """End a daemon (`controller`, or a node) as a power failure does; a node's jobs go with it."""
        daemon = self._daemons.pop(name)
        if name in NODES:
            for step in self._steps(name):
                with contextlib.suppress(psutil.Error):
                    for process in (*step.children(recursive=True), step):
                        process.kill()
        daemon.kill()
        daemon.wait(300)

    def _steps(self, node: str | None = None) -> list[psutil.Process]:
        """The processes that look after the jobs: of a node, or of all."""
        spool = None if node is None else str(self.folder / f"spool-{node}")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "slurmstepd" not in process.name() or process.environ().get("SLURM_CONF", "") != str(
                    self.folder / "slurm.conf"
                ):
                    continue
                if spool is None or any(
                    spool in child.cwd() or spool in " ".join(child.cmdline()) for child in process.children()
                ):
                    found.append(process)
        return found

    def until_idle(self, timeout_s: float = 90.0) -> None:
        until = time.monotonic() + PATIENCE * timeout_s
        while True:
            states = self.output("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
            if states == ["idle"] * len(NODES):
                return
            assert time.monotonic() < until, f"nodes are {states}; see {self.folder}"
            time.sleep(0.1)

    def close(self) -> None:
        """End jobs and daemons. No process is left."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            if self.jobs():
                self.output("scancel", "--signal=KILL", *self.jobs())
        for step in self._steps():
            with contextlib.suppress(psutil.Error):
                for process in (*step.children(recursive=True), step):
                    process.kill()
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(300)

    # ------------------------------------------------------------------------------------------- its users

    def output(self, command: str, *arguments: str) -> str:
        """Run a command of Slurm and return what it prints."""
        line = [str(self.bin / command), *arguments]
        ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
        assert ran.returncode == 0, f"{' '.join(line)}: {ran.stderr}"
        return ran.stdout

    def jobs(self, *states: str) -> list[str]:
        """Ids of jobs that are not over, of some states or of all."""
        chosen = [f"--states={','.join(states)}"] if states else []
        return self.output("squeue", "-h", "-o", "%i", *chosen).split()


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A running Slurm; skips the test where it is not unpacked (WALRAS_REQUIRE=slurm: fails)."""
    programs = unpacked("slurm")
    # Paths of sockets are short, and those of pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = SlurmCluster(folder, programs)
    try:
        yield cluster.start()
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
