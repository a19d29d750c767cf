"""Facts of a machine that its agent reports: its tools beside accelerators, and the last samples of its devices.

Agents report what they found when they join; one of an older release reports nothing, and is assumed to have
everything. A job that no machine of any pool it fits could prepare is refused when it is submitted, with what would
help; else it is placed on machines that can prepare it. Agents also say which inputs they have fetched, by keys.

All values are what the driver reports for the whole device, whichever process uses it; a value that it does not report
is None.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from walras.job_needs import InputNeed, JobNeeds
from walras.job_request import JobRequest
from walras.units import format_size

#: Programs that run images, in the order in which a machine prefers them.
RUNTIMES = ("apptainer", "podman", "docker")
#: Other programs, and packages of Python, that jobs may need.
PROGRAMS, PACKAGES = ("uv", "git"), ("s3fs", "gcsfs", "adlfs")
#: The most names that a machine may report, and the most characters of one.
TOOLS_MOST, TOOL_NAME_MOST = 32, 40
ToolNames = Annotated[list[Annotated[str, Field(max_length=TOOL_NAME_MOST)]], Field(max_length=TOOLS_MOST)]
#: The most keys of inputs that a machine may report, and the most characters of one.
DATA_MOST, _KEY_LENGTH = 200, 32
DATA_KEY_PATTERN = rf"^[0-9a-f]{{{_KEY_LENGTH}}}$"
DataKeys = Annotated[list[Annotated[str, Field(pattern=DATA_KEY_PATTERN)]], Field(max_length=DATA_MOST)]


class FetchedInput(BaseModel):
    """An input in a machine's cache: its bytes, and the seconds that it took to bring or make it there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=DATA_KEY_PATTERN)
    size_bytes: int = Field(ge=0, le=2**53)
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)


_OF_SCHEME = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_FIX = {
    "uv": "pip install 'walras[environments]' on the machines",
    "git": "install git on the machines",
    "s3fs": "pip install 'walras[stores]' on the machines",
    "gcsfs": "pip install gcsfs on the machines",
    "adlfs": "pip install adlfs on the machines",
}


@dataclass(frozen=True)
class ToolNeed:
    """A field of a job for which a machine has to have one of these."""

    field: str
    any_of: tuple[str, ...]

    def is_met(self, tools: Collection[str]) -> bool:
        return not set(self.any_of).isdisjoint(tools)

    @property
    def fix(self) -> str:
        return _FIX.get(self.any_of[0], f"install {' or '.join(self.any_of)} on the machines")


def tools_needed(needs: JobNeeds) -> list[ToolNeed]:
    """Returns what a machine has to have to prepare the job."""
    found = []
    if needs.git is not None:
        found.append(ToolNeed("workdir", ("git",)))
    if needs.python is not None:
        found.append(ToolNeed("python", ("uv",)))
    if needs.image:
        is_file = needs.image.startswith(("/", "./")) or needs.image.endswith(".sif")
        found.append(ToolNeed("image", RUNTIMES[:1] if is_file else RUNTIMES))
    for name, each in needs.inputs.items():
        if package := _OF_SCHEME.get(urlsplit(each.url).scheme if each.url else ""):
            found.append(ToolNeed(f"inputs.{name}", (package,)))
    return found


def data_key(need: InputNeed, owner: str = "") -> str:
    """Returns what an input is called between server and agents: by what the job file says of it, whatever its version
    is, and by the owner of the job (`PROJECT/USER`), unless its hash is stated.
    """
    owner = "" if need.sha256 else owner
    return sha256("\0".join(("input", need.url, need.command, need.sha256, owner)).encode()).hexdigest()[:_KEY_LENGTH]


def with_needs(request: JobRequest, needs: JobNeeds) -> JobRequest:
    """Returns the request with what its machines have to have, and the inputs that are better there already."""
    tools = tuple(dict.fromkeys(each.any_of for each in tools_needed(needs)))
    owner = f"{request.project}/{request.user}"
    data = tuple(sorted({data_key(each, owner) for each in needs.inputs.values()}))
    return replace(request, tools=tools, data=data)


def unmet_need(needs: JobNeeds, machines: Iterable[Collection[str] | None]) -> ToolNeed | None:
    """Returns a need for which no single machine has all that the job asks for; None where one has, or may have
    (None), or where there are no machines.

    It is one that no machine meets at all, if there is such a one.
    """
    wanted, known = tools_needed(needs), list(machines)
    if not wanted or not known or any(tools is None or all(each.is_met(tools) for each in wanted) for tools in known):
        return None
    nowhere = [each for each in wanted if not any(each.is_met(tools or ()) for tools in known)]
    return (nowhere or wanted)[0]


#: The most devices that one machine may have.
MOST_DEVICES = 1024
_BYTES_MOST = 2**50


#: The most characters of a device's fault, and of all faults of a machine.
FAULT_MOST, _FAULTS_MOST = 200, 1000


class DeviceSample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    #: Position among the accelerators of its machine.
    device: Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
    #: Percent of the last sampling interval in which a kernel ran.
    utilization: Annotated[float, Field(ge=0, le=100)] | None = None
    memory_used_bytes: Annotated[int, Field(ge=0, le=_BYTES_MOST)] | None = None
    memory_bytes: Annotated[int, Field(ge=0, le=_BYTES_MOST)] | None = None
    temperature_c: Annotated[float, Field(ge=-100, le=300)] | None = None
    power_w: Annotated[float, Field(ge=0, le=100_000)] | None = None
    #: What is wrong with it, for which its machine should take no jobs; empty: nothing.
    fault: Annotated[str, Field(max_length=FAULT_MOST)] = ""


DeviceSamples = Annotated[list[DeviceSample], Field(max_length=MOST_DEVICES)]


def faults_text(samples: Sequence[DeviceSample]) -> str:
    """Returns the faults of the devices, such as `GPU 3: Xid 79, it fell off the bus`; empty if there are none."""
    told = "; ".join(f"GPU {each.device}: {each.fault}" for each in samples if each.fault)[:_FAULTS_MOST]
    return "".join(letter if letter.isprintable() else "?" for letter in told)


def utilization_text(samples: Sequence[DeviceSample]) -> str:
    """Returns the utilisation of each device, such as `97 0 12%`; empty if nothing is known."""
    return _listed([each.utilization for each in samples], "%")


def temperature_text(samples: Sequence[DeviceSample]) -> str:
    """Returns the hottest device's temperature, such as `71°C`; empty if nothing is known."""
    known = [each.temperature_c for each in samples if each.temperature_c is not None]
    return f"{max(known):.0f}°C" if known else ""


def power_text(samples: Sequence[DeviceSample]) -> str:
    """Returns what all devices draw together, such as `1240 W`; empty if nothing is known."""
    known = [each.power_w for each in samples if each.power_w is not None]
    return f"{sum(known):.0f} W" if known else ""


def memory_text(samples: Sequence[DeviceSample]) -> str:
    """Returns the memory in use and all memory, such as `61 GB of 160 GB`; empty if nothing is known."""
    pairs = [(each.memory_used_bytes, each.memory_bytes) for each in samples]
    known = [(used, whole) for used, whole in pairs if used is not None and whole is not None]
    if not known:
        return ""
    return f"{format_size(sum(used for used, _ in known))} of {format_size(sum(whole for _, whole in known))}"


def _listed(values: Sequence[float | None], unit: str) -> str:
    if all(value is None for value in values):
        return ""
    return " ".join("?" if value is None else f"{value:.0f}" for value in values) + unit
