"""The machine's devices: which there are, who holds which, their samples and their faults.

Accelerators are found through NVML, where nvidia-ml-py is installed, else through AMD SMI, where amdsmi is. Node rank 0
of a gang keeps a port bound until its ranks start.

The devices are sampled every few seconds in a separate thread. A driver that hangs blocks only this thread: heartbeats
continue, and the server drops samples that are not renewed. Values that a device does not report (a MIG slice has no
temperature of its own) are left out.

AMD's devices are named in CUDA_VISIBLE_DEVICES, which HIP reads as its own variable, by HIP's device numbers. This is
written for the interface of amdsmi 7.0 and tested only with a substitute: it has never run on a device.

With a fault a machine should take no jobs; NVML is asked every few seconds. A fault is a device that is gone or does
not answer, an Xid error of the hardware, uncorrectable memory errors, memory rows that could not be replaced, and
clocks that heat holds down. It lasts until the device has been without a sign of one for a while. What programs cause
themselves (Xid 13, 31, 43 and their like) is no fault. AMD's devices are not judged.
"""

import contextlib
import importlib
import logging
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from walras.connection.remote_session import SessionRequest
from walras.machines.machine_facts import FAULT_MOST, MOST_DEVICES, DeviceSample
from walras.spec.accelerator_names import detected_accelerator
from walras.wire import AgentCommand, AttemptHere, AttemptReport
from workers.supervisor_protocol import AttemptPlan

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 10.0
_MILLIWATTS = 1000.0
_TEMPERATURE_OF_GPU = 0


@contextlib.contextmanager
def opened_nvml() -> Iterator[Any]:
    """Yields NVML, opened; None where the machine has none."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # the library raises its own errors, which are not known before it is imported
        log.debug("no NVML: %s", error)
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def sample_devices(cuda_names: Sequence[str]) -> list[DeviceSample]:
    """Returns one sample of each device that answers, by its position in `cuda_names` (UUIDs)."""
    with opened_nvml() as nvml:
        if nvml is None:
            return []
        found = []
        for device, name in enumerate(cuda_names[:MOST_DEVICES]):
            handle = driver_answer(nvml.nvmlDeviceGetHandleByUUID, name)
            if handle is not None:
                found.append(_sample(nvml, device, handle))
        return found


def _sample(nvml: Any, device: int, handle: Any) -> DeviceSample:
    memory = driver_answer(nvml.nvmlDeviceGetMemoryInfo, handle)
    power = driver_answer(nvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceSample(
        device=device,
        utilization=value_within(driver_answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0, 100),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
        temperature_c=value_within(
            driver_answer(nvml.nvmlDeviceGetTemperature, handle, _TEMPERATURE_OF_GPU), -100, 300
        ),
        power_w=None if power is None else value_within(power / _MILLIWATTS, 0, 100_000),
    )


def driver_answer(ask: Callable[..., Any], *given: Any) -> Any:
    """Returns what the driver answers to `ask(*given)`, or None if it has none (each release refuses other queries)."""
    try:
        return ask(*given)
    except Exception:
        return None


def value_within(value: Any, least: float, most: float) -> float | None:
    """Returns a number if it is plausible, else None; drivers return impossible values, or text, for unknown ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and least <= value <= most else None


class DeviceSampler:
    """The newest sample of each device, until it is taken."""

    def __init__(
        self,
        cuda_names: Sequence[str],
        look: Callable[[Sequence[str]], list[DeviceSample]],
        every_s: float = SAMPLE_EVERY_S,
        judge: Callable[[], dict[int, str]] | None = None,
    ) -> None:
        """`judge` returns the faults of devices in words, by position (`workers.devices`)."""
        self._cuda_names = tuple(cuda_names)
        self._look = look
        self._every_s = every_s
        self._newest: list[DeviceSample] | None = None
        self._judge = judge
        self._stopped = threading.Event()

    def start(self) -> None:
        """Starts sampling, if there is a device. The thread does not keep the process alive."""
        if self._cuda_names:
            threading.Thread(target=self._look_on, name="devices", daemon=True).start()

    def stop(self) -> None:
        """Stops sampling, without waiting for a sample that hangs."""
        self._stopped.set()

    def take(self) -> list[DeviceSample] | None:
        """Returns the samples since the last call, None if there are no new ones."""
        newest, self._newest = self._newest, None
        return newest

    def _look_on(self) -> None:
        while not self._stopped.is_set():
            try:
                faults = {} if self._judge is None else self._judge()
                found = {sample.device: sample for sample in self._look(self._cuda_names)}
                for device, fault in faults.items():
                    known = found.get(device, DeviceSample(device=device))
                    found[device] = known.model_copy(update={"fault": fault[:FAULT_MOST]})
                self._newest = list(found.values())
            except Exception as error:
                log.warning("the devices could not be looked at: %s", error)
            self._stopped.wait(self._every_s)


# ------------------------------------------------------------------------------------------ AMD


_MEBIBYTE = 2**20
#: A product's name without the maker's: `mi300x`, `mi210`, `rx-7900-xtx`, `w7900`.
_MODEL = re.compile(r"\b(MI\d{2,3}[AX]?|(?:Radeon )?RX \d{4}(?: XTX?| GRE)?|W\d{4}X?)\b", re.IGNORECASE)


@contextlib.contextmanager
def opened_amdsmi() -> Iterator[Any]:
    """Yields AMD SMI, opened; None where the machine has none."""
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except (Exception, SystemExit) as error:  # it loads the driver's library when it is imported, in ways of its own
        log.debug("no AMD SMI: %s", error)
        yield None
        return
    try:
        yield amdsmi
    finally:
        amdsmi.amdsmi_shut_down()


def amd_devices() -> list[tuple[str, str, int | None]]:
    """Returns (number as text, canonical name, number) of every GPU, by HIP's numbers; empty without AMD SMI."""
    with opened_amdsmi() as amdsmi:
        if amdsmi is None:
            return []
        found: list[tuple[str, str, int | None]] = []
        for number, handle in sorted(_handles(amdsmi).items()):
            facts = driver_answer(amdsmi.amdsmi_get_gpu_asic_info, handle) or {}
            found.append((str(number), canonical_amd_name(str(facts.get("market_name", ""))), number))
        return found


def canonical_amd_name(product: str) -> str:
    """Converts a product name: `AMD Instinct MI300X` is `mi300x`; an unknown product is `rocm-gpu`."""
    model = _MODEL.search(product)
    return model[1].lower().removeprefix("radeon ").replace(" ", "-") if model else "rocm-gpu"


def sample_amd_devices(names: Sequence[str]) -> list[DeviceSample]:
    """Returns one sample of each device that answers, by its position in `names` (numbers as text)."""
    with opened_amdsmi() as amdsmi:
        if amdsmi is None:
            return []
        handles = _handles(amdsmi)
        wanted = ((device, handles.get(int(name))) for device, name in enumerate(names[:MOST_DEVICES]))
        return [_sample_amd(amdsmi, device, handle) for device, handle in wanted if handle is not None]


def _handles(amdsmi: Any) -> dict[int, Any]:
    """Returns the GPUs by HIP's numbers; by their order where the release does not report these."""
    found = {}
    for position, handle in enumerate(driver_answer(amdsmi.amdsmi_get_processor_handles) or []):
        # Releases before 6.4 have no such function: asked for inside, so that this is one more thing not told.
        told = driver_answer(_hip_number, amdsmi, handle)
        found[told if isinstance(told, int) and 0 <= told < MOST_DEVICES else position] = handle
    return found


def _hip_number(amdsmi: Any, handle: Any) -> Any:
    return amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]


def _sample_amd(amdsmi: Any, device: int, handle: Any) -> DeviceSample:
    memory = driver_answer(amdsmi.amdsmi_get_gpu_vram_usage, handle) or {}
    power = driver_answer(amdsmi.amdsmi_get_power_info, handle) or {}
    activity = driver_answer(amdsmi.amdsmi_get_gpu_activity, handle) or {}
    watts = (value_within(power.get(f"{name}socket_power"), 0, 100_000) for name in ("current_", "average_", ""))
    used, total = (value_within(memory.get(name), 0, 2**30) for name in ("vram_used", "vram_total"))
    return DeviceSample(
        device=device,
        utilization=value_within(activity.get("gfx_activity"), 0, 100),
        memory_used_bytes=None if used is None else int(used) * _MEBIBYTE,
        memory_bytes=None if total is None else int(total) * _MEBIBYTE,
        temperature_c=_amd_temperature(amdsmi, handle),
        # Releases fill one of them or another, and the rest with the largest number that there is, or with 0.
        power_w=next((each for each in watts if each), None),
    )


def _amd_temperature(amdsmi: Any, handle: Any) -> float | None:
    """Returns the temperature of the chip's hottest point; where a device does not report it, of its edge."""

    def ask(place: str) -> Any:
        kind, metric = amdsmi.AmdSmiTemperatureType[place], amdsmi.AmdSmiTemperatureMetric.CURRENT
        return amdsmi.amdsmi_get_temp_metric(handle, kind, metric)

    told = (value_within(driver_answer(ask, place), -100, 300) for place in ("HOTSPOT", "EDGE"))
    return next((each for each in told if each is not None), None)


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


class AttemptKey(NamedTuple):
    """Names an attempt on this machine."""

    job_id: int
    attempt: int
    #: Of the cluster that granted it: the same numbers from another incarnation are another attempt. Empty: none named.
    incarnation: str = ""

    @classmethod
    def of(cls, about: AgentCommand | AttemptHere | AttemptReport | SessionRequest | AttemptPlan) -> "AttemptKey":
        """Returns the key of the attempt that a message or a plan is about."""
        return cls(about.job_id, about.attempt, about.incarnation)


@dataclass
class DeviceHold:
    devices: list[int]
    #: Open between prepare and start on node rank 0: holds the port.
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
            if len(others) > 1 or other.job_id != beside or taken != sorted(devices):
                return f"devices {taken} are held by job {other.job_id}, attempt {other.attempt}"
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


#: Xid errors of a device or of its links, in words. Others are a program's, or say nothing about the next job.
_XIDS = {
    48: "double-bit memory error", 62: "its microcontroller stopped", 64: "a memory row could not be replaced",
    74: "NVLink error", 79: "it fell off the bus", 92: "many single-bit memory errors", 95: "memory error that spread",
    119: "its firmware does not answer", 120: "its firmware failed", 140: "memory error that was not corrected",
}  # fmt: skip
#: NVML's numbers of what is asked for.
_XID_EVENT, _UNCORRECTED, _SINCE_LOADED, _HEAT = 0x8, 1, 0, 0x40
#: Looks in a row in which heat holds the clocks down until that is a fault, and looks without any sign that end one.
_HOT_LOOKS, CLEAN_LOOKS = 6, 6
_EVENTS_AT_ONCE = 100


def watched_devices(names: Sequence[str]) -> DeviceSampler:
    """Returns a sampler of these devices that judges them, too."""
    return DeviceSampler(names, look_at_devices, judge=DeviceHealth(names).look)


class DeviceHealth:
    """What is wrong with these devices (UUIDs), from look to look. For one thread alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names) if not all(name.isdecimal() for name in names) else ()
        #: By device: the fault, looks without a sign since then, looks in heat, memory errors as first seen.
        self._faults: dict[str, str] = {}
        self._clean: dict[str, int] = {}
        self._hot: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._events: Any = None
        self._nvml: Any = None
        self._closing: Callable[..., Any] | None = None

    def look(self) -> dict[int, str]:
        """Asks once about each device. Returns the faults in words, by position."""
        if not self._names:
            return {}
        if self._nvml is None:
            self._open()
        told = self._xids()
        for number, name in enumerate(self._names):
            sign = told.get(name) or self._sign(name)
            if sign:
                if name not in self._faults:
                    log.warning("GPU %d (%s) is at fault: %s", number, name, sign)
                self._faults[name], self._clean[name] = sign, 0
            elif name in self._faults:
                self._clean[name] += 1
                if self._clean[name] >= CLEAN_LOOKS:
                    del self._faults[name]
                    log.warning("GPU %d (%s) has passed the check", number, name)
        return {number: self._faults[name] for number, name in enumerate(self._names) if name in self._faults}

    def _open(self) -> None:
        """Keeps the library open, because errors are reported only to whom waits for them."""
        entered = opened_nvml()
        self._nvml, self._closing = entered.__enter__(), entered.__exit__
        if self._nvml is None:
            return
        self._events = driver_answer(self._nvml.nvmlEventSetCreate)
        for name in self._names:
            handle = driver_answer(self._nvml.nvmlDeviceGetHandleByUUID, name)
            if handle is not None and self._events is not None:
                driver_answer(self._nvml.nvmlDeviceRegisterEvents, handle, _XID_EVENT, self._events)

    def close(self) -> None:
        """Gives the library back."""
        if self._closing is not None:
            self._closing(None, None, None)
        self._nvml = self._closing = self._events = None

    def _xids(self) -> dict[str, str]:
        """Returns, by device, the errors of the hardware since the last look."""
        found: dict[str, str] = {}
        if self._nvml is None or self._events is None:
            return found
        for _ in range(_EVENTS_AT_ONCE):
            event = driver_answer(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            name = driver_answer(self._nvml.nvmlDeviceGetUUID, event.device)
            words = _XIDS.get(event.eventData) if isinstance(event.eventData, int) else None
            if words is not None:
                known = _text(name) in self._names
                found[_text(name) if known else self._names[0]] = f"Xid {event.eventData}, {words}"
        return found

    def _sign(self, name: str) -> str:
        """Returns the sign of a fault that the device shows now; empty if it shows none."""
        nvml = self._nvml
        if nvml is None:
            return "NVIDIA's driver does not answer"
        handle = driver_answer(nvml.nvmlDeviceGetHandleByUUID, name)
        if handle is None or driver_answer(nvml.nvmlDeviceGetMemoryInfo, handle) is None:
            return "it is gone: the driver does not find it"
        errors = driver_answer(nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _SINCE_LOADED)
        if isinstance(errors, int):
            known = self._errors.setdefault(name, errors)
            self._errors[name] = errors
            if errors > known:
                return f"{errors - known} uncorrectable memory errors"
        rows = driver_answer(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            return "memory rows could not be replaced"
        reasons = driver_answer(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        is_hot = isinstance(reasons, int) and bool(reasons & _HEAT)
        self._hot[name] = self._hot.get(name, 0) + 1 if is_hot else 0
        return "heat holds its clocks down" if self._hot[name] >= _HOT_LOOKS else ""
