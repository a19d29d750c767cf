"""The machine's devices: what drivers and the host report, which attempt holds which, and the port of a rendezvous.

Accelerators are found through NVML, where nvidia-ml-py is installed, else through AMD SMI, where amdsmi is. Node rank 0
of a gang keeps a port bound until its ranks start.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from walras.device_samples import DeviceSample
from walras.spec.accelerator_names import detected_accelerator
from workers.device_sampler import amd_devices, opened_nvml, sample_amd_devices, sample_devices

#: Name of a machine without accelerators. It runs one rank unless the options state more.
CPU = "cpu"


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that jobs may use here. A device number is a position in `cuda_names`, if that is not empty."""

    #: Canonical name, such as `a100-40gb`.
    name: str
    count: int
    #: Their names in CUDA_VISIBLE_DEVICES: UUIDs, which NVML and CUDA share; of AMD's devices HIP's numbers.
    cuda_names: tuple[str, ...] = ()
    #: Their numbers on the machine, in the order of the bus; empty: slices, or emulated ones, which have none.
    numbers: tuple[int, ...] = field(default=(), compare=False)

    def names_of(self, devices: list[int]) -> tuple[str, ...]:
        """Returns the names under which CUDA knows the devices for good; emulated ones have none."""
        return tuple(self.cuda_names[device] for device in devices) if self.cuda_names else ()

    def visible_devices(self, devices: list[int], *, by_uuid: bool = False) -> str:
        """Returns CUDA_VISIBLE_DEVICES for these devices: numbers, as most programs expect, where they have any.

        Empty hides the machine's GPUs from emulated ones.
        """
        return ",".join(self.names_of(devices)) if by_uuid or not self.numbers else self.numbers_of(devices)

    def numbers_of(self, devices: list[int]) -> str:
        """Returns the devices' numbers for programs that need numbers; empty where the devices have none.

        Emulated devices are numbered from 0.
        """
        if self.cuda_names and not self.numbers:
            return ""
        return ",".join(str(self.numbers[each] if self.numbers else at) for at, each in enumerate(devices))


@dataclass(frozen=True)
class Host:
    cpus: float
    memory_bytes: int


def detect_host() -> Host:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Host(cpus=float(len(os.sched_getaffinity(0))), memory_bytes=memory_bytes)


def detect_accelerators(environ: Mapping[str, str]) -> Accelerators:
    """Returns the accelerators of a machine with one type (see `detect_types`). Raises ValueError if it has several."""
    found = detect_types(environ)
    if len(found) > 1:
        names = ", ".join(sorted(each.name for each in found))
        raise ValueError(f"unlike GPUs in one machine ({names}): set CUDA_VISIBLE_DEVICES to those of one type")
    return found[0]


def detect_types(environ: Mapping[str, str]) -> tuple[Accelerators, ...]:
    """Returns the GPUs by type, in the order of their first devices; without any, the machine counts as one CPU place.

    GPUs are those that NVML, else AMD SMI, finds and that CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) allows.
    """
    found = _nvml_devices() or amd_devices()
    allowed = environ.get("CUDA_VISIBLE_DEVICES", environ.get("HIP_VISIBLE_DEVICES"))
    if allowed is not None:
        wanted = [word.strip() for word in allowed.split(",") if word.strip()]
        found = [device for index, device in enumerate(found) if str(index) in wanted or device[0] in wanted]
    names = list(dict.fromkeys(name for _, name, _ in found))
    return tuple(_of_type(name, found) for name in names) or (Accelerators(CPU, 1),)


def _of_type(name: str, devices: Sequence[tuple[str, str, int | None]]) -> Accelerators:
    own = [device for device in devices if device[1] == name]
    numbers = [number for _, _, number in own if number is not None]
    uuids = tuple(uuid for uuid, _, _ in own)
    return Accelerators(name, len(own), uuids, tuple(numbers) if len(numbers) == len(own) else ())


def look_at_devices(cuda_names: Sequence[str]) -> list[DeviceSample]:
    """Returns one sample of each device that answers, by its position among these names."""
    is_amd = all(name.isdecimal() for name in cuda_names)
    return sample_amd_devices(cuda_names) if is_amd else sample_devices(cuda_names)


def _nvml_devices() -> list[tuple[str, str, int | None]]:
    """Returns (UUID, canonical name, number) of every GPU, in NVML's order, that of the bus; empty without NVML.

    A GPU that is partitioned (MIG) counts as its slices: each is a device of its own type, such as `a100-40gb-1g.5gb`,
    and has no number.
    """
    with opened_nvml() as nvml:
        if nvml is None:
            return []
        found: list[tuple[str, str, int | None]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            name = detected_accelerator(_text(nvml.nvmlDeviceGetName(handle)), memory_bytes)
            slices = _mig_slices(nvml, handle)
            if slices is None:
                found.append((_text(nvml.nvmlDeviceGetUUID(handle)), name, index))
            else:
                found += [(uuid, f"{name}-{profile}", None) for uuid, profile in slices]
        return found


def _mig_slices(nvml: Any, handle: Any) -> list[tuple[str, str]] | None:
    """Returns (UUID, profile) of a GPU's slices; None if it is not partitioned, or cannot be."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
    except nvml.NVMLError:
        return None
    found = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):  # no slice has this place
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            profile = re.search(r"\bMIG (\d{1,2}g\.\d{1,4}gb)\b", _text(nvml.nvmlDeviceGetName(part)))
            found.append((_text(nvml.nvmlDeviceGetUUID(part)), profile[1] if profile else "mig"))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


#: Where NVIDIA's multi-process service listens unless its daemon was told otherwise.
_MPS_FOLDER = "/tmp/nvidia-mps"


def mps_folder(environ: Mapping[str, str]) -> str:
    """Returns the pipe folder of NVIDIA's multi-process service, if its daemon runs here; empty if it does not.

    With it the kernels of two jobs run on one GPU at the same time; without it the driver gives them time slices.
    """
    folder = environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER
    return folder if os.path.exists(os.path.join(folder, "control")) else ""


def bind_rendezvous_port() -> socket.socket:
    """Returns a bound socket: its port is reserved while the socket is open."""
    holder = socket.socket()
    holder.bind(("", 0))
    return holder


def own_address(server_url: str) -> str:
    """Returns the local address that reaches the server; loopback if the route is unknown."""
    parts = urlsplit(server_url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing; it only picks the route.
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 443))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return "127.0.0.1"


#: Job, attempt, and the incarnation of the cluster that granted it (empty: none was named).
AttemptKey = tuple[int, int, str]


@dataclass
class DeviceHold:
    devices: list[int]
    #: Set between prepare and start on node rank 0.
    port: socket.socket | None = None
    #: Steady-clock instant at which a hold expires if no start has used it; None once started.
    expires_at: float | None = None


@dataclass
class DeviceHolds:
    device_count: int
    _holds: dict[AttemptKey, DeviceHold] = field(default_factory=dict)

    def conflict(self, key: AttemptKey, devices: list[int], beside: int = 0) -> str:
        """Returns why this attempt cannot hold these devices; empty if it can.

        `beside`: the job whose devices it shares; at most two jobs share a device.
        """
        unknown = [device for device in devices if not 0 <= device < self.device_count]
        if unknown or not devices or len(set(devices)) != len(devices):
            return f"no such devices here: {devices} of {self.device_count}"
        others = [other for other, hold in self._holds.items() if other != key and set(hold.devices) & set(devices)]
        for other in others:
            taken = sorted(set(self._holds[other].devices) & set(devices))
            if len(others) > 1 or other[0] != beside or taken != sorted(devices):
                return f"devices {taken} are held by job {other[0]}, attempt {other[1]}"
        return ""

    def take(self, key: AttemptKey, hold: DeviceHold) -> None:
        self._release_port(key)
        self._holds[key] = hold

    def wait_to_start(self, key: AttemptKey, devices: list[int]) -> None:
        """Keeps the attempt's port bound until `start`, and stops its hold from expiring, because it will run."""
        held = self._holds.get(key)
        self._holds[key] = DeviceHold(devices, None if held is None else held.port)

    def start(self, key: AttemptKey, devices: list[int]) -> None:
        """Frees the attempt's port for its ranks; its devices are held until `release`."""
        self.take(key, DeviceHold(devices))

    def release(self, key: AttemptKey) -> None:
        self._release_port(key)
        self._holds.pop(key, None)

    def is_prepared(self, key: AttemptKey) -> bool:
        hold = self._holds.get(key)
        return hold is not None and hold.expires_at is not None

    @property
    def prepared(self) -> list[AttemptKey]:
        return [key for key in self._holds if self.is_prepared(key)]

    def expired(self, now: float) -> list[AttemptKey]:
        return [key for key, hold in self._holds.items() if hold.expires_at is not None and hold.expires_at <= now]

    def port_of(self, key: AttemptKey) -> int:
        hold = self._holds.get(key)
        return 0 if hold is None or hold.port is None else int(hold.port.getsockname()[1])

    def _release_port(self, key: AttemptKey) -> None:
        hold = self._holds.get(key)
        if hold is not None and hold.port is not None:
            hold.port.close()
            hold.port = None
