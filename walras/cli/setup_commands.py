"""What a person does once: `walras init`, `walras slurm-links`, and the lines that a server's first start prints.

The links of `slurm-links` all lead to the `walras` command, which looks at the name that it was started under: `sbatch
job.sh` is `walras submit job.sh`. Options that mean the same are translated; `sbatch` takes all that `#SBATCH` lines
may say; every other option is refused by the command that does not know it.
"""

import contextlib
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from walras.cli.terminal_output import show_line, warn
from walras.errors import ConfigError, UserError

_NO_HEADER = {"-h": "--no-header", "--noheader": "--no-header"}
#: Slurm's commands: the words that begin ours, and options of the same meaning under another name.
_SLURM_COMMANDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = MappingProxyType(
    {
        "sbatch": (("submit",), {}),
        "squeue": (("queue",), {"-t": "--state", "--states": "--state", "-n": "--name", **_NO_HEADER}),
        "scancel": (("cancel", "--yes"), {"-t": "--state", "-n": "--name", "--jobname": "--name"}),
        "sinfo": (("nodes",), _NO_HEADER),
        "sacct": (("jobs",), {"-s": "--state", "-n": "--no-header", "--noheader": "--no-header"}),
    }
)
#: Options with which programs read a listing: it is answered in Slurm's own columns (`slurm_listings`).
_LISTINGS = {
    "squeue": ("-o", "--format", "-O", "--Format", "-j", "--job"),
    "sacct": ("-j", "--job", "-o", "--format", "-P", "--parsable", "-p", "-X", "--allocations", "-b", "--brief"),
}
#: Options of `sbatch` about its own answer, and what they are here.
_SBATCH_ANSWERS = {"parsable": "--quiet", "quiet": "--quiet", "test-only": "--dry-run", "wait": "--wait"}
#: Options of `walras submit` that `sbatch` takes, too.
_OWN_OPTIONS = ("--dry-run", "--strict", "--lenient", "--help")


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to copy into; default: this one.")] = Path(),
) -> None:
    """Copy the files that come with Walras into DIR/configs, to read and to change."""
    from walras.spec.shipped_files import copy_examples

    new = copy_examples(folder)
    show_line(f"{len(new)} files are new in {folder / 'configs'}")
    show_line(f"  try one: walras submit {folder / 'configs/jobs/cnn.yaml'}")


def slurm_links_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the links; put it on your PATH.")],
) -> None:
    """Write links named sbatch, squeue, scancel, sinfo and sacct, each of which runs the walras command for it."""
    target = _own_program()
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SLURM_COMMANDS:
        link = folder / name
        if link.is_symlink() and Path(os.readlink(link)).name == target.name:
            link.unlink()  # a link of an earlier installation
        if link.exists() or link.is_symlink():
            raise ConfigError(f"{link} is there already", field="DIR", fix="name a folder of its own")
        link.symlink_to(target)
    show_line(f"{', '.join(_SLURM_COMMANDS)} are in {folder}")
    show_line(f'  use them: export PATH="{folder.absolute()}:$PATH"')


def show_first_steps(data: Path, url: str) -> None:
    """Prints what to type next, once a server is ready at `url` for the first time; no secret is in it."""
    port = url.rpartition(":")[2]
    scheme, _, address = url.partition("://")
    is_open = address.startswith(("0.0.0.0:", "[::]:"))
    here = f"{scheme}://localhost:{port}" if is_open else url
    host = socket.gethostname()
    joining = f"{scheme}://{host}:{port}" if is_open else url
    token = shlex.quote(str(data / "join.token"))
    loopback = not is_open and address.startswith(("127.", "localhost:", "[::1]:"))
    fetched = token if loopback else f"<(ssh {host} cat {token})"
    lines = [
        "To use it from this machine:",
        f"  export WALRAS_SERVER={here}",
        f"  export WALRAS_TOKEN_FILE={shlex.quote(str(data / 'admin.token'))}",
        "To add this machine:" if loopback else "To add a machine, on it (bash):",
        f"  walras agent --server {joining} --join-token-file {fetched}",
    ]
    if loopback:
        lines.append("Other machines cannot reach it; restart it with --host 0.0.0.0 --tls self for them.")
    with contextlib.suppress(OSError):  # The line has no reader: the server runs all the same.
        warn(*lines)


def _own_program() -> Path:
    """Returns the installed `walras` command: beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("walras")
    found = str(beside) if beside.is_file() else shutil.which("walras")
    if found is None:
        raise UserError("the walras command is not installed", fix="pip install the wheel, and run its `walras`")
    return Path(os.path.abspath(found))


def words_of_slurm_command(name: str, words: Sequence[str]) -> list[str] | None:
    """Returns our words for a command line of Slurm; None if `name` is none of its commands.

    Raises UserError for a command line of `sbatch` that Slurm would refuse.
    """
    if name not in _SLURM_COMMANDS:
        return None
    if name == "sbatch":
        return ["submit", *_words_of_sbatch(words)]
    if name in _LISTINGS and any(word.startswith(_LISTINGS[name]) for word in words):
        return [f"slurm-{name}", *words]
    begin, options = _SLURM_COMMANDS[name]
    return [*begin, *(_translated(word, options) for word in words)]


def _translated(word: str, options: Mapping[str, str]) -> str:
    option, equals, value = word.partition("=")
    return options.get(option, option) + equals + value


def _words_of_sbatch(words: Sequence[str]) -> list[str]:
    """Returns the options of `walras submit`, one `--sbatch` for each option of Slurm, the script and its arguments."""
    from walras.spec.shell_scripts import ForeignReading
    from walras.spec.slurm_options import leading_options

    own = [word for word in words if word in _OWN_OPTIONS]
    reading = ForeignReading()
    given, rest = leading_options("sbatch", [("", word) for word in words if word not in _OWN_OPTIONS], reading)
    if reading.refused:
        raise UserError(f"sbatch{reading.refused[0]}", fix="man sbatch")
    wrapped: str | None = None
    for each in given:
        if each.option.name == "wrap":
            wrapped = each.value
        elif each.option.name in _SBATCH_ANSWERS:
            own.append(_SBATCH_ANSWERS[each.option.name])
        else:
            own.append(f"--sbatch=--{each.option.name}" + (f"={each.value}" if each.value else ""))
    script = [word for _, word in rest]
    if wrapped is not None:
        if script:
            raise UserError(f"{script[0][:80]}: a script beside --wrap", field="--wrap", fix="give one of the two")
        return ["--like-sbatch", *own, f"--wrap={wrapped}", "wrap"]
    return ["--like-sbatch", *own, *(script or ["-"])[:1], *(["--", *script[1:]] if script[1:] else [])]
