"""`walras server`, `agent`, `demo`, `admin`: starting the daemons and administering a cluster; and what a person does
once: `walras admin init`, `walras admin slurm-links`, and the lines that a server's first start prints.

The links of `slurm-links` all lead to the `walras` command, which looks at the name that it was started under: `sbatch
job.sh` is `walras submit job.sh`. Options that mean the same are translated; `sbatch` takes all that `#SBATCH` lines
may say; every other option is refused by the command that does not know it.

The care for a data folder (`admin backup`, `restore`, `check`, `accept-loss`, `recover-token`) works on the folder
itself, on the machine of the server, and needs no token: whoever can read its keys is its administrator.
"""

import contextlib
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from walras.cli.arguments import example_or_path, parse_length_option, refuse_options
from walras.cli.session import with_client
from walras.cli.terminal_output import exit_with, show_line, warn
from walras.errors import ClusterError, ConfigError, NotFound, UserError
from walras.units import format_size, parse_size

if TYPE_CHECKING:
    from walras.cluster import TypeCount


#: The values of `--market`.
_Market = Literal["owned", "on_demand", "spot"]
_MARKETS: tuple[_Market, ...] = get_args(_Market)


TlsOption = Annotated[
    str | None,
    typer.Option("--tls", metavar="self", help="Listen with a certificate of the server's own, which tokens then pin."),
]
TlsCertOption = Annotated[
    Path | None, typer.Option("--tls-cert", help="Listen with this certificate (PEM, with its chain).")
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="The key of --tls-cert (PEM, no password).")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let other machines reach it without TLS: tokens cross the network readable.")
]


def server_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of the database, the tokens and the logs.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65_535, help="Port to listen on; 0: the port of the last start, else any free port."
        ),
    ] = 0,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            help="A cluster file: the pools of machines; or example:NAME.",
            callback=example_or_path("clusters"),
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A policy file, or example:NAME.", callback=example_or_path("policies")),
    ] = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    insecure: InsecureOption = False,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="WALRAS_STORE",
            show_envvar=False,
            help="Database of several servers, of which one leads: postgresql://USER@HOST/DB; default: SQLite.",
        ),
    ] = "",
    new_cluster: Annotated[
        bool, typer.Option("--new-cluster", help="Put what the folder holds aside and begin a new cluster.")
    ] = False,
) -> None:
    """Run the server, which keeps the queue and answers commands and the page, until SIGTERM or Ctrl-C."""
    if tls not in (None, "self"):
        raise UserError(
            f"{tls[:40]!r} is no certificate", field="--tls", fix="write --tls self, or --tls-cert and --tls-key"
        )
    if (tls_cert is None) != (tls_key is None):
        raise UserError("a certificate goes with its key", field="--tls-cert / --tls-key", fix="give both")
    from scheduler.live.auth.tls_material import TlsFiles
    from scheduler.live.main import ListenOptions, run_server

    files = None if tls_cert is None or tls_key is None else TlsFiles(tls_cert, tls_key)
    listen = ListenOptions(host, port, files, tls is not None, insecure)
    greet = partial(show_first_steps, data.absolute())
    exit_with(
        run_server(
            data=data, listen=listen, cluster=cluster, policy=policy, store=store, new_cluster=new_cluster, greet=greet
        )
    )


StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Folder of the agent's state; it must survive restarts. Default: ~/.local/state/walras/agent."
    ),
]
NodeOption = Annotated[
    str | None, typer.Option("--node", help="Name of this machine in the cluster; default: its host name.")
]
ShapeOption = Annotated[
    str,
    typer.Option(
        "--shape", help="Shape of this machine: its instance type or hardware model; default: such as a100-40gbx4."
    ),
]
JoinTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--join-token-file", help="File with the token that admits the machine; read at its first start only."
    ),
]
AcceleratorOption = Annotated[
    str | None, typer.Option("--accelerator", help="Accelerator type; default: detected GPUs, or `cpu` without any.")
]
AcceleratorsOption = Annotated[
    str | None,
    typer.Option(
        "--accelerators", help="Number of accelerators, or those of each type: a100:2,t4:1; default: as detected."
    ),
]
MarketOption = Annotated[str, typer.Option("--market", help="How the machine is paid for: owned, on_demand or spot.")]
NominalSpeedOption = Annotated[
    float, typer.Option("--nominal-speed", help="Speed relative to other accelerator types, until it is measured.")
]
EmulatedOption = Annotated[bool, typer.Option("--emulated", help="Emulate the accelerator: pace steps to --speeds.")]
SpeedsOption = Annotated[
    Path | None, typer.Option("--speeds", help="With --emulated: YAML file, {kind: {accelerator: steps per second}}.")
]
RentTokenFileOption = Annotated[
    Path | None, typer.Option("--rent-token-file", help="File with the enrolment token of a rented machine.")
]
SpotNoticesOption = Annotated[
    bool, typer.Option("--spot-notices", help="Watch EC2's metadata service for spot interruption notices.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Address at which other machines of a gang reach this one.")
]


AttemptDiskOption = Annotated[
    str | None,
    typer.Option(
        "--attempt-disk",
        help="What an attempt may write into its own folder, such as 100GB; more ends it. Default: no limit.",
    ),
]


RunsAsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs-as", help="Run ranks under the submitter's account: a YAML file of lines user: account. As root only."
    ),
]


PassEnvOption = Annotated[
    list[str] | None,
    typer.Option("--pass-env", help="Name of a variable of the agent that jobs get, too; may be repeated."),
]
GpuUuidsOption = Annotated[
    bool, typer.Option("--gpu-uuids", help="Tell jobs the UUIDs of their GPUs instead of the numbers.")
]
ScopesOption = Annotated[
    bool, typer.Option("--scopes", help="Put attempts into transient scopes of systemd instead of control groups.")
]


def agent_command(
    server: Annotated[
        list[str], typer.Option("--server", help="URL of the server; several are tried in turn, if it may move.")
    ],
    state: StateOption = None,
    node: NodeOption = None,
    shape: ShapeOption = "",
    join_token_file: JoinTokenFileOption = None,
    accelerator: AcceleratorOption = None,
    accelerators: AcceleratorsOption = None,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0.01, help="CPU cores for jobs; default: all.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory for jobs, such as 24GB; default: all.")] = None,
    market: MarketOption = "owned",
    zone: Annotated[str, typer.Option("--zone", help="Zone or data centre of the machine.")] = "default",
    nominal_speed: NominalSpeedOption = 1.0,
    emulated: EmulatedOption = False,
    speeds: SpeedsOption = None,
    rent_token_file: RentTokenFileOption = None,
    spot_notices: SpotNoticesOption = False,
    address: AddressOption = None,
    attempt_disk: AttemptDiskOption = None,
    runs_as: RunsAsOption = None,
    pass_env: PassEnvOption = None,
    gpu_uuids: GpuUuidsOption = False,
    scopes: ScopesOption = False,
) -> None:
    """Run the agent, which offers this machine to jobs, until SIGTERM or Ctrl-C; jobs that run outlive it."""
    from walras.spec.accelerator_names import canonical_accelerator

    if speeds is not None and not emulated:
        raise UserError("speeds are for emulated accelerators", field="--speeds", fix="add --emulated")
    try:
        count, types = _accelerators(accelerators)
        memory_bytes = parse_size(memory) if memory is not None else None
        attempt_disk_bytes = parse_size(attempt_disk) if attempt_disk is not None else 0
        accelerator = canonical_accelerator(accelerator) if accelerator is not None else None
    except ValueError as error:
        message, _, fix = str(error).partition("; ")
        raise UserError(message, field="--memory / --attempt-disk / --accelerator / --accelerators", fix=fix) from None
    from workers.agent.startup import AgentOptions, run_agent

    exit_with(
        run_agent(
            AgentOptions(
                servers=tuple(server),
                join_token_file=join_token_file,
                state=state or Path.home() / ".local" / "state" / "walras" / "agent",
                node_id=node or socket.gethostname(),
                shape=shape,
                accelerator=accelerator,
                accelerators=count,
                types=types,
                cpus=cpus,
                memory_bytes=memory_bytes,
                market=_known_market(market),
                zone=zone,
                nominal_speed=nominal_speed,
                emulated=emulated,
                speeds=speeds,
                rent_token_file=rent_token_file,
                spot_notices=spot_notices,
                address=address,
                attempt_disk_bytes=attempt_disk_bytes,
                runs_as=runs_as,
                pass_env=tuple(pass_env or ()),
                gpu_uuids=gpu_uuids,
                scopes=scopes,
            )
        )
    )


def _known_market(market: str) -> _Market:
    for known in _MARKETS:
        if market == known:
            return known
    raise UserError(f"{market[:40]!r} is no market", field="--market", fix=f"choose from {', '.join(_MARKETS)}")


def _accelerators(text: str | None) -> "tuple[int | None, tuple[TypeCount, ...]]":
    """Returns the number that `--accelerators` states, or the number of each type. Raises ValueError."""
    from walras.cluster import MOST_OF_TYPE, parse_type_counts

    if text is None or ":" in text:
        types = () if text is None else parse_type_counts(text)
        return None, types
    # int() accepts digits of other scripts, and is slow on long words.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_OF_TYPE)) else 0
    if not 1 <= number <= MOST_OF_TYPE:
        fix = f"write one from 1 to {MOST_OF_TYPE}, or the types: a100:2,t4:1"
        raise ValueError(f"{text[:60]!r} is no number of accelerators; {fix}")
    return number, ()


def demo_command(
    data: Annotated[
        Path | None, typer.Option("--data", help="A new folder for the run; default: a folder below demo-run.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database and the checkpoints.")] = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="Print plain lines instead of a live view.")] = False,
    page: Annotated[
        float | None,
        typer.Option("--page", metavar="MINUTES", min=0.1, help="Keep jobs coming for so long, to watch the web page."),
    ] = None,
) -> None:
    """Run a whole cluster on this machine: server, agents and real PyTorch jobs (about three minutes)."""
    if page is not None:
        from walras.demo.main import run_page_demo

        exit_with(run_page_demo(data=data, keep=keep, minutes=page))
        return
    from walras.demo.main import run_demo

    exit_with(run_demo(data=data, keep=keep, live=not no_live))


admin_commands = typer.Typer(help="Administer a server: tokens, machines, journal.", no_args_is_help=True)


@admin_commands.command("drain")
def admin_drain_command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of a machine as `walras nodes` has it.")],
    now: Annotated[bool, typer.Option("--now", help="Ask all jobs there to stop now, even if work is lost.")] = False,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Ask all jobs that still run after this time to stop, such as 2h.")
    ] = None,
    pool: Annotated[bool, typer.Option("--pool", help="NODE is the id of a pool, such as a100x8/spot/eu-1a.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Return a drained or quarantined machine to service.")] = False,
) -> None:
    """Drain a machine or a pool: no new jobs; those that can save their work move, the others run to their ends.

    Nothing is rented in a drained pool.
    """
    deadline_s = parse_length_option(deadline, "--deadline")
    if now and deadline_s is not None:
        raise UserError("--now and --deadline contradict each other", field="--deadline", fix="give one of them")
    if pool or off:
        refuse_options({"--now": now, "--deadline": deadline}, "is of the drain of a machine", "leave it out")
    if pool:
        changed = with_client(lambda client: client.change_pool(node, drained=not off))
        left = f"; {changed.machines} machines and {len(changed.jobs)} jobs are there still" if changed.machines else ""
        show_line(f"pool {changed.pool_id} takes " + ("jobs again" if off else f"no new jobs{left}"))
        return
    if off:
        with_client(lambda client: client.resume_node(node))
    else:
        with_client(lambda client: client.drain_node(node, now=now, deadline_s=deadline_s))
    show_line(f"node {node} takes " + ("jobs again" if off else "no new jobs"))


#: Slurm's commands, and the words that begin ours.
_SLURM_COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sbatch": ("submit",),
        "squeue": ("queue",),
        "scancel": ("cancel", "--yes"),
        "sinfo": ("nodes",),
        "sacct": ("queue", "--all"),
    }
)
#: Options of `sinfo` and `scancel` and what they are here, where "" says nothing. All others are refused.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "sinfo": {"-h": "--no-header", "--noheader": "--no-header", "--help": "--help"},
    "scancel": {
        "-u": "--user", "--user": "--user", "--me": "--me", "-t": "--state", "--state": "--state", "-n": "--name",
        "--name": "--name", "--jobname": "--name", "-A": "--project", "--account": "--project", "-Q": "", "--quiet": "",
        "-v": "", "--verbose": "", "-f": "", "--full": "", "--help": "--help",
    },
}  # fmt: skip
#: Those of ours that take a value.
_WITH_VALUE = frozenset({"--user", "--state", "--name", "--project"})
#: Listings that are answered in Slurm's own columns (`slurm_listings`), unless a person looks, with these options.
_LISTINGS = {"squeue": frozenset({"--me", "--start", "--help"}), "sacct": frozenset({"--help"})}
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
    if {"-V", "--version"} & set(words):
        return ["--version"]
    if name in _LISTINGS:
        is_looked_at = _LISTINGS[name].issuperset(words) and (sys.stdout.isatty() or {"--start", "--help"} & set(words))
        return [*_SLURM_COMMANDS[name], *words] if is_looked_at else [f"slurm-{name}", *words]
    return [*_SLURM_COMMANDS[name], *filter(None, (ours for word in words for ours in _translated(name, word)))]


def _translated(command: str, word: str) -> list[str]:
    """Returns our options of the same meaning: `-Qv` is two; `12_3` and `12_[1-3]` are jobs of a sweep."""
    option, equals, value = word.partition("=")
    is_long = word.startswith("--")
    if word.startswith("-") and not is_long:
        option, value = word[:2], word[2:]
    known = _OPTIONS[command]
    if not word.startswith("-"):
        return [re.sub(r"^(\d+)_\[?([\d,-]+)\]?$", r"\1[\2]", word)]
    takes_value = known.get(option) in _WITH_VALUE
    if option not in known or (is_long and equals and not takes_value):
        option = word if option in known else option
        fix = f"walras {_SLURM_COMMANDS[command][0]} has {', '.join(filter(None, sorted(set(known.values()))))}"
        raise UserError(f"{command}: {option[:40]} is not obeyed here", field=option[:40], fix=fix)
    if value and not takes_value:
        return [known[option], *_translated(command, "-" + value)]
    return [known[option] + ("=" + value if equals or value else "")]


def _words_of_sbatch(words: Sequence[str]) -> list[str]:
    """Returns the options of `walras submit`, one `--sbatch` for each option of Slurm, the script and its arguments."""
    from walras.spec.shell_scripts import ForeignReading
    from walras.spec.slurm_requests import leading_options

    reading = ForeignReading()
    placed = [(str(at), word) for at, word in enumerate(words) if word not in _OWN_OPTIONS]
    given, rest = leading_options("sbatch", placed, reading)
    if reading.refused:
        raise UserError(f"sbatch: {reading.refused[0].partition(': ')[2]}", fix="man sbatch")
    begin = int(rest[0][0]) if rest else len(words)  # what follows the script are its own arguments
    own, script = [word for word in words[:begin] if word in _OWN_OPTIONS], list(words[begin:])
    wrapped: str | None = None
    for each in given:
        if each.option.name == "wrap":
            wrapped = each.value
        elif each.option.name in _SBATCH_ANSWERS:
            own.append(_SBATCH_ANSWERS[each.option.name])
        else:
            own.append(f"--sbatch=--{each.option.name}" + (f"={each.value}" if each.value else ""))
    if wrapped is not None:
        if script:
            raise UserError(f"{script[0][:80]}: a script beside --wrap", field="--wrap", fix="give one of the two")
        return ["--like-sbatch", *own, f"--wrap={wrapped}", "wrap"]
    return ["--like-sbatch", *own, *(script or ["-"])[:1], *(["--", *script[1:]] if script[1:] else [])]


DataOption = Annotated[Path, typer.Option("--data", help="Data folder of the server.")]


def admin_backup_command(
    data: DataOption,
    to: Annotated[Path, typer.Argument(metavar="TO", help="A new folder for the backup.")],
    logs: Annotated[bool, typer.Option("--logs", help="Copy what jobs wrote too.")] = False,
) -> None:
    """Back up a server, running or stopped: database, keys and tokens. Keep it where only you can read it."""
    from scheduler.live.store.backup import back_up

    made = back_up(data, to, logs=logs)
    show_line(f"{made.path}: {', '.join(made.files)}; jobs up to number {made.last_job_id}")


def admin_restore_command(
    backup: Annotated[Path, typer.Argument(metavar="FROM", help="A folder made by `walras admin backup`.")],
    data: DataOption,
    replace: Annotated[bool, typer.Option("--replace", help="Put the database that is there aside.")] = False,
) -> None:
    """Restore a backup into a data folder. The server must be stopped; numbers of jobs stay as they are."""
    from scheduler.live.store.backup import restore

    made = restore(backup, data, replace=replace)
    show_line(f"{data}: restored, with jobs up to number {made.last_job_id}; start the server")
    for each in made.may_be_back:
        fix = "see `walras admin list tokens`, `users`, `roles`, `projects`, `pools`, and `walras policy show`"
        warn(f"taken away since the backup, may be back: {each}", fix)


def admin_check_command(
    data: DataOption,
    replay: Annotated[
        bool, typer.Option("--replay", help="Replay the journal through a fresh scheduler and compare the commands.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Let a stopped server start although acknowledged commits are missing and no backup is newer.",
        ),
    ] = False,
) -> None:
    """Check a data folder whole: pages, journal, keys, disk. Exit code 1 if something is wrong."""
    from scheduler.live.store.backup import accept_loss, find_damage

    if accept:
        refuse_options({"--replay": replay}, "checks, and --accept-loss changes the folder", "give one of them")
        show_line(f"{data}: a new incarnation without {accept_loss(data)} lost commits; start the server")
        return
    if replay:
        _replay(data)
        return
    found = find_damage(data)
    for each in found:
        warn(each)
    if found:
        raise typer.Exit(1)
    show_line(f"{data}: nothing is wrong")


def _replay(data: Path) -> None:
    from scheduler.live.store.event_journal import replay_folder

    report = replay_folder(data)
    show_line(f"{report.events} events, {report.commands} commands, {report.generations} starts of the server")
    if not report.identical:
        first = report.differences[0]
        warn(f"{report.different} events differ, first {first.event.type} at {first.event.at:.3f} s")
        raise typer.Exit(1)
    show_line("identical")


def admin_recover_token_command(
    data: DataOption, user: Annotated[str, typer.Option("--user", help="The user whom the token identifies.")] = "admin"
) -> None:
    """Make a token of role admin without a server's help, where every other was lost. The server must be stopped."""
    from scheduler.live.auth.access_control import RECOVERED, UserCaller, UserRole, new_user_token
    from scheduler.live.store.backup import open_stopped
    from scheduler.live.store.data_folder import DataFolder, write_private
    from scheduler.live.store.store_interface import WriteBatch
    from walras.resources.people import ALL_PROJECTS

    token, row = new_user_token(UserCaller(user, UserRole.ADMIN, (ALL_PROJECTS,)), RECOVERED)
    store = open_stopped(data)
    try:
        store.commit(WriteBatch(row))
    finally:
        store.close()
    path = DataFolder(data).admin_token_file
    write_private(path, token + "\n")
    show_line(f"{path} holds a new token of {user}")


def admin_prune_command(
    data: Annotated[Path | None, typer.Option("--data", help="Data folder of the server.")] = None,
    jobs: Annotated[str, typer.Option("--jobs", help="Keep jobs for this long after their end.")] = "400d",
    logs: Annotated[str, typer.Option("--logs", help="Keep their logs for this long.")] = "90d",
    checkpoints: Annotated[
        str | None, typer.Option("--checkpoints", help="Keep their own checkpoints for this long; default: for ever.")
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option("--journal", help="Keep what the journal says of starts this long ago; default: for ever."),
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Ask the server to delete code, results and checkpoints of no job.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --content: only say what would be deleted.")] = False,
) -> None:
    """Delete old records of ended jobs; the server may run meanwhile. The ledger of money is kept."""
    if content:
        refuse_options({"--data": data}, "is for records, and --content asks the server", "give one of them")
        older_s = parse_length_option(checkpoints, "--checkpoints")
        _prune_content(dry_run=dry_run, checkpoints_older_s=older_s)
        return
    if data is None or dry_run:
        raise UserError("what is to be pruned?", field="--data", fix="give --data DIR, or --content [--dry-run]")
    from scheduler.live.store.retention import prune

    jobs_s, logs_s = parse_length_option(jobs, "--jobs"), parse_length_option(logs, "--logs")
    told = prune(
        data,
        jobs_older_s=jobs_s,
        logs_older_s=logs_s,
        checkpoints_older_s=parse_length_option(checkpoints, "--checkpoints"),
        journal_older_s=parse_length_option(journal, "--journal"),
    )
    show_line(f"deleted {told.jobs} ended jobs, the logs of {told.logs}, the checkpoints of {told.checkpoints}")
    if checkpoints is not None:
        show_line(f"of those in stores: ask the server, `walras admin prune --content --checkpoints {checkpoints}`")
    if journal is not None:
        show_line(f"deleted {told.journal_rows} rows of the journal")


def _prune_content(*, dry_run: bool, checkpoints_older_s: float | None) -> None:
    """Ask the server to. Raises ClusterError where an object store did not answer, after telling of the others."""
    pruned = with_client(lambda client: client.prune_content(dry_run=dry_run, checkpoints_older_s=checkpoints_older_s))
    did = "would delete" if dry_run else "deleted"
    show_line(f"{did} {format_size(pruned.size_bytes)} of content that nothing refers to")
    for holder, size_bytes in pruned.holders.items():
        show_line(f"  {holder}: {format_size(size_bytes)}")
    if checkpoints_older_s is not None:
        show_line(f"{did} {pruned.objects:,} objects in object stores")
    if silent := pruned.unanswered:
        raise ClusterError(f"{len(silent)} places did not answer, the first is {silent[0]}; the server's log says why")


def admin_to_postgresql_command(
    data: DataOption,
    store: Annotated[
        str, typer.Option("--store", envvar="WALRAS_STORE", help="An empty database: postgresql://USER@HOST/DB.")
    ],
) -> None:
    """Copy the SQLite database of a stopped server into PostgreSQL; `walras server --store` goes on from there."""
    from scheduler.live.store.postgres_store import copy_into_postgres, wait_for_leadership
    from scheduler.live.store.sqlite_store import FolderLock

    if not (data / "walras.db").is_file():
        raise NotFound(f"{data} holds no walras.db", field="--data", fix="name the folder given to `walras server`")
    lock = FolderLock(data)
    try:
        leadership = wait_for_leadership(store)
        try:
            rows = copy_into_postgres(data, leadership)
        finally:
            leadership.release()
    finally:
        lock.release()
    show_line(f"copied {rows} rows; keep {data}: logs, code, results and keys stay there")


DATA_FOLDER_COMMANDS: dict[str, Callable[..., None]] = {
    "prune": admin_prune_command,
    "to-postgresql": admin_to_postgresql_command,
    "backup": admin_backup_command,
    "restore": admin_restore_command,
    "check": admin_check_command,
    "recover-token": admin_recover_token_command,
}
