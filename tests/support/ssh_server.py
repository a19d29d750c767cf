"""OpenSSH's server on loopback for one test: Debian's, unpacked and not installed, for whoever runs the test."""

import contextlib
import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.debian_packages import unpacked
from tests.support.newcomer import unused_port

_SETTINGS = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
"""
#: Root's server gives up its rights to a user of this name before anybody has logged in: one that only it sees.
_AS_ROOT = (
    "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && "
    "{{ cat /etc/passwd; echo sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin; }} >/run/passwd && "
    "mount --bind /run/passwd /etc/passwd && exec {line}"
)


class SshServer:
    """Started; `config` is what a client needs to know."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.port = unused_port()
        for key in ("host_key", "client_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        (folder / "sshd_config").write_text(_SETTINGS.format(port=self.port, folder=folder))
        line = f"env LD_LIBRARY_PATH={programs}/lib/x86_64-linux-gnu:{programs}/usr/lib/x86_64-linux-gnu"
        line += f" {programs}/usr/sbin/sshd -D -e -f {folder}/sshd_config"
        command = line.split() if os.geteuid() else ["unshare", "-m", "sh", "-c", _AS_ROOT.format(line=line)]
        self._log = folder / "sshd.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.config = folder / "ssh_config"
        self.config.write_text(
            f"IdentityFile {folder}/client_key\nIdentitiesOnly yes\nUser {getpass.getuser()}\n"
            f"StrictHostKeyChecking no\nUserKnownHostsFile {folder}/known_hosts\nLogLevel ERROR\n"
        )
        self._until_open()

    def _until_open(self) -> None:
        until = time.monotonic() + 300.0
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            has_failed = self._process.poll() is not None or time.monotonic() > until
            assert not has_failed, self._log.read_text()
            time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(300)


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """A server on loopback; skips the test where it is not unpacked (WALRAS_REQUIRE=sshd: fails)."""
    programs = unpacked("sshd")
    folder.mkdir(parents=True)
    server = SshServer(folder, programs)
    try:
        yield server
    finally:
        server.close()
