"""A command's connection to its server: which server, with which token, and one piece of asynchronous work on it.

Only this file reads the environment and the user's own settings: `WALRAS_*` variables come first, then
`~/.config/walras/config.yaml`. It also remembers the job submitted last, for the word `last`.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from walras.cli.arguments import parse_job_id, parse_job_ids
from walras.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from walras.client import Client


_LONGEST_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The address of the server, and the token to use."""

    url: str
    token: str


def server_access(environment: "Mapping[str, str] | None" = None, home: Path | None = None) -> ServerAccess:
    """Returns the settings in force: `WALRAS_*` variables first, then `~/.config/walras/config.yaml`.

    Raises UserError if no server is named anywhere, ConfigError for an unreadable settings or token file.
    """
    environment = os.environ if environment is None else environment
    written = _settings_file((home or Path.home()) / ".config" / "walras" / "config.yaml")
    url = environment.get("WALRAS_SERVER") or written.get("server", "")
    if not url:
        raise UserError(
            "no server is named",
            field="WALRAS_SERVER",
            fix="export WALRAS_SERVER=http://HOST:PORT; `walras server --data DIR` starts one and prints its address",
        )
    token = environment.get("WALRAS_TOKEN", "")
    token_file = environment.get("WALRAS_TOKEN_FILE") or written.get("token_file", "")
    if not token and token_file:
        token = read_token(Path(token_file).expanduser())
    return ServerAccess(url, token.strip())


def read_token(path: Path) -> str:
    """Returns the single line of a token file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_TOKEN_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", field="WALRAS_TOKEN_FILE", fix="check the path") from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text.split()) != 1 or len(text) > _LONGEST_TOKEN_BYTES:
        raise ConfigError(f"{path} does not hold one token", field="WALRAS_TOKEN_FILE", fix="one line, the token alone")
    return text


def _settings_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    from walras.spec.file_model import load_mapping, nearest_word

    known = {"server", "token_file"}
    written = load_mapping(path)
    for name, value in written.items():
        if name not in known or not isinstance(value, str):
            meant = nearest_word(str(name), known)
            raise ConfigError(
                f"{path}: {name}: unknown field, or not text",
                field=str(name),
                fix=f"did you mean `{meant}`?" if meant and name not in known else "known: server, token_file",
            )
    return written


# ------------------------------------------------------------------------------------------------- the word `last`


def _last_file(home: Path | None) -> Path:
    return (home or Path.home()) / ".local" / "state" / "walras" / "last.json"


def remember_submitted_job(url: str, job_id: int, home: Path | None = None) -> None:
    """Notes the newest job submitted from this account, for the word `last`; does nothing in a read-only home."""
    path = _last_file(home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"server": url, "job": job_id}))
    except OSError:
        return


def last_submitted_job(url: str, home: Path | None = None) -> int:
    """Returns the newest job submitted from this account to this server. Raises UserError if none is known."""
    try:
        noted = json.loads(_last_file(home).read_text())
        if noted["server"] == url:
            return int(noted["job"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"no job was submitted from here to {url}", field="last", fix="give the job's number")


ResultT = TypeVar("ResultT")


#: Tries of a command that waits in any case: a minute or so, in which a server that restarts is back.
RESTART_TRIES = 16


def with_client(work: "Callable[[Client], Awaitable[ResultT]]", *, stays: bool = False) -> ResultT:
    """Returns the result of `work` with an open client. Only this function imports the client: `--help` stays quick.

    `stays`: once the server has answered, retry for as long as a restart may take.
    """
    from walras.client import Client
    from walras.transport import Patience

    server = server_access()

    async def whole() -> ResultT:
        patience = None
        if stays:
            async with Client(server.url, server.token) as client:
                await client.health()
            patience = Patience(tries=RESTART_TRIES)
        async with Client(server.url, server.token, patience=patience) as client:
            return await work(client)

    return asyncio.run(whole())


def newest_job_here() -> int:
    """Returns the job that the word `last` names."""
    return last_submitted_job(server_access().url)


def job_ids_of(words: list[str]) -> list[int]:
    """Returns the job numbers that the words of a command line name."""
    from walras.cli.sweep_words import find_named_jobs, names_jobs_of_sweep

    if not any(map(names_jobs_of_sweep, words)):
        return parse_job_ids(words, newest_job_here)
    named = with_client(lambda client: find_named_jobs(client, words, newest_job_here))
    return list(dict.fromkeys(job_id for each in named for job_id in each.ids))


def job_ids_named(words: list[str]) -> frozenset[int]:
    """Returns the job numbers that stand there as numbers: of a sweep, the whole sweep is meant by its first."""
    from walras.cli.sweep_words import names_jobs_of_sweep

    return frozenset(parse_job_ids([word for word in words if not names_jobs_of_sweep(word)], newest_job_here))


def job_id_of(word: str) -> int:
    """Returns the one job number that a word names."""
    found = job_ids_of([word])
    return parse_job_id(word if len(found) != 1 else str(found[0]), newest_job_here)
