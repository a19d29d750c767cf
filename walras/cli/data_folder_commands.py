"""`walras admin backup`, `restore`, `check`, `accept-loss`, `recover-token`: care for a server's data folder.

They work on the folder itself, on the machine of the server, and need no token: whoever can read its keys is its
administrator.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from walras.cli.arguments import parse_length_option
from walras.cli.terminal_output import show_line, warn
from walras.errors import NotFound

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
    """Restore a backup as a new incarnation of its cluster. The server must be stopped; numbers stay as they are."""
    from scheduler.live.store.backup import restore

    made = restore(backup, data, replace=replace)
    show_line(f"{data}: restored, with jobs up to number {made.last_job_id}; start the server")


def admin_check_command(data: DataOption) -> None:
    """Check a data folder whole: pages, journal, keys, disk. Exit code 1 if something is wrong."""
    from scheduler.live.store.backup import find_damage

    found = find_damage(data)
    for each in found:
        warn(each)
    if found:
        raise typer.Exit(1)
    show_line(f"{data}: nothing is wrong")


def admin_accept_loss_command(data: DataOption) -> None:
    """Let a server start although acknowledged commits are missing, where no backup is newer. It must be stopped."""
    from scheduler.live.store.backup import accept_loss

    show_line(f"{data}: a new incarnation without {accept_loss(data)} lost commits; start the server")


def admin_recover_token_command(
    data: DataOption,
    user: Annotated[str, typer.Option("--user", help="The user whom the token identifies.")] = "admin",
) -> None:
    """Make a token of role admin without a server's help, where every other was lost. The server must be stopped."""
    from scheduler.live.auth.access_control import ALL_PROJECTS, RECOVERED, UserRole, new_user_token
    from scheduler.live.store.backup import open_stopped
    from scheduler.live.store.data_folder import DataFolder, write_private
    from scheduler.live.store.store_interface import WriteBatch

    token, row = new_user_token(user, UserRole.ADMIN, (ALL_PROJECTS,), RECOVERED)
    store = open_stopped(data)
    try:
        store.commit(WriteBatch(tokens=[row]))
    finally:
        store.close()
    path = DataFolder(data).admin_token_file
    write_private(path, token + "\n")
    show_line(f"{path} holds a new token of {user}")


def admin_prune_command(
    data: DataOption,
    jobs: Annotated[str, typer.Option("--jobs", help="Keep jobs for this long after their end.")] = "400d",
    logs: Annotated[str, typer.Option("--logs", help="Keep their logs for this long.")] = "90d",
    checkpoints: Annotated[
        str | None, typer.Option("--checkpoints", help="Keep their own checkpoints for this long; default: for ever.")
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option("--journal", help="Keep what the journal says of starts this long ago; default: for ever."),
    ] = None,
) -> None:
    """Delete old records of ended jobs; the server may run meanwhile. The ledger of money is kept."""
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
    if journal is not None:
        show_line(f"deleted {told.journal_rows} rows of the journal")


def admin_to_postgresql_command(
    data: DataOption,
    store: Annotated[
        str, typer.Option("--store", envvar="WALRAS_STORE", help="An empty database: postgresql://USER@HOST/DB.")
    ],
) -> None:
    """Copy the SQLite database of a stopped server into PostgreSQL; `walras server --store` goes on from there."""
    from scheduler.live.store.database_file import FolderLock
    from scheduler.live.store.leadership import wait_for_leadership
    from scheduler.live.store.postgres_store import copy_into_postgres

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
    "accept-loss": admin_accept_loss_command,
    "recover-token": admin_recover_token_command,
}
