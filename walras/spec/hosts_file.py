"""The hosts file: machines of one's own on which agents are started over SSH.

    server: https://walras.example:8443
    hosts:
      - {host: gpu1.lab, zone: lab}
      - {host: me@gpu2.lab, port: 2222, shape: tower, walras: /opt/walras/bin/walras}

What OpenSSH knows of a host (user, port, key, jump host) is read from its own configuration.
"""

from typing import Annotated

from pydantic import Field, model_validator

from walras.spec.field_types import AcceleratorName, PoolWord, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel

#: A pattern of words that a shell and OpenSSH's option parser take for plain words.
_Path = Annotated[str, Field(pattern=r"^[A-Za-z0-9_/~][A-Za-z0-9_./+-]{0,400}$")]
_Url = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.\[\]:_/-]{1,400}$")]


class HostEntry(FileModel):
    """One machine."""

    #: The host, as one would write it after `ssh`.
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@:%+-]{0,254}$")]
    #: The port; None: as OpenSSH's configuration states.
    port: Annotated[WholeNumber, Field(ge=1, le=65_535)] | None = None
    #: The machine's name in the cluster; empty: that of the host, without a user.
    node: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")] = ""
    #: The path of the `walras` command on the host.
    walras: _Path = "walras"
    #: Folder of the agent's state on the host, below the home folder unless it begins with a slash.
    state: _Path = ".walras-agent"
    shape: PoolWord = "default"
    zone: PoolWord = "default"
    #: The accelerators; None: those that the agent finds.
    accelerator: AcceleratorName | None = None
    accelerators: Annotated[WholeNumber, Field(ge=1, le=1024)] | None = None
    emulated: bool = False

    @property
    def node_id(self) -> str:
        return self.node or self.host.rpartition("@")[2].replace(":", "-").replace("%", "-")


class HostsFile(FileModel):
    """A hosts file."""

    #: Where the machines reach the server; further ones are tried in turn.
    server: _Url | tuple[_Url, ...]
    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1, max_length=10_000)]

    @property
    def servers(self) -> tuple[str, ...]:
        return (self.server,) if isinstance(self.server, str) else self.server

    @model_validator(mode="after")
    def _one_agent_per_name(self) -> "HostsFile":
        seen: set[str] = set()
        for position, entry in enumerate(self.hosts):
            if entry.node_id in seen:
                raise FieldMistake(f"hosts[{position}].node", f"a second machine {entry.node_id}; give it a name")
            seen.add(entry.node_id)
        return self
