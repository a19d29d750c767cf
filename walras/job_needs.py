"""What the server tells machines about starting a job and about its needs, and what they answer about its results.

A start command carries `JobNeeds` in one field, so that a machine of an older release ignores it as a whole: the
server starts no job there that cannot do without. Paths are relative to the ranks' working folder and stay below it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import Field

from walras.connection.body import Body
from walras.contract import CONTENT_PATTERN, FILES_MOST
from walras.job_request import Kind

#: The most bytes that a job may leave as its results on each of its machines.
OUTPUTS_BYTES = 16 * 1000**3
#: The most entries of `outputs`, and the most characters of a path.
OUTPUTS_MOST, PATH_MOST = 64, 1024
_COUNT_MOST = 2**63 - 1
#: The most characters of a sentence about a problem.
PROBLEM_MOST = 1000


class InputNeed(Body):
    """Data that the ranks find below `$WALRAS_INPUTS`: what a URL names, or what a command puts into its folder."""

    url: str = ""
    command: str = ""
    #: The hash of the one file that the URL names; empty: it is not verified.
    sha256: str = ""


class PythonNeed(Body):
    """The Python environment of the ranks: from a file of requirements, a list of them, or a folder with `uv.lock`."""

    requirements: str = ""
    packages: tuple[str, ...] = ()
    lock: str = ""
    #: The Python version; empty: the one on which the machine's agent runs.
    version: str = ""
    #: Whether packages of that Python are visible too, such as a torch that is built for the machine.
    system_packages: bool = True


class GitNeed(Body):
    """The commit that is checked out into the fresh working folder."""

    url: str
    commit: str


class JobNeeds(Body):
    """The work of a machine for a job before its ranks start and after they have ended."""

    #: Files and folders that are kept, relative to the working folder.
    outputs: tuple[str, ...] = ()
    #: Project and user, to whom what was brought or made for the job belongs (`PROJECT/USER`). Set by the server.
    owner: str = ""
    #: Name of the code's tree; a setup that ran for other code runs again. Set by the machine.
    code: str = ""
    git: GitNeed | None = None
    inputs: dict[str, InputNeed] = Field(default_factory=dict)
    python: PythonNeed | None = None
    #: A command of the shell, run once on each machine.
    setup: str = ""
    #: The image that the ranks run in: a name in a registry, or the path of a file. Empty: none.
    image: str = ""

    @property
    def is_prepared_first(self) -> bool:
        """Whether something has to be brought or made before the ranks can start."""
        return bool(self.kinds)

    @property
    def kinds(self) -> list[str]:
        """What has to be brought or made, in words."""
        found = {"code": self.git, "python": self.python, "image": self.image, "setup": self.setup}
        return [name for name, need in found.items() if need] + [f"input {name}" for name in self.inputs]


@dataclass(frozen=True)
class ScriptLaunch:
    """The command and environment of every rank of a job, wherever it runs."""

    name: str
    #: The job's kind: an agent that emulates an accelerator looks its pace up under this name.
    kind: Kind
    #: Never a shell string (a spec's `run: string` became `["bash", "-euo", "pipefail", "-c", ...]`).
    argv: tuple[str, ...]
    #: The job's own variables; the supervisor adds WALRAS_* and the torch names.
    env: Mapping[str, str]
    #: The working folder; empty: a fresh folder for each attempt.
    workdir: str
    #: Name of the tree whose files the fresh folder holds at first (`walras.storage.content`). Empty: none.
    code: str = field(default="", kw_only=True)
    #: Started once on each machine, as a launcher of its own ranks or as one process for all devices there.
    is_launcher: bool = field(default=False, kw_only=True)
    #: Main memory that it may use per accelerator, in bytes. 0: no limit.
    memory_bytes: int = field(default=0, kw_only=True)
    needs: JobNeeds = field(default=JobNeeds(), kw_only=True)

    def command_fields(self) -> dict[str, Any]:
        """Returns the fields that a `StartCommand` has; the memory of a machine's part depends on its devices."""
        own = {each.name: getattr(self, each.name) for each in fields(ScriptLaunch) if each.name != "memory_bytes"}
        return own | {"argv": list(self.argv), "env": dict(self.env)}


class OutputsCollected(Body):
    """`POST /agent/v1/outputs`: the results of one attempt on one machine, whose tree the content store has."""

    job_id: int = Field(ge=1, le=_COUNT_MOST)
    attempt: int = Field(ge=1, le=_COUNT_MOST)
    node_rank: int = Field(ge=0, le=2**31)
    #: Empty where nothing could be collected: `problem` says why, and what was collected before stays.
    tree: str = Field(default="", pattern=rf"^$|{CONTENT_PATTERN}")
    files: int = Field(default=0, ge=0, le=FILES_MOST)
    size_bytes: int = Field(default=0, ge=0, le=_COUNT_MOST)
    #: What is missing or was left out, in words; empty where nothing is.
    problem: str = Field(default="", max_length=PROBLEM_MOST)


class OutputsView(Body):
    """The newest results of one machine of a job's gang."""

    node_rank: int
    #: The attempt that left them.
    attempt: int
    tree: str
    files: int
    size_bytes: int
    #: When the server had all of them.
    collected_at: str
    problem: str = ""


class JobOutputs(Body):
    """`GET /jobs/{id}/outputs`."""

    items: list[OutputsView]
