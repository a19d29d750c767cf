"""Samples the machine's devices every few seconds in a thread of its own: NVIDIA's through NVML, AMD's by AMD SMI.

A driver that hangs blocks only this thread: heartbeats continue, and the server drops samples that are not renewed.
Values that a device does not report (a MIG slice has no temperature of its own) are left out.

AMD's devices are named in CUDA_VISIBLE_DEVICES, which HIP reads as its own variable, by HIP's device numbers. This is
written for the interface of amdsmi 7.0 and tested only with a substitute: it has never run on a device.
"""

import contextlib
import importlib
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from walras.device_samples import FAULT_MOST, MOST_DEVICES, DeviceSample

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
            handle = driver_answer(partial(nvml.nvmlDeviceGetHandleByUUID, name))
            if handle is not None:
                found.append(_sample(nvml, device, handle))
        return found


def _sample(nvml: Any, device: int, handle: Any) -> DeviceSample:
    memory = driver_answer(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    power = driver_answer(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return DeviceSample(
        device=device,
        utilization=value_within(driver_answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0, 100),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
        temperature_c=value_within(
            driver_answer(lambda: nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_OF_GPU)), -100, 300
        ),
        power_w=None if power is None else value_within(power / _MILLIWATTS, 0, 100_000),
    )


def driver_answer(ask: Callable[[], Any]) -> Any:
    """Returns the driver's answer, or None if it has none (each release refuses other queries)."""
    try:
        return ask()
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
        """`judge` returns the faults of devices in words, by position (`workers.device_health`)."""
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
            facts = driver_answer(partial(amdsmi.amdsmi_get_gpu_asic_info, handle)) or {}
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
        told = driver_answer(partial(_hip_number, amdsmi, handle))
        found[told if isinstance(told, int) and 0 <= told < MOST_DEVICES else position] = handle
    return found


def _hip_number(amdsmi: Any, handle: Any) -> Any:
    return amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]


def _sample_amd(amdsmi: Any, device: int, handle: Any) -> DeviceSample:
    memory = driver_answer(partial(amdsmi.amdsmi_get_gpu_vram_usage, handle)) or {}
    power = driver_answer(partial(amdsmi.amdsmi_get_power_info, handle)) or {}
    activity = driver_answer(partial(amdsmi.amdsmi_get_gpu_activity, handle)) or {}
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
    for place in ("HOTSPOT", "EDGE"):

        def ask(place: str = place) -> Any:
            kind, metric = amdsmi.AmdSmiTemperatureType[place], amdsmi.AmdSmiTemperatureMetric.CURRENT
            return amdsmi.amdsmi_get_temp_metric(handle, kind, metric)

        if (found := value_within(driver_answer(ask), -100, 300)) is not None:
            return found
    return None
