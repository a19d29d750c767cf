"""Programs of Debian that tests run, unpacked into a folder beside the interpreter and not installed.

    python -m tests.support.debian_packages        fetches them; `make slurm` calls it

Every checkout that uses this interpreter has them. Nothing of the system is changed, and nobody need be root.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.not_here import not_here

#: With the libraries that a small system may not have.
PACKAGES = {
    "slurm": (
        "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libmunge2", "libhwloc15", "libnuma1",
        "liblz4-1", "libpam0g", "libreadline8", "libdbus-1-3", "libjson-c5", "libyaml-0-2", "libxnvctrl0", "libudev1",
    ),
    "sshd": ("openssh-server", "openssh-sftp-server", "libwrap0", "libnsl2", "libtirpc3"),
    "promtool": ("prometheus",),
    "shells": ("busybox", "fish", "ksh93u+m", "libpcre2-32-0", "mksh", "posh", "tcsh", "yash", "zsh"),
}  # fmt: skip


def unpacked(name: str) -> Path:
    """The folder of a group of packages; skips the test where it is not (WALRAS_REQUIRE=NAME: fails)."""
    folder = folder_of(name)
    if not folder.is_dir():
        not_here(name, f"no {name} here: `make slurm` unpacks Debian's")
    return folder


def unpack_all() -> None:
    """Fetch and unpack what is not there yet. Raises CalledProcessError where apt cannot."""
    for name, packages in PACKAGES.items():
        folder = folder_of(name)
        if folder.is_dir():
            continue
        with tempfile.TemporaryDirectory() as fetched:
            line = ["apt-get", "download", "-qq", *packages]
            if subprocess.run(line, cwd=fetched, check=False).returncode != 0:
                subprocess.run(["apt-get", "update", "-qq"], check=True)
                subprocess.run(line, cwd=fetched, check=True)
            draft = folder.with_name(f"{folder.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            for package in sorted(Path(fetched).glob("*.deb")):
                subprocess.run(["dpkg", "-x", str(package), str(draft)], check=True)
            draft.rename(folder)


def folder_of(name: str) -> Path:
    return Path(sys.prefix) / name


if __name__ == "__main__":
    unpack_all()
