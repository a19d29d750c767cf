"""How an agent is told what its machine is. The command line builds it from its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class AgentOptions:
    server: str
    #: Keeps the credential, the attempts and their logs. One agent at a time.
    state: Path
    node_id: str
    shape: str
    #: Read when the agent has no credential yet.
    join_token_file: Path | None = None
    #: None: detect GPUs; without any the machine is a `cpu` machine.
    accelerator: str | None = None
    accelerators: int | None = None
    #: None: what this host has.
    cpus: float | None = None
    memory_bytes: int | None = None
    market: Literal["owned", "on_demand", "spot"] = "owned"
    zone: str = "default"
    nominal_speed: float = 1.0
    emulated: bool = False
    #: Speed table of emulated accelerators (YAML).
    speeds: Path | None = None
    rent_token_file: Path | None = None
    #: Ask the metadata service of EC2 whether this machine is to be taken away.
    spot_notices: bool = False
    metadata_url: str = "http://169.254.169.254"
    #: Address at which the other machines of a gang reach this one. None: the one that reaches the server.
    address: str | None = None
