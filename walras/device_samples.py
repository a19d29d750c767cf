"""The last samples of a machine's devices, which its agent sends with heartbeats and `walras nodes -v` shows.

All values are what the driver reports for the whole device, whichever process uses it; a value that it does not report
is None.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from walras.units import format_size

#: The most devices that one machine may have.
MOST_DEVICES = 1024
_BYTES_MOST = 2**50


#: The most characters of a device's fault, and of all faults of a machine.
FAULT_MOST, _FAULTS_MOST = 200, 1000


class DeviceSample(BaseModel):
    """One sample of one device."""

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
