"""Which server to talk to, and with which token: `WALRAS_*` variables first, then `~/.config/walras/config.yaml`.

The command line, and `walras.Client()` without arguments, ask here; nothing else reads these variables and this file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from walras.errors import ConfigError, UserError

_LONGEST_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The address of the server, and the token to use."""

    url: str
    token: str


def server_access(environment: Mapping[str, str] | None = None, home: Path | None = None) -> ServerAccess:
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
