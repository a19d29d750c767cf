"""How a rented machine becomes a node: the agent's command line, and the user-data of an EC2 instance.

The pool says what the machine is; secrets come in files, never on a command line. At its first boot an EC2 instance
joins this cluster or terminates itself. The script is equal, byte for byte, for the same request, or EC2 would refuse
to repeat a launch. Its enrolment token admits machines of this request only, and for a short time. A machine that is
not admitted in time shuts down, which terminates the instance: even if the server is gone, no instance is left behind.

It installs this release, packed as a wheel from the server's own installation: a name on a package index belongs to
whoever registered it first, so nothing of Walras is fetched from an index. Machines fetch the wheel from the server
that rented them and check its hash, which their boot script carries. The same files make the same wheel, byte for byte.
"""

import base64
import csv
import hashlib
import io
import re
import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath

from walras.cluster import Market, Pool
from walras.errors import ConfigError
from walras.spec.cluster_file import AwsSettings

_NAME = "walras"
_PACKAGES = ("configs", "optimizer", "scheduler", "simulator", "walras", "workers")
_SUFFIXES = frozenset({".py", ".typed", ".yaml", ".csv", ".json", ".jsonl", ".sql", ".sh"})
_WHEEL = "Wheel-Version: 1.0\nGenerator: walras\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: The earliest time that a zip file can state.
_WHEN = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class AgentWheel:
    """A wheel: its file name, its bytes and their SHA-256."""

    name: str
    sha256: str
    content: bytes


@cache
def packed_wheel() -> AgentWheel:
    """Returns the installed release as a wheel, packed once a process in about 1 s. Raises ConfigError if none is."""
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        fix = "install it (pip install), or give an image that has the agent and `install: []`"
        raise ConfigError("machines cannot be given a release that is not installed here", fix=fix) from None
    about = f"{_NAME}-{installed.version}.dist-info"
    files = {name: path.read_bytes() for package in _PACKAGES for name, path in _files_of(package)}
    # A development install of a checkout has PKG-INFO in the place of METADATA.
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    files[f"{about}/METADATA"] = metadata.encode()
    files[f"{about}/WHEEL"] = _WHEEL.encode()
    files[f"{about}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{about}/RECORD"] = _record(files, f"{about}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    content = packed.getvalue()
    return AgentWheel(f"{_NAME}-{installed.version}-py3-none-any.whl", hashlib.sha256(content).hexdigest(), content)


def _files_of(package: str) -> list[tuple[str, Path]]:
    """Returns (name in the wheel, path) of a package's files; an empty list where it is not installed."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        return []
    root = Path(found.submodule_search_locations[0])
    paths = (path for path in root.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return [(f"{package}/{path.relative_to(root).as_posix()}", path) for path in paths]


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(files[name])])
    rows.writerow([own_name, "", ""])
    return text.getvalue().encode()


def agent_command_line(
    command: Sequence[str],
    server_url: str,
    pool: Pool,
    *,
    state: PurePath,
    join_token_file: PurePath,
) -> list[str]:
    """Returns the agent's command line without the machine's name, which the caller adds (`--node`).

    `state`: the agent's folder, where `rent.token` has the token of the machine's request.
    """
    shape = pool.shape
    arguments = {
        "--server": server_url,
        "--join-token-file": str(join_token_file),
        "--state": str(state),
        "--shape": shape.name,
        "--accelerator": shape.accelerator,
        "--accelerators": str(shape.accelerators),
        "--cpus": f"{shape.cpus:g}",
        "--memory": f"{shape.memory_bytes}B",
        "--market": pool.market.value,
        "--zone": pool.zone,
        "--nominal-speed": f"{shape.nominal_speed:g}",
        "--rent-token-file": str(state / "rent.token"),
    }
    line = [*command, "agent", *(word for pair in arguments.items() for word in pair)]
    return [*line, "--emulated"] if shape.emulated else line


_HOME = PurePosixPath("/opt/walras")
_STATE = PurePosixPath("/var/lib/walras")
#: Seconds until a machine must be admitted: an image that has to install PyTorch takes minutes.
ADMITTED_WITHIN_S = 1800

_BOOT_SCRIPT = """#!/bin/bash
set -euo pipefail
trap 'shutdown -h now' ERR
umask 077
systemd-run --on-active={limit_s} /bin/sh -c 'test -f {state}/credential.json || shutdown -h now'
id -u walras >/dev/null 2>&1 || useradd --system --create-home --shell /bin/bash walras
mkdir -p {state} {home}
cat >{state}/enrolment.token <<'WALRAS'
{enrolment_token}
WALRAS
cat >{state}/rent.token <<'WALRAS'
{rent_token}
WALRAS
imds=http://169.254.169.254/latest
session=$(curl -sSf --retry 5 -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' $imds/api/token)
curl -sSf --retry 5 -m 5 -H "X-aws-ec2-metadata-token: $session" $imds/meta-data/instance-id >{state}/instance-id
{install}cat >{state}/agent.sh <<'WALRAS'
#!/bin/bash
exec {line} --node "$(cat {state}/instance-id)"
WALRAS
chmod 0700 {state}/agent.sh
chown -R walras: {state}
chmod 0755 {home}
cat >/etc/systemd/system/walras-agent.service <<'WALRAS'
[Unit]
Description=Agent of a Walras cluster
Wants=network-online.target
After=network-online.target
[Service]
User=walras
ExecStart={state}/agent.sh
Restart=always
RestartSec=5
KillMode=process
[Install]
WantedBy=multi-user.target
WALRAS
systemctl daemon-reload
systemctl enable --now walras-agent.service
"""


#: venv and pip run as the agent's user, so that no package's code is run by root.
_INSTALL = """umask 022
chown walras: {home}
sed 's/^/Authorization: Bearer /' {state}/enrolment.token | curl -sSf --retry 5 -m 300 -H @- -o {wheel} {url}
echo '{sha256}  {wheel}' | sha256sum --quiet -c
runuser -u walras -- python3 -m venv {home}
{pip}
umask 077
"""


def _install_lines(settings: AwsSettings, wheel: AgentWheel) -> str:
    """Returns the lines that fetch this release from the server, check its hash, and install it and the rest."""
    place = f"{_HOME}/{wheel.name}"
    wanted = [_from_wheel(requirement, place) for requirement in settings.install]
    if not any(each.startswith(place) for each in wanted):
        wanted.insert(0, place)
    pip = ["runuser", "-u", "walras", "--", str(_HOME / "bin" / "pip"), "install", "--quiet", *wanted]
    url = shlex.quote(f"{settings.server_url.rstrip('/')}/agent/v1/wheel")
    return _INSTALL.format(
        home=_HOME, state=_STATE, wheel=shlex.quote(place), url=url, sha256=wheel.sha256, pip=shlex.join(pip)
    )


def _from_wheel(requirement: str, place: str) -> str:
    """Returns the requirement; one of Walras itself becomes the wheel with its extras: no index is asked for it."""
    name = re.match(r"[A-Za-z0-9._-]*", requirement.strip())
    if name is None or re.sub(r"[-_.]+", "-", name.group()).lower() != "walras":
        return requirement
    extras = re.search(r"\[[A-Za-z0-9._, -]*\]", requirement)
    return place + ("" if extras is None else extras.group())


def boot_script(settings: AwsSettings, pool: Pool, rent_token: str, enrolment_token: str) -> str:
    """Returns the user-data of the machines of one request. Raises ConfigError where no release is installed here."""
    command = [str(_HOME / "bin" / "walras")]
    enrolment = _STATE / "enrolment.token"
    line = agent_command_line(command, settings.server_url, pool, state=_STATE, join_token_file=enrolment)
    if pool.market is Market.SPOT:
        line.append("--spot-notices")
    install = _install_lines(settings, packed_wheel()) if settings.install else ""
    return _BOOT_SCRIPT.format(
        limit_s=ADMITTED_WITHIN_S,
        state=_STATE,
        home=_HOME,
        enrolment_token=enrolment_token,
        rent_token=rent_token,
        install=install,
        line=shlex.join(line),
    )
