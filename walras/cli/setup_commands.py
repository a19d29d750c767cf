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
        "sbatch": (("submit",), {"--parsable": "--quiet", "--test-only": "--dry-run", "-Q": "--quiet"}),
        "squeue": (("queue",), {"-t": "--state", "--states": "--state", "-n": "--name", **_NO_HEADER}),
        "scancel": (("cancel", "--yes"), {"-t": "--state", "-n": "--name", "--jobname": "--name"}),
        "sinfo": (("nodes",), _NO_HEADER),
        "sacct": (("jobs",), {"-s": "--state", "-n": "--no-header", "--noheader": "--no-header"}),
    }
)
#: Options of `sbatch` that `walras submit` has itself, with or without a value of their own.
_OWN_OPTIONS = ("--quiet", "--dry-run", "--strict", "--help")


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

    Raises UserError for a script with arguments, which a job's script does not get here.
    """
    if name not in _SLURM_COMMANDS:
        return None
    begin, options = _SLURM_COMMANDS[name]
    translated = [_translated(word, options) for word in words]
    return [*begin, *(_words_of_sbatch(translated) if name == "sbatch" else translated)]


def _translated(word: str, options: Mapping[str, str]) -> str:
    option, equals, value = word.partition("=")
    return options.get(option, option) + equals + value


def _words_of_sbatch(words: Sequence[str]) -> list[str]:
    """Returns the options of `walras submit`, one `--sbatch` for each option of Slurm, and the script."""
    from walras.spec.slurm_scripts import takes_value

    own, rest = list[str](), list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word in _OWN_OPTIONS:
            own.append(word)
            continue
        if takes_value(word) and rest:
            word += f"={rest.pop(0)}" if word.startswith("--") else rest.pop(0)
        own.append(f"--sbatch={word}")
    if len(rest) > 1:
        raise UserError(
            f"{rest[0][:200]} would be run without its arguments ({' '.join(rest[1:])[:80]})",
            field="FILE",
            fix="write them into the script, or: walras submit COMMAND -- ARGUMENTS",
        )
    return [*own, *rest]
