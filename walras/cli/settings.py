"""Which server, with which token: the only place of Walras that reads the environment and the user's own settings."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from walras.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Access:
    """Where the server is, and the token that opens it."""

    url: str
    token: str


def access(environment: "Mapping[str, str] | None" = None, home: Path | None = None) -> Access:
    """The settings in force: `WALRAS_*` variables first, then `~/.config/walras/config.yaml`.

    Raises UserError if no server is named anywhere, ConfigError for a settings or token file that does not read.
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
    return Access(url, token.strip())


def read_token(path: Path) -> str:
    """The one line of a token file. Raises ConfigError."""
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
    from walras.checking import nearest
    from walras.config import load_mapping

    known = {"server", "token_file"}
    written = load_mapping(path)
    for name, value in written.items():
        if name not in known or not isinstance(value, str):
            meant = nearest(str(name), known)
            raise ConfigError(
                f"{path}: {name}: unknown field, or not text",
                field=str(name),
                fix=f"did you mean `{meant}`?" if meant and name not in known else "known: server, token_file",
            )
    return written


# ------------------------------------------------------------------------------------------------- the word `last`


def _last_file(home: Path | None) -> Path:
    return (home or Path.home()) / ".local" / "state" / "walras" / "last.json"


def remember_last(url: str, job_id: int, home: Path | None = None) -> None:
    """Note the newest job submitted from this account, for the word `last`. A read-only home is no harm."""
    path = _last_file(home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"server": url, "job": job_id}))
    except OSError:
        return


def last_job(url: str, home: Path | None = None) -> int:
    """The newest job submitted from this account to this server. Raises UserError if none is known."""
    try:
        noted = json.loads(_last_file(home).read_text())
        if noted["server"] == url:
            return int(noted["job"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"no job was submitted from here to {url}", field="last", fix="give the job's number")
