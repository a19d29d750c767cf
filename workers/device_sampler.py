"""Samples the machine's devices every few seconds, NVIDIA's through NVML, in a thread of its own.

A driver that hangs blocks only this thread: heartbeats continue, and the server drops samples that are not renewed.
Values that a device does not report (a MIG slice has no temperature of its own) are left out.
"""

import contextlib
import importlib
import logging
import math
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
