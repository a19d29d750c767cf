"""Hosts that share nothing: each a network namespace on one bridge, and a mount namespace with folders of its own.

What a host can see of the others is their addresses. The temporary folders and the folder of the test are empty there,
but for the host's own folder and for files that it was given when it was set up; the program is there to be read alone.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.attempts import ROOT

#: Folders that no host shares with another.
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
#: Parts of the checkout that no host needs: the jobs' code, and the tests.
_UNNEEDED = (ROOT / "configs" / "jobs", ROOT / "tests")
#: The program: the checkout, and the interpreter's environment and installation.
_PROGRAM = tuple(dict.fromkeys(map(Path, (ROOT, sys.prefix, sys.base_prefix))))
#: Where what stays visible lies while the folders around it disappear.
_HOLD = "/mnt"


class HostsRefused(Exception):
    """This system does not let us make such hosts; the text says what failed."""


@dataclass(frozen=True)
class HostsApart:
    """Hosts by name, the first of which has the bridge. `outside` is this process's own address there."""

    names: tuple[str, ...]
    #: Tells apart those who do this at once.
    number: int
    #: A folder that is hidden as well.
    folder: Path

    def make(self) -> None:
        """Raises HostsRefused."""
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
            raise HostsRefused("namespaces need root, and the commands ip and unshare")
        bridge = self._space(self.names[0])
        for name in self.names:
            self._ip("netns", "add", self._space(name))
            self._ip("-n", self._space(name), "link", "set", "lo", "up")
        self._ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", bridge, "addr", "add", f"{self.address(self.names[0])}/24", "dev", "bridge")
        self._ip("-n", bridge, "link", "set", "bridge", "up")
        for name in self.names[1:]:
            self._connect(f"to-{name}"[:15], "cable", ["-n", self._space(name)], self.address(name))
        self._connect("to-outside", self._cable, [], self.outside)
        self._run(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {_HOLD}"])

    def _connect(self, port: str, cable: str, where: Sequence[str], address: str) -> None:
        bridge = self._space(self.names[0])
        to = ["netns", where[1] if where else str(os.getpid())]
        self._ip("link", "add", port, "netns", bridge, "type", "veth", "peer", "name", cable, *to)
        self._ip("-n", bridge, "link", "set", port, "master", "bridge", "up")
        self._ip(*where, "addr", "add", f"{address}/24", "dev", cable)
        self._ip(*where, "link", "set", cable, "up")

    def remove(self) -> None:
        """The cables go with the namespaces."""
        for name in self.names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True)

    def address(self, name: str) -> str:
        return f"10.231.{self._subnet}.{self.names.index(name) + 1}"

    @property
    def outside(self) -> str:
        return f"10.231.{self._subnet}.254"

    @property
    def _subnet(self) -> int:
        return 10 + self.number % 240

    @property
    def _cable(self) -> str:
        return f"walras{self.number % 10**8}"

    def _space(self, name: str) -> str:
        return f"walras-{self.number}-{name}"

    def enter(self, name: str, own: str, given: Sequence[Path] = (), then: str = "") -> list[str]:
        """The words that start a command on the host.

        Args:
            own: its own folder; `$OWN` is that of the environment.
            given: files that it gets copies of, under their names.
            then: what else is done there first, in sh.
        """
        inside = _hide([*_TEMPORARY, self.folder], own, given) + (f"\n{then}" if then else "")
        return [
            "ip",
            "netns",
            "exec",
            self._space(name),
            "unshare",
            "--mount",
            "sh",
            "-ec",
            f'{inside}\nexec "$@"',
            "sh",
        ]

    def _ip(self, *words: str) -> None:
        self._run(["ip", *words])

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise HostsRefused(f"{shlex.join(command)}: {done.stderr.strip()}")


def _hide(hidden: Sequence[Path], own: str, given: Sequence[Path]) -> str:
    """The lines of sh by which a new mount namespace loses the hidden folders, all but what belongs to the host."""
    own = own if own == "$OWN" else shlex.quote(own)
    kept = [f'"{own}"' if own == "$OWN" else own]
    within = [path for path in _PROGRAM if any(path.is_relative_to(each) for each in hidden)]
    kept += [shlex.quote(str(path)) for path in within if _is_outermost(path, within)]
    lines = [f"mount -t tmpfs none {_HOLD}"]
    for path in kept:
        lines += [f"mkdir -p {_HOLD}/kept{path}", f"mount --rbind {path} {_HOLD}/kept{path}"]
    for number, file in enumerate(given):
        lines.append(f"cp {shlex.quote(str(file))} {_HOLD}/given{number}")
    lines += [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden if _is_outermost(folder, hidden)]
    for path in kept:
        lines += [f"mkdir -p {path}", f"mount --move {_HOLD}/kept{path} {path}"]
    for number, file in enumerate(given):
        place = shlex.quote(str(file.parent))
        lines += [f"mkdir -p {place}", f"cp {_HOLD}/given{number} {shlex.quote(str(file))}"]
    for path in _PROGRAM:
        place = shlex.quote(str(path))
        lines += [f"mount --rbind {place} {place}", f"mount -o remount,bind,ro {place}"]
    lines += [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in _UNNEEDED]
    return "\n".join([*lines, f"umount -l {_HOLD}"])


def _is_outermost(folder: Path, folders: Sequence[Path]) -> bool:
    return not any(folder != other and folder.is_relative_to(other) for other in folders)
