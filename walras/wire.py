"""Messages between the server and the agents on machines: JSON, checked on both sides.

The agent calls out; nothing ever calls the agent. One call, `POST /agent/v1/heartbeat`, carries everything: reports up,
commands and the lease down. Delivery is at least once in both directions: reports and commands are repeated until their
ids are acknowledged, and ignored once handled. Instants never cross machines: a lease travels as a length.
"""

from itertools import islice
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from walras.connection.body import Body
from walras.connection.remote_session import SessionRequest
from walras.contract import (
    AGENT_PATTERN,
    CLUSTER_PATTERN,
    CONTENT_PATTERN,
    INCARNATION_PATTERN,
    LIFE_PATTERN,
    known_or_unknown,
    types_of,
)
from walras.job_needs import JobNeeds
from walras.machines.machine_facts import DATA_MOST, DataKeys, DeviceSamples, FetchedInput, ToolNames
from walras.storage.store_proof import StoreChallenge, StoreProof

#: The most facts of a model in one report, and the most characters of a name.
_FACTS_MOST, _NAME_MOST = 16, 64
#: The most characters of a place in a store of checkpoints.
_STORE_MOST = 4096
#: The largest value of a fact of a model, whatever its unit.
_FACT_MOST = 1e30
#: The largest value that a job may report.
_VALUE_MOST = 1.7e308

#: Bounds of what the tables can hold and arithmetic can bear: a number beyond its bound is refused on arrival.
COUNT_MOST = 2**63 - 1
_SECONDS_MOST = 1e9
_SPEED_LEAST, _SPEED_MOST = 1e-12, 1e12
_NODE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

Count = Annotated[int, Field(ge=0, le=COUNT_MOST)]
Number = Annotated[int, Field(ge=1, le=COUNT_MOST)]
#: The code or signal with which a process ended, or the number of a rank.
SmallNumber = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Port = Annotated[int, Field(ge=0, le=65535)]
Steps = Annotated[float, Field(ge=0, le=COUNT_MOST)]
Seconds = Annotated[float, Field(ge=0, le=_SECONDS_MOST)]
CheckpointInterval = Annotated[float, Field(gt=0, le=_SECONDS_MOST)]
StepsPerSecond = Annotated[float, Field(ge=_SPEED_LEAST, le=_SPEED_MOST)]


class Message(Body, allow_inf_nan=False):
    """Unknown fields are ignored, so that an agent one version older or newer is understood. Numbers are finite."""


# ------------------------------------------------------------------------------------------------ identity


class ClusterIdentity(Message):
    """Which cluster speaks, and which life of its database.

    A cluster keeps its id for ever. A database gets a new incarnation when it is made and each time it is restored from
    a backup: job numbers and attempts of one incarnation say nothing about those of another.
    """

    cluster_id: str = Field(pattern=CLUSTER_PATTERN)
    incarnation: str = Field(pattern=LIFE_PATTERN)


# ------------------------------------------------------------------------------------------------ machine facts


class ShapeFacts(Message):
    """What the machine is. The pool is (shape, market, zone)."""

    shape: str = Field(min_length=1, max_length=100)
    accelerator: str = Field(min_length=1, max_length=100)
    accelerators: int = Field(ge=1, le=1024)
    cpus: float = Field(gt=0, le=1e6)
    memory_bytes: int = Field(gt=0, le=COUNT_MOST)
    nominal_speed: float = Field(default=1.0, ge=_SPEED_LEAST, le=_SPEED_MOST)
    emulated: bool = False
    market: Literal["owned", "on_demand", "spot"] = "owned"
    zone: str = Field(default="default", max_length=100)
    #: The machine that this is a part of (`walras.cluster`); empty: it is all of its machine.
    machine: str = Field(default="", pattern=rf"^$|{_NODE_PATTERN}")


#: The part of their memory by which like machines may differ.
_LIKE_MEMORY = 1 / 32


def is_like_memory(one: int, other: int) -> bool:
    """Returns whether machines with so much memory count as alike: every kernel leaves a little more or less of it."""
    return abs(one - other) <= _LIKE_MEMORY * max(one, other)


class Register(Message):
    """`POST /agent/v1/register`, authorised by the join token."""

    node_id: str = Field(pattern=_NODE_PATTERN)
    facts: ShapeFacts
    #: The `Rent` token with which this machine was requested; empty for owned machines.
    rent_token: str = Field(default="", max_length=200)
    version: str = Field(default="", max_length=100)
    protocol: int = Field(default=1, ge=1, le=1_000_000)
    agent: str = Field(default="", pattern=AGENT_PATTERN)  # made with its state folder: without it, it is another agent
    boot_id: str = Field(default="", max_length=64)  # names the time since the machine was started
    cluster: ClusterIdentity | None = None  # to which the agent belongs already; None: to none
    tools: ToolNames | None = None  # that jobs may need (`walras.machines.machine_facts`); None: the agent does not say


class Registered(Message):
    """The agent's own credential (kept in its state folder) and the pace of heartbeats."""

    credential: str
    heartbeat_s: Seconds
    lease_s: Seconds
    protocol: int = 1
    #: The cluster; None: the server is of the first release.
    cluster: ClusterIdentity | None = None


# ------------------------------------------------------------------------------------------------ reports (up)


def _numbers(given: object) -> object:
    """Returns the numbers among the values; drops others, so that bad facts do not cost a job its progress report.

    What is no finite number of a fact's size becomes `-_FACT_MOST`: the server does not believe it, and says so.
    """
    if not isinstance(given, dict):
        return {}
    numbers = (
        (name, value if _is_believable(value) else -_FACT_MOST)
        for name, value in given.items()
        if isinstance(name, str) and len(name) <= _NAME_MOST and type(value) in (int, float)
    )
    return dict(islice(numbers, _FACTS_MOST))


def _finite(given: object) -> object:
    """Drops the values that are no finite numbers: a loss of NaN is news to its job, and does not cost it its steps."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if type(value) in (int, float) and abs(value) < _VALUE_MOST}


def _is_believable(value: object) -> bool:
    return type(value) in (int, float) and -_FACT_MOST < value < _FACT_MOST  # type: ignore[operator]


class Report(Message):
    """The ids of an agent's reports increase by one; a report is kept durably until it is acknowledged."""

    report_id: Number


class AttemptReport(Report):
    job_id: Number
    attempt: Number
    #: The incarnation that granted the attempt.
    incarnation: str = Field(default="", pattern=INCARNATION_PATTERN)


class PreparedReport(AttemptReport):
    type: Literal["prepared"] = "prepared"
    #: Where the gang's machines reach this one; empty from an older agent that is not the first. The first has a port.
    address: str = Field(default="", max_length=255)
    port: Port = 0


class RefusedReport(AttemptReport):
    type: Literal["refused"] = "refused"
    detail: str = Field(default="", max_length=2000)
    #: Digest of the checkpoint, or name of the code, of which its store lacks a part or all; empty: it has them.
    lost: str = Field(default="", pattern=rf"^$|{CONTENT_PATTERN}")


class StartedReport(AttemptReport):
    """Told when the ranks are started; again, without `brings`, once they have brought what they need."""

    type: Literal["started"] = "started"
    brings: bool = False


class ProgressReport(AttemptReport):
    """Only the newest per attempt is kept and sent."""

    type: Literal["progress"] = "progress"
    #: Steps done by the job in all attempts.
    steps: Steps
    steps_per_s: StepsPerSecond | None = None
    samples: Count = 0
    start_s: Seconds | None = None
    #: The speed to which an emulated accelerator limits the gang; `steps_per_s` is the speed reached.
    pace_steps_per_s: StepsPerSecond | None = None
    #: Named values of the job, such as its loss: newest, and the first ones seen in this attempt.
    values: Annotated[dict[str, float], BeforeValidator(_finite)] = Field(default_factory=dict, max_length=32)
    first_values: Annotated[dict[str, float], BeforeValidator(_finite)] = Field(default_factory=dict, max_length=32)
    #: Facts counted at its first update; names are those of `walras.model_facts.believed_facts`.
    facts: Annotated[dict[str, float], BeforeValidator(_numbers)] = Field(default_factory=dict, max_length=32)


class Manifest(Message):
    """A complete checkpoint: enough to resume from it, and to detect that it is torn."""

    step: Steps
    #: Folder of the checkpoint, absolute, inside the job's checkpoint folder.
    path: str = Field(max_length=4096)
    #: SHA-256 over the names, sizes and hashes of its files, as written in its `manifest.json`.
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    #: Name of its tree in the store of checkpoints (`walras.storage.content`). Empty: it lies at `path` alone.
    content: str = Field(default="", pattern=rf"^$|{CONTENT_PATTERN}")
    #: The store that has this content; empty: the server.
    store: str = Field(default="", max_length=_STORE_MOST)


class CommittedReport(AttemptReport):
    """The job committed a checkpoint. It counts only once the server has recorded it under the fence."""

    type: Literal["committed"] = "committed"
    manifest: Manifest
    took_s: Seconds = 0.0
    #: Seconds that sending it to the store took, and seconds after the commit at which it was there.
    upload_s: Seconds = 0.0
    lag_s: Seconds = 0.0
    #: "replicated": one rank saved alone what every rank of the gang has. Another machine's than the first counts so.
    layout: Literal["", "replicated"] = ""


class EndedReport(AttemptReport):
    """No process of this attempt is left on this machine."""

    type: Literal["ended"] = "ended"
    cause: Literal["exited", "lease_expired", "supervisor_lost"]
    #: The exit code of the first failing rank, else 0; None when a signal ended it.
    exit_code: SmallNumber | None = None
    signal: SmallNumber | None = None
    failed_rank: SmallNumber | None = None
    steps: Steps | None = None
    #: Seconds of processor time of all ranks, for the record.
    cpu_s: float = Field(default=0.0, ge=0, le=1e15)
    witnessed: bool = False  # the agent saw the supervisor alive before it was lost: the machine lived on
    #: The limit for which the agent ended it; empty: none.
    exceeded: Literal["", "memory", "disk"] = ""
    own_fault: bool = False  # the failing rank's output shows that the job is at fault, whatever the machine
    #: Whether the server had asked for this end. A server restored from a backup since then may not know.
    asked: bool = False
    #: Whether its ranks were told to stop before they ended, and did not say that their work was done.
    unfinished: bool = False


class NoticeReport(Report):
    """The machine will be gone in `gone_in_s` seconds: a spot notice, or its owner removes it."""

    type: Literal["notice"] = "notice"
    gone_in_s: Seconds


class HintReport(Report):
    """The machine may be revoked soon. Its jobs have been asked to save, and go on."""

    type: Literal["hint"] = "hint"
    detail: str = Field(max_length=200)


class CommandRefusedReport(Report):
    """The agent does not know a command of this type, and did nothing about it."""

    type: Literal["command_refused"] = "command_refused"
    command_id: Count
    detail: str = Field(default="", max_length=500)


class UnknownReport(Report):
    """A report of a type that this version does not know: acknowledged, told in the log, and otherwise skipped."""

    type: Literal["unknown"] = "unknown"
    told: str = ""


AnyReport = Annotated[
    PreparedReport
    | RefusedReport
    | StartedReport
    | ProgressReport
    | CommittedReport
    | EndedReport
    | NoticeReport
    | HintReport
    | CommandRefusedReport
    | UnknownReport,
    Field(discriminator="type"),
]


_REPORT_TYPES = types_of(AnyReport)


def _skip_unknown_reports(given: object) -> object:
    return known_or_unknown(given, _REPORT_TYPES)


class AttemptHere(Message):
    """An attempt that is alive on this machine: the server compares with what it expects, both ways."""

    job_id: Count
    attempt: Count
    #: The incarnation that granted the attempt.
    incarnation: str = Field(default="", pattern=INCARNATION_PATTERN)


class Heartbeat(Message):
    """`POST /agent/v1/heartbeat`, authorised by the agent's credential."""

    node_id: str = Field(max_length=100)
    session: str = Field(default="", max_length=100)  # changes when the agent restarts
    #: Counts the calls of a session, so that one which comes late, or twice, is told from the newest. 0: not counted.
    call: Count = 0
    #: The `life` of the server that the agent heard last; empty: none.
    life: str = Field(default="", max_length=100)
    #: True with the first call after a (re)start: then `here` is the complete truth about this machine.
    resync: bool = False
    here: list[AttemptHere] = Field(default_factory=list, max_length=1024)
    reports: Annotated[list[AnyReport], BeforeValidator(_skip_unknown_reports)] = Field(
        default_factory=list, max_length=1000
    )
    #: Commands executed (or found to be done already).
    acks: list[Count] = Field(default_factory=list, max_length=10_000)
    #: Seconds for which the server may hold the call open until it has a command.
    wait_s: float = Field(default=0.0, ge=0, le=60)
    #: What keeps the agent from taking more work, in words (such as a full disk); empty: nothing.
    problem: str = Field(default="", max_length=200)
    protocol: int = Field(default=1, ge=1, le=1_000_000)
    #: The same facts as at registration.
    agent: str = Field(default="", pattern=AGENT_PATTERN)
    boot_id: str = Field(default="", max_length=64)
    version: str = Field(default="", max_length=100)
    #: The cluster and incarnation that the agent knows; None: it was registered by a server of the first release.
    cluster: ClusterIdentity | None = None
    #: The highest job number that this cluster has ever given to the agent.
    highest_job_id: int = Field(default=0, ge=0, le=2**53)
    #: Whether this machine reaches the store of checkpoints; None: it has not been asked, or not answered yet.
    proof: StoreProof | None = None
    #: Tools and cached inputs that are new since the last call, None: none. The first call has all of them.
    tools: ToolNames | None = None
    data: DataKeys | None = None
    fetched: list[FetchedInput] = Field(default_factory=list, max_length=DATA_MOST)  # of the data told
    devices: DeviceSamples | None = None


# ------------------------------------------------------------------------------------------------ commands (down)


class AgentCommand(Message):
    command_id: Count
    job_id: Count
    attempt: Count
    #: The incarnation that granted the attempt. The same numbers under another incarnation are another attempt.
    incarnation: str = Field(default="", pattern=INCARNATION_PATTERN)


class PrepareCommand(AgentCommand):
    """Hold devices for a gang over several machines; node rank 0 also binds a port."""

    type: Literal["prepare"] = "prepare"
    devices: list[int]
    node_rank: int


class StartCommand(AgentCommand):
    """Start this machine's ranks: one per device, or one launcher. The first fields are those of a `ScriptLaunch`."""

    type: Literal["start"] = "start"
    name: str
    kind: str
    argv: list[str]
    env: dict[str, str]
    workdir: str
    user: str = ""  # who submitted the job; empty from a server of the release before
    #: A name of content, or empty: it becomes a path on the machine.
    code: str = Field(default="", pattern=rf"^$|{CONTENT_PATTERN}")
    is_launcher: bool = False
    needs: JobNeeds = JobNeeds()
    devices: list[int]
    accelerator: str
    node_rank: int
    num_nodes: int
    #: Devices of the whole gang, and the number of this machine's first rank: of its launcher, if it has one.
    world_size: int
    first_rank: int
    master_address: str
    master_port: int  # 0: the supervisor of a gang on one machine chooses a free port itself
    checkpoint_dir: str
    #: Where its checkpoints are sent (`walras.storage.checkpoint_store`). Empty: all machines share `checkpoint_dir`.
    store: str = ""
    resume: Manifest | None
    steps: float | None  # the job is to do in all; None when unknown
    beside: int = 0  # the job whose devices it shares; 0: none
    #: The lease, as with renewals: counted from the moment the heartbeat was *sent* that this command answers.
    lease_s: float
    grace_s: float
    job_token: str
    memory_bytes: int = Field(default=0, ge=0)
    #: Work before each checkpoint, where the script leaves that to the scheduler; None: as the script has it.
    checkpoint_every_s: CheckpointInterval | None = None


class CheckpointEveryCommand(AgentCommand):
    """Sets how long the attempt is to work before each checkpoint from now on."""

    type: Literal["checkpoint_every"] = "checkpoint_every"
    every_s: CheckpointInterval


class StopCommand(AgentCommand):
    """Checkpoint and stop within `grace_s`; then the ranks are killed. Also releases what `prepare` holds."""

    type: Literal["stop"] = "stop"
    grace_s: float
    reason: str


class UnknownCommand(AgentCommand):
    """A command of a type that this version does not know: the agent refuses it by name."""

    type: Literal["unknown"] = "unknown"
    job_id: int = 0
    attempt: int = 0
    told: str = ""


AnyCommand = Annotated[
    PrepareCommand | StartCommand | StopCommand | CheckpointEveryCommand | UnknownCommand, Field(discriminator="type")
]

_COMMAND_TYPES = types_of(AnyCommand)


def _keep_unknown_commands(given: object) -> object:
    return known_or_unknown(given, _COMMAND_TYPES)


class HeartbeatAnswer(Message):
    commands: Annotated[list[AnyCommand], BeforeValidator(_keep_unknown_commands)] = Field(default_factory=list)
    #: Reports up to and including this id are durable with the server.
    reports_acked: Count = 0
    #: The lease of every attempt in `here` that the server still wants is this long, counted from the moment the
    #: heartbeat was *sent*.
    lease_s: float
    #: Attempts in `here` whose lease is not renewed (their fence is old): stop them at once.
    fenced: list[AttemptHere] = Field(default_factory=list)
    protocol: int = 1
    #: The cluster and incarnation that answer. None: a server of the first release.
    cluster: ClusterIdentity | None = None
    #: Differs after every start of the server; empty: an older release, which does not state it.
    life: str = ""
    #: Requested sessions with attempts on this machine, for which users wait.
    sessions: list[SessionRequest] = Field(default_factory=list)
    #: The machine's sessions that are open; it ends all others. None: an older release, which does not state them.
    open_sessions: list[str] | None = None
    #: The challenge by which the machine proves access to the store of checkpoints; None: none.
    challenge: StoreChallenge | None = None
