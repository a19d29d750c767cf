"""The `walras` command: its sub-commands, and what surrounds each of them.

    errors      become messages and exit codes: 0 done, 1 something failed, 2 the user's input, 75 no server answers,
                130 Ctrl-C; `wait` adds its own
    imports     of the packages with generic names (`scheduler`, `optimizer`, `workers`, `simulator`) are checked,
                because people have a `scheduler.py` of their own, and a PYTHONPATH that leads to it: the first import
                of one of these names makes sure that all of them lead to the folder that holds `walras` itself
    output      into a pipe whose reader has enough (`| head`) ends the command quietly

The command line stands above those packages and imports them inside the functions that need them, so that `walras
--help` and `walras queue` load nothing heavy: this file and what it imports load neither the client nor the models.

Commands have other names too: those of the release before, and those that people type out of habit.
"""

import contextlib
import errno
import importlib.metadata
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import walras
from walras.cli.arguments import OTHERS_OUTPUT, settings_command
from walras.cli.job_commands import (
    explain_command,
    fetch_command,
    queue_command,
    show_command,
    whoami_command,
)
from walras.cli.job_control_commands import (
    cancel_command,
    hold_command,
    logs_command,
    notify_command,
    update_command,
    wait_command,
)
from walras.cli.machine_commands import agents_commands, nodes_command, top_command
from walras.cli.mcp_commands import mcp_command
from walras.cli.money_commands import money_command
from walras.cli.operator_commands import (
    DATA_FOLDER_COMMANDS,
    admin_commands,
    agent_command,
    demo_command,
    init_command,
    server_command,
    slurm_links_command,
    words_of_slurm_command,
)
from walras.cli.plan_commands import plan_capacity_command, plan_spot_command
from walras.cli.policy_commands import policy_commands
from walras.cli.price_commands import prices_command
from walras.cli.profile_commands import profile_commands
from walras.cli.recommend_commands import recommend_command
from walras.cli.remote_commands import exec_command
from walras.cli.resource_commands import ResourceCommand, add_command, list_command, remove_command, set_command
from walras.cli.simulate_commands import simulate_commands, what_if_command, workload_commands
from walras.cli.slurm_listings import SLURM_LISTINGS
from walras.cli.solve_commands import solve_command
from walras.cli.submit_commands import rerun_command, submit_command
from walras.cli.terminal_output import exit_at_interrupt, raise_at_interrupt, say_interrupted, show_line, warn
from walras.errors import ServerUnreachable, UserError, WalrasError

#: Commands of the release before, and the words that they are written with now; `current_words` translates them.
RENAMED = {
    "login": "whoami --login",
    "jobs": "queue --all", "release": "hold --off", "forward": "exec --forward", "share": "money --shares",
    "reserve": "admin add reservation", "mcp": "admin mcp", "init": "admin init", "slurm-links": "admin slurm-links",
    "prices": "cloud prices", "recommend": "cloud recommend", "profile": "cloud profile", "plan": "cloud",
    "whatif": "simulate whatif", "simulate worlds": "simulate workload list", "workload": "simulate workload",
    "solve": "policy solve", "policy history": "policy show --history", "policy check": "simulate whatif --policy",
    "policy rollback": "policy apply --rollback", "notify add": "notify", "notify list": "notify",
    "notify remove": "notify --remove", "notify test": "notify --test", "admin resume": "admin drain --off",
    "admin forget": "admin remove node", "admin replay": "admin check --replay",
    "admin accept-loss": "admin check --accept-loss", "admin pool drain": "admin drain --pool",
    "admin reserve": "admin add reservation", "admin reserve --cancel": "admin remove reservation",
    "admin reserve --all": "admin list reservations all=true", "admin audit": "admin list audit",
    "admin credit": "admin add credit", "admin credit --list": "admin list credits",
    "admin token create": "admin add token", "admin token revoke": "admin remove token",
    **{
        f"admin {kind} {verb}": f"admin {verb} {kind}{'s' if verb == 'list' else ''}"
        for kind in ("user", "project", "role", "token", "pool")
        for verb in ("list", "add", "set", "remove")
    },
}  # fmt: skip

#: Words that people type out of habit, of other schedulers or of other releases, and what does that here.
WORDS_OF_OTHERS = {
    # what is asked about jobs
    "status": "queue", "ps": "queue", "squeue": "queue", "qstat": "queue", "eta": "queue", "pending": "queue",
    "ls": "queue --all", "list": "queue --all", "history": "queue --all", "sacct": "queue --all", "job": "show",
    "describe": "show", "info": "show", "get": "show", "inspect": "show", "note": "show", "why": "explain",
    "events": "explain", "sprio": "explain", "tail": "logs -f", "log": "logs", "output": "logs", "outputs": "fetch",
    "download": "fetch", "pull": "fetch", "cp": "fetch", "rsync": "fetch", "quote": "submit --quote",
    # what is done to them
    "run": "submit", "launch": "submit", "sbatch": "submit", "qsub": "submit", "srun": "submit", "create": "submit",
    "apply": "submit", "salloc": "submit", "kill": "cancel", "stop": "cancel", "delete": "cancel", "rm": "cancel",
    "down": "cancel", "abort": "cancel", "scancel": "cancel", "qdel": "cancel", "suspend": "hold", "pause": "hold",
    "resume": "hold --off", "unhold": "hold --off", "retry": "rerun", "resubmit": "rerun", "requeue": "rerun",
    "restart": "rerun", "scontrol": "update", "edit": "update", "modify": "update", "priority": "update --priority",
    "attach": "exec", "ssh": "exec", "shell": "exec", "debug": "exec", "port-forward": "exec JOB --forward PORT",
    # the cluster, its people and its money
    "sinfo": "nodes", "hosts": "nodes", "machines": "nodes", "gpus": "nodes", "pools": "admin list pools",
    "price": "cloud prices", "market": "cloud prices", "worth": "cloud prices --worth",
    "offers": "cloud prices --offers", "catalog": "cloud prices --offers", "cost": "money", "usage": "money",
    "bill": "money", "billing": "money", "report": "money --report", "sreport": "money --report",
    "budget": "money --budgets", "budgets": "money --budgets", "quota": "money --shares",
    "fairshare": "money --shares", "sshare": "money --shares", "reservation": "admin list reservations",
    "reservations": "admin list reservations", "book": "admin add reservation", "dashboard": "top", "web": "top",
    "ui": "top", "watch": "top", "monitor": "top", "me": "whoami", "user": "admin list users",
    "users": "admin list users", "projects": "admin list projects", "token": "admin add token",
    "tokens": "admin list tokens", "agents": "admin agents", "drain": "admin drain", "cordon": "admin drain",
    "uncordon": "admin drain --off", "audit": "admin list audit", "backup": "admin backup", "restore": "admin restore",
    "sacctmgr": "admin",
    # Walras itself, and what it studies
    "start": "server", "up": "server", "join": "agent", "worker": "agent", "config": "admin init",
    "setup": "admin init", "help": "--help", "version": "--version", "simulation": "simulate", "sim": "simulate",
    "bench": "simulate bench", "compare": "simulate compare", "policies": "policy list", "shadow": "policy try",
    "search": "cloud profile run", "check": "policy solve --answer",
}  # fmt: skip


def current_words(words: Sequence[str]) -> tuple[list[str], str]:
    """Returns a command line with the command's present name, and its former name where that was typed, else ""."""
    for length in (3, 2, 1):
        former = " ".join(words[:length])
        if former in RENAMED:
            return [*RENAMED[former].split(), *words[length:]], former
    return list(words), ""


GENERIC_NAMES = ("scheduler", "optimizer", "workers", "simulator")
_OURS = Path(walras.__file__).resolve().parent.parent


@contextmanager
def own_packages() -> Iterator[None]:
    """Guards imports: no file of somebody else runs in place of our packages, and failures say what is missing.

    Raises UserError naming the file that hides one of ours, or the package that this installation lacks.
    """
    check = _ShadowCheck()
    sys.meta_path.insert(0, check)
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        raise _missing(error, error.name) from None
    finally:
        sys.meta_path.remove(check)


class _ShadowCheck(MetaPathFinder):
    """Checks all generic names once, at the first import of one of them. It never finds a module itself."""

    def __init__(self) -> None:
        self._is_done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname in GENERIC_NAMES and not self._is_done:
            self._is_done = True  # set before the search for the packages below, which calls this finder again
            for name in GENERIC_NAMES:
                _check_ours(name)
            _check_distributions()
        return None


def _check_ours(root: str) -> None:
    """Finds the package without importing it, and raises UserError if it is not ours."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        raise UserError(f"the package {root!r} is missing beside {_OURS}/walras", fix="reinstall walras")
    places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    found = places[0] if places else Path(spec.origin or "?").resolve()
    if (_OURS / root).resolve() not in places:
        raise UserError(
            f"{root!r} would be {found}, not ours ({_OURS / root}); PYTHONPATH or the current folder puts it first",
            fix="unset PYTHONPATH, or start from another folder",
        )


def _check_distributions() -> None:
    """Raises UserError if another distribution has written files into one of our packages.

    Only distributions in the folder of `walras` itself are read: others cannot write there, and are told from ours by
    their place.
    """
    for found in importlib.metadata.distributions(path=[str(_OURS)]):
        lines = "\n" + (found.read_text("RECORD") or found.read_text("installed-files.txt") or "").replace(
            "\n../", "\n"
        )
        roots = [root for root in (*GENERIC_NAMES, "configs") if f"\n{root}/" in lines]
        if roots and (name := found.metadata["Name"]) != walras.__name__:
            raise UserError(
                f"{name} {found.version} is installed at {_OURS} too and brings {', '.join(roots)}, as Walras does: "
                "the files of the two are mixed",
                fix="install Walras in an environment of its own: python -m venv DIR",
            )


def _missing(error: ModuleNotFoundError, name: str) -> UserError:
    """Returns the error for a failed import of `name`: a part of Walras, or a third-party package."""
    root = name.split(".")[0]
    if root in (*GENERIC_NAMES, "walras"):
        return UserError(f"this installation has no {name}", fix="install the whole of Walras")
    return UserError(f"{_importer(error)} needs {root}, which is not installed", fix="pip install 'walras[all]'")


def _importer(error: ModuleNotFoundError) -> str:
    """Returns the name of the module whose import failed, or of the module of the importing function."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    imported = next((frame for frame in frames if frame.f_code.co_name == "<module>"), frames[-1])
    return str(imported.f_globals["__name__"])


class _PipedOutput(io.FileIO):
    """Standard output that raises SystemExit(0) when its reader has closed the pipe."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Output that is still buffered has no reader: not now, and not at interpreter exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise SystemExit(0) from None


@contextlib.contextmanager
def quiet_broken_pipe() -> Iterator[None]:
    """Ends the command quietly when the reader of standard output has gone; flushes what was written at the end."""
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):  # closed, or not the process's own
        yield
        return
    given.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_PipedOutput(given.fileno(), "w", closefd=False)),
        encoding=given.encoding,
        errors=given.errors,
        line_buffering=given.line_buffering or given.write_through,
    )
    try:
        yield
    finally:
        # The command is over: the code that it ends with stays what it is.
        with contextlib.suppress(SystemExit):
            sys.stdout.flush()


_EVERY_DAY = ("submit", "queue", "show", "explain", "logs", "cancel", "fetch", "exec")
_OF_MACHINES = ("server", "agent")
EXIT_FAILED, EXIT_USER, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 75, 130


class ErrorsToExitCodes(TyperGroup):
    """The outermost group: turns what a command raises into a message and an exit code, never a traceback for users."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses a command line, after a former name of a command is replaced and noted on standard error."""
        words, former = current_words(args)
        if former:
            warn(f"walras: `walras {former}` is now `walras {RENAMED[former]}`")
        return super().parse_args(ctx, words)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Finds a command. Raises UserError naming ours for a word that other schedulers have for it."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in WORDS_OF_OTHERS:
            raise UserError(f"there is no `walras {cmd_name}`", fix=f"walras {WORDS_OF_OTHERS[cmd_name]}")
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands under what they are for: those of every day first, groups last."""
        names = self.list_commands(ctx)
        groups = [*_OF_MACHINES, *(name for name in names if hasattr(self.commands[name], "commands"))]
        others = [name for name in names if name not in groups and name not in _EVERY_DAY]
        limit = formatter.width - 6 - max(map(len, (*_EVERY_DAY, *groups)))
        for title, chosen in (("Every day", _EVERY_DAY), ("Also", others), ("What runs a cluster, and groups", groups)):
            with formatter.section(title):
                shown = [(name, self.commands[name]) for name in chosen if not self.commands[name].hidden]
                formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in shown])

    def invoke(self, ctx: Any) -> Any:
        try:
            with own_packages(), raise_at_interrupt(), _output_named():
                return super().invoke(ctx)
        except UserError as error:
            field = [f"field: {error.field}"] if error.field and error.field not in str(error) else []
            warn(f"walras: {error}", *field, *([f"fix: {error.fix}"] if error.fix else []))
            raise typer.Exit(EXIT_USER) from None
        except ServerUnreachable as error:
            warn(f"walras: {error}", "fix: check WALRAS_SERVER; `walras server --data DIR` starts a server")
            raise typer.Exit(EXIT_UNREACHABLE) from None
        except WalrasError as error:
            warn(f"walras: {error}")
            raise typer.Exit(EXIT_FAILED) from None
        except OSError as error:
            # A missing path or a full disk, whose error names no file, is the user's; any other OSError without a file
            # is a mistake of ours, and keeps its traceback.
            if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            where = f"{error.filename}: " if error.filename is not None else ""
            warn(f"walras: {where}{error.strerror}", "fix: check the path, its permissions and its disk")
            raise typer.Exit(EXIT_USER) from None
        except KeyboardInterrupt as interrupt:
            if not _has_begun(interrupt):
                say_interrupted()
            raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _output_named() -> Iterator[None]:
    """Raises UserError naming `-o json` where a command that has it refuses another program's option for it."""
    try:
        yield
    except Exception as error:  # which class it is depends on the version of typer
        option, refused = getattr(error, "option_name", ""), getattr(error, "ctx", None)
        if option in OTHERS_OUTPUT and refused and any("--output" in each.opts for each in refused.command.params):
            raise UserError(f"`{refused.command_path}` has no {option}", fix="write -o json") from None
        raise


def _has_begun(interrupt: KeyboardInterrupt) -> bool:
    """Tells whether a command was at work: one that follows logs or shows a listing says nothing when it is left."""
    names = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(interrupt.__traceback__))
    return any(name.startswith("walras.") and name != __name__ for name in names)


app = typer.Typer(
    name="walras",
    cls=ErrorsToExitCodes,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version_and_done(wanted: bool) -> None:
    if wanted:
        show_line(walras.__version__)
        raise typer.Exit


@app.callback(help="Schedule PyTorch jobs on heterogeneous accelerators, by market prices.")
def _before_every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version_and_done, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What may stand before a command."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "submit": submit_command,
    "queue": queue_command,
    "show": show_command,
    "explain": explain_command,
    "logs": logs_command,
    "cancel": cancel_command,
    "fetch": fetch_command,
    "exec": exec_command,
    "wait": wait_command,
    "hold": hold_command,
    "update": update_command,
    "rerun": rerun_command,
    "top": top_command,
    "nodes": nodes_command,
    "money": money_command,
    "whoami": whoami_command,
    "notify": notify_command,
    "server": server_command,
    "agent": agent_command,
    "demo": demo_command,
}
_ADMIN_COMMANDS: dict[str, Callable[..., None]] = {
    **DATA_FOLDER_COMMANDS,
    "init": init_command,
    "mcp": mcp_command,
    "slurm-links": slurm_links_command,
}
_RESOURCE_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_command,
    "add": add_command,
    "set": set_command,
    "remove": remove_command,
}
_CLOUD_COMMANDS: dict[str, Callable[..., None]] = {
    "prices": prices_command,
    "recommend": recommend_command,
    "spot": plan_spot_command,
    "capacity": plan_capacity_command,
}
cloud_commands = typer.Typer(help="Choose machines: prices, recommendations, plans, speeds.", no_args_is_help=True)
#: Models of the fields of `--set`, by command.
_SETTINGS = {
    "money": "BillSettings", "recommend": "MachineSettings", "spot": "SpotSettings", "capacity": "CapacitySettings",
}  # fmt: skip
for _group, _commands in (
    (app, _COMMANDS),
    (admin_commands, _ADMIN_COMMANDS),
    (cloud_commands, _CLOUD_COMMANDS),
    (simulate_commands, {"whatif": what_if_command}),
    (policy_commands, {"solve": solve_command}),
):
    for _name, _command in _commands.items():
        _kind = settings_command(f"walras.cli.command_fields:{_SETTINGS[_name]}") if _name in _SETTINGS else None
        _group.command(_name, cls=_kind)(_command)
for _name, _command in SLURM_LISTINGS.items():
    app.command(_name, hidden=True, context_settings={"help_option_names": ["--help"]})(_command)
admin_commands.add_typer(agents_commands, name="agents")
for _name, _command in _RESOURCE_COMMANDS.items():
    admin_commands.command(_name, cls=ResourceCommand)(_command)
cloud_commands.add_typer(profile_commands, name="profile")
simulate_commands.add_typer(workload_commands, name="workload")
app.add_typer(admin_commands, name="admin")
app.add_typer(simulate_commands, name="simulate")
app.add_typer(policy_commands, name="policy")
app.add_typer(cloud_commands, name="cloud")


def _words_of_call(argv: Sequence[str]) -> list[str]:
    """Returns the words of this command line; a link with a name of Slurm's stands for one of ours."""
    try:
        return words_of_slurm_command(Path(argv[0]).name, argv[1:]) or list(argv[1:])
    except UserError as error:
        warn(f"walras: {error}", *([f"fix: {error.fix}"] if error.fix else []))
        sys.exit(EXIT_USER)


def main() -> None:
    """The console script."""
    with quiet_broken_pipe(), exit_at_interrupt():
        app(args=_words_of_call(sys.argv))
