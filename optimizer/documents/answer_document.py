"""The answer document: what a policy decided about a problem document, with everything that proves it.

Any solver may write one; `optimizer.check.certificate` says whether it holds. So these models check its form alone:
the checker rejects a negative share, the model one that is not a number. The published JSON schemas of problems and
answers are made from these models, so that they cannot say anything else.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue
from pydantic.json_schema import GenerateJsonSchema

from optimizer.decision import StageKind, Status
from optimizer.documents.problem_document import (
    MAX_CONFIGURATIONS,
    MAX_ENTITIES,
    MAX_JOBS,
    MAX_POOLS,
    MAX_STAGES,
    Count,
    JobNumber,
    Name,
    Place,
    ProblemDocument,
    Prose,
    Result,
)
from walras.spec.file_model import FileModel

Text = Annotated[str, Field(max_length=500)]
#: An amount of each pool, by pool id; 0 for a pool that is not named.
ByPool = Annotated[dict[Name, Result], Field(max_length=MAX_POOLS)]


class PolicyDocument(FileModel):
    """Which policy answered."""

    name: Annotated[Text, Field(description="Its registered name.")]
    parameters: Annotated[dict[Name, JsonValue], Field(max_length=100)] = Field(default_factory=dict)


class ShareDocument(FileModel):
    """Part of the time that a job runs in one of its configurations."""

    configuration: Annotated[Place, Field(description="Place in the job's `configurations`, from 0.")]
    uses: Annotated[dict[Name, Count], Field(max_length=64, description="What that configuration uses, repeated.")]
    share: Annotated[Result, Field(description="Part of the time.")]


class JobAnswer(FileModel):
    """What one job gets."""

    id: JobNumber
    name: Annotated[Name | None, Field(description="As in the problem.")] = None
    shares: Annotated[tuple[ShareDocument, ...], Field(max_length=MAX_CONFIGURATIONS)] = ()
    steps_per_s: Annotated[Result, Field(description="Its mean speed, packed shares included.")] = 0.0
    of_best: Annotated[
        Result | None, Field(description="That speed over its speed in its best configuration; null: it has none.")
    ] = None
    surplus: Annotated[
        Result, Field(description="Value minus price of its best configuration, in the unit of the prices.")
    ] = 0.0


class PackedDocument(FileModel):
    """Two jobs on the same accelerators of a pool."""

    first: Annotated[JobNumber, Field(description="Id of the job that runs as the pair's first kind.")]
    second: Annotated[JobNumber, Field(description="Id of the other.")]
    pool: Name
    share: Annotated[Result, Field(description="Part of the time of both.")]


class QuoteDocument(FileModel):
    """Prices, and what they are in."""

    unit: Annotated[Text, Field(description="Unit of the prices, per accelerator held all the time.")]
    exchange: Annotated[Result, Field(description="Worth, in that unit, of a unit of a newcomer's utility.")] = 1.0
    pools: Annotated[ByPool, Field(description="Price of an accelerator of each pool.")]


class CertificateDocument(FileModel):
    """How good the shares are, and how good any shares could be."""

    status: Status
    objective: Annotated[Result | None, Field(description="What the shares reach; null: it is infinite.")]
    bound: Annotated[
        Result | None,
        Field(description="What nobody can exceed (or undercut, where the least is sought); null: nothing is proved."),
    ]
    gap: Annotated[Result | None, Field(description="|bound - objective| / |bound|; null without a bound.")]
    violation: Annotated[Result, Field(description="Largest violation of a constraint, relative.")]
    path: Annotated[Text, Field(description="How it was found.")]
    maximise: bool = True
    integral_bound: Annotated[
        Result | None,
        Field(
            description="Integral bound of the round: what whole gangs cannot exceed (or undercut) over time; null: "
            "not asked for, more than 64 accelerators, jobs run two by two, or a policy that maximises nothing."
        ),
    ] = None


class StageJob(FileModel):
    """A job's part in a stage."""

    id: JobNumber
    raised: bool = False
    floor: Annotated[Result, Field(description="Utility that it keeps.")] = 0.0
    cap: Annotated[Result, Field(description="Utility at which the level leaves it alone.")] = 0.0
    utility_value: Annotated[Result, Field(description="Where jobs may be packed: worth of a unit of its utility.")] = (
        0.0
    )
    time_value: Annotated[Result, Field(description="Where jobs may be packed: worth of its time.")] = 0.0


class StageDocument(FileModel):
    """One of the programs that were solved in order, and the prices that prove its optimum."""

    kind: StageKind
    objective: Result
    bound: Result | None
    prices: Annotated[ByPool, Field(description="Dual value of each scarce row, per accelerator.")]
    limits: Annotated[
        tuple[Result, ...],
        Field(max_length=MAX_ENTITIES, description="Dual values of the limits of entities, in the order of entities."),
    ] = ()
    jobs: Annotated[tuple[StageJob, ...], Field(max_length=MAX_JOBS)] = ()


class SharesDocument(FileModel):
    """An answer in shares of time."""

    jobs: Annotated[tuple[JobAnswer, ...], Field(max_length=MAX_JOBS)]
    packed: Annotated[tuple[PackedDocument, ...], Field(max_length=MAX_JOBS)] = ()
    rent: Annotated[ByPool, Field(description="Accelerators of each pool that the shares count as rented.")]
    used: Annotated[ByPool, Field(description="Accelerators of each pool that the shares take.")]
    prices: QuoteDocument
    certificate: CertificateDocument
    stages: Annotated[tuple[StageDocument, ...], Field(max_length=MAX_STAGES)] = ()
    unplaceable: Annotated[
        tuple[JobNumber, ...], Field(max_length=MAX_JOBS, description="Jobs that no configuration serves.")
    ] = ()
    relaxed: Annotated[
        tuple[JobNumber, ...],
        Field(max_length=MAX_JOBS, description="Jobs that were asked for less than their deadline."),
    ] = ()


class OrderedJob(FileModel):
    """A job at its place in the order."""

    id: JobNumber
    name: Name | None = None
    preference: Annotated[
        tuple[Place, ...],
        Field(max_length=MAX_CONFIGURATIONS, description="Its configurations, the first choice first."),
    ] = ()


class YardstickDocument(FileModel):
    """How far what is reached stays behind what none can go below, or above if it is to be large."""

    name: Text
    unit: Text
    objective: Result | None
    bound: Result | None
    gap: Annotated[Result | None, Field(description="|objective - bound| / bound; null: it is infinite.")]
    maximise: Annotated[bool, Field(description="True: the objective is to be large.")] = False


class OrderDocument(FileModel):
    """An answer that ranks: the first job is placed first."""

    jobs: Annotated[tuple[OrderedJob, ...], Field(max_length=MAX_JOBS)]
    yardstick: YardstickDocument | None = None
    no_yardstick: Annotated[Prose, Field(description="Why there is none.")] = ""


class PlannedJob(FileModel):
    """A job and its place, if it has one."""

    id: JobNumber
    name: Name | None = None
    configuration: Annotated[
        Place | None, Field(description="Place in the job's `configurations`, from 0; null: it waits.")
    ] = None
    uses: Annotated[dict[Name, Count], Field(max_length=64, description="What that configuration uses, repeated.")] = (
        Field(default_factory=dict)
    )
    surplus: Annotated[
        Result, Field(description="Value minus price of its best configuration, in the unit of the prices.")
    ] = 0.0


class PlanDocument(FileModel):
    """Who runs where from now on, most important first."""

    jobs: Annotated[tuple[PlannedJob, ...], Field(max_length=MAX_JOBS)]
    prices: QuoteDocument
    yardstick: YardstickDocument | None = None
    no_yardstick: Annotated[Prose, Field(description="Why there is none.")] = ""


class CheckDocument(FileModel):
    """What the checker found when it recomputed everything from the problem."""

    holds: bool
    objective: Result | None
    bound: Result | None
    gap: Result | None
    violation: Result
    complaints: Annotated[tuple[Prose, ...], Field(max_length=1_000_000)]
    unchecked: Annotated[
        tuple[Prose, ...], Field(max_length=100, description="What no answer of this policy proves, taken as stated.")
    ] = ()


class MixtureDocument(FileModel):
    """A gang over several pools, or a fork, that was made for a job; it stands behind those of the problem."""

    id: Annotated[JobNumber, Field(description="The job's number.")]
    uses: Annotated[dict[Name, Count], Field(min_length=1, max_length=64, description="Accelerators of each pool.")]
    steps_per_s: Annotated[
        Result,
        Field(
            description="Speed of the whole: of a gang that of its slowest pool, of a fork what its parts add up to."
        ),
    ]


class RentedDocument(FileModel):
    """Machines of one pool, and what single ones are worth while all others are as decided."""

    machines: Annotated[int, Field(ge=0, description="To hold rented, those held now included.")]
    usd_per_h: Annotated[Result, Field(description="Market price of a machine.")]
    last_usd_per_h: Annotated[Result, Field(description="Worth of the last one; 0 where none is rented.")]
    next_usd_per_h: Annotated[Result, Field(description="Worth of one more; 0 where the quota allows none.")]


class AnswerDocument(FileModel):
    """What a policy decided about a problem: `shares`, an `order` or a `plan`."""

    schema_version: Annotated[Literal[1], Field(description="Version of this format.")] = 1
    policy: PolicyDocument
    problem: Annotated[
        str,
        Field(
            pattern="^[0-9a-f]{64}$",
            description="SHA-256 of the problem as `optimizer.documents.problem_document` has it.",
        ),
    ]
    mixtures: Annotated[
        tuple[MixtureDocument, ...],
        Field(
            max_length=MAX_JOBS, description="Configurations made for jobs that mix or fork, in the order of the jobs."
        ),
    ] = ()
    renting: Annotated[
        dict[Name, RentedDocument], Field(max_length=MAX_POOLS, description="By pool, where machines may be rented.")
    ] = Field(default_factory=dict)
    shares: SharesDocument | None = None
    order: OrderDocument | None = None
    plan: PlanDocument | None = None
    memory: Annotated[JsonValue, Field(description="What the policy is to be given next time.")] = None
    check: Annotated[CheckDocument | None, Field(description="The second opinion, where it was asked for.")] = None


def document_schema(name: str) -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of `problem` or of `answer` documents."""
    written: dict[str, Any] = (ProblemDocument if name == "problem" else AnswerDocument).model_json_schema()
    return {"$schema": GenerateJsonSchema.schema_dialect} | written
