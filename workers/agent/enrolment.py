"""Becoming a known machine: the join token is shown once, the agent's own credential is kept (mode 0600)."""

import json
from dataclasses import dataclass
from pathlib import Path

from walras.errors import ConfigError
from walras.wire import Register, Registered
from workers.agent.server_client import ServerClient
from workers.journal import write_durably

CREDENTIAL_FILE = "credential.json"


@dataclass
class Enrolment:
    state: Path
    message: Register
    join_token_file: Path | None
    address: str
    #: As the server asked for at registration.
    heartbeat_s: float = 1.0

    @property
    def node_id(self) -> str:
        return self.message.node_id

    async def ensure(self, client: ServerClient) -> None:
        """Give the client its credential: the kept one if it was given for the same facts, else a new one.

        Raises:
            ServerUnreachable: try again.
            Forbidden: the join token is not accepted.
            ConfigError: there is no join token to show.
        """
        registered = self._kept()
        if registered is None:
            registered = await client.register(self.message, self._join_token())
            facts = self.message.model_dump(mode="json")
            write_durably(self.state / CREDENTIAL_FILE, {"for": facts, "registered": registered.model_dump()})
        client.credential = registered.credential
        self.heartbeat_s = registered.heartbeat_s

    def forget(self) -> None:
        """The server does not accept the credential any more."""
        (self.state / CREDENTIAL_FILE).unlink(missing_ok=True)

    def _kept(self) -> Registered | None:
        try:
            kept = json.loads((self.state / CREDENTIAL_FILE).read_bytes())
        except FileNotFoundError:
            return None
        if kept["for"] != self.message.model_dump(mode="json"):
            return None
        return Registered.model_validate(kept["registered"])

    def _join_token(self) -> str:
        if self.join_token_file is None:
            raise ConfigError("this machine is not registered", field="--join-token-file", fix="give the join token")
        try:
            return self.join_token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"{self.join_token_file}: {error.strerror}", field="--join-token-file") from None
