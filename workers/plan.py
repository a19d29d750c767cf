"""What an agent hands to the supervisor of an attempt: a JSON file in the attempt's folder, and the names beside it."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from workers.journal import write_durably

PLAN_FILE = "plan.json"
JOURNAL_FILE = "journal.jsonl"
SUPERVISOR_FILE = "supervisor.json"
SUPERVISOR_LOG = "supervisor.log"


@dataclass(frozen=True)
class Plan:
    """One attempt's part on this machine. Holds the job's token: the file is readable by its owner only."""

    job_id: int
    attempt: int
    argv: list[str]
    #: The whole environment of every rank, but for what differs between ranks.
    env: dict[str, str]
    workdir: str
    devices: list[int]
    node_rank: int
    first_rank: int
    world_size: int
    #: 0: choose a free port (a gang on one machine).
    master_port: int
    #: The lease granted with the start: its length, and its end on the boot-time clock.
    lease_s: float
    lease_until: float
    grace_s: float
    checkpoint_dir: str
    #: Marks every process of the attempt, through its environment.
    cookie: str
    rank_socket: str
    control_socket: str
    log_cap_bytes: int

    @property
    def ranks(self) -> range:
        """The global ranks of this machine."""
        return range(self.first_rank, self.first_rank + len(self.devices))


def write_plan(folder: Path, plan: Plan) -> None:
    write_durably(folder / PLAN_FILE, dataclasses.asdict(plan))


def read_plan(folder: Path) -> Plan:
    return Plan(**json.loads((folder / PLAN_FILE).read_bytes()))


def rank_log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"
