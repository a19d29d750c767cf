"""What commands take as FIELD=VALUE where no body of the API and no file has these fields: `--set`, `walras admin`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from walras.connection.body import RequestBody
from walras.resources.people import UserSettings
from walras.spec.field_types import Length, PositiveLength
from walras.spec.file_model import FileModel
from walras.units import parse_length


class _Settings(FileModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class HeldNow(StrEnum):
    """What a job holds now."""

    NOTHING = "nothing"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class SpotSettings(_Settings):
    """What `walras cloud spot` takes."""

    restart: Length = 720.0
    """Paid time without progress after each start of a machine, such as 12m."""
    slot: PositiveLength = 600.0
    """Length of a time slot: how often the job may change machines, such as 10m."""
    zone: tuple[str, ...] = ()
    """Use only these zones of the traces."""
    history: tuple[Path, ...] = ()
    """Earlier traces to learn from; default: the first half of each trace."""
    starts: Annotated[int, Field(ge=1, le=1000)] = 40
    """Number of start times to simulate."""
    seed: int = 0
    """Seed of the start times."""
    work_left: PositiveLength | None = None
    """Work left now; default: all of --work."""
    time_left: PositiveLength | None = None
    """Time left now; default: all of --deadline."""
    held: HeldNow = HeldNow.NOTHING
    """What the job holds now: nothing, spot or on-demand."""
    check: bool = False
    """Verify the bound with an integer program for four of the starts."""


class CapacitySettings(_Settings):
    """What `walras cloud capacity` takes."""

    arrivals_per_h: Annotated[float, Field(gt=0)] | None = None
    """Without a trace: arrivals of single-accelerator jobs per hour."""
    job_length: PositiveLength | None = None
    """With arrivals_per_h: mean run time of a job, such as 6h."""
    longest_wait: Length = 86_400.0
    """Jobs that would wait longer run on demand; without a trace: the mean wait allowed."""
    short: Length = 180.0
    """Jobs shorter than this do not wait."""
    lot: Annotated[int, Field(ge=1, le=1024)] = 1
    """Accelerators per machine: reserve in multiples of this."""
    accelerators: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Evaluate this number of reserved accelerators instead of the optimum."""
    leave_above: Annotated[float, Field(ge=0)] = 15.0
    """Users leave when their mean wait exceeds this many mean run times."""
    since: str | None = None
    """With --live: what the jobs of this time up to now used (30d)."""
    type: str | None = None
    """With --live: only this accelerator type."""


class BillSettings(_Settings):
    """What `walras money --model` takes."""

    type: str | None = None
    """Only this accelerator type."""
    reserved: tuple[str, ...] = ()
    """Price of a reserved accelerator-hour in USD, or of each type, as a100=1.06,t4=0.2."""
    reserved_price: float | None = None
    """The same as a fraction of the on-demand price."""
    on_demand: Annotated[float, Field(ge=0)] | None = None
    """On-demand price per accelerator-hour, USD."""
    longest_wait: Length = 0.0
    """Jobs that would wait longer run on demand."""


class MachineSettings(_Settings):
    """What `walras cloud recommend` takes."""

    catalog: tuple[Path, ...] = ()
    """Catalog files or folders that extend or override the built-in catalog."""
    cloud: str | None = None
    """Only machines of this cloud."""
    precision: str | None = None
    """Arithmetic: fp32, tf32, bf16 or fp16; default: as the profile says."""
    machines: Annotated[int, Field(ge=1, le=64)] = 8
    """Use at most this many machines."""
    mixed: bool = False
    """Also consider gangs over machines of several types."""
    batch: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Also consider these global batch sizes."""
    revocations_per_h: Annotated[float, Field(ge=0)] = 0.05
    """With --spot: expected revocations per machine-hour."""
    obtained: Annotated[float, Field(ge=0.001)] | None = None
    """Bandwidth in Gbit/s measured after launch: says whether the plan for --network still holds."""

    other_words: ClassVar[dict[str, str]] = {"most": "machines"}


def _length(text: str) -> str:
    parse_length(text)
    return text


class AuditChoice(RequestBody):
    """Which writes are listed: of a user, of this last time, at most so many."""

    user: str = ""
    since: Annotated[str, AfterValidator(_length)] = ""
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100


class ReservationChoice(RequestBody):
    """Which reservations are listed: `all` has the newest of those that are over too."""

    all: bool = False


class TokenTerms(UserSettings):
    """What a token opens, and for how long."""

    expires: Annotated[str, AfterValidator(_length)] = ""


class PoolTerms(RequestBody):
    """Machines that may be rented at most, and USD per hour of one."""

    quota: Annotated[int, Field(ge=0, le=100_000)] | None = None
    usd_per_h: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
