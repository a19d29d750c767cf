"""Faults of NVIDIA's GPUs, for which a machine should take no jobs: what NVML reports of them, asked every few seconds.

A fault is a device that is gone or does not answer, an Xid error of the hardware, uncorrectable memory errors, memory
rows that could not be replaced, and clocks that heat holds down. It lasts until the device has been without a sign of
one for a while. What programs cause themselves (Xid 13, 31, 43 and their like) is no fault. AMD's devices are not
judged.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from workers.device_sampler import DeviceSampler, driver_answer, opened_nvml
from workers.devices import look_at_devices

log = logging.getLogger(__name__)

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
            handle = driver_answer(partial(self._nvml.nvmlDeviceGetHandleByUUID, name))
            if handle is not None and self._events is not None:
                driver_answer(partial(self._nvml.nvmlDeviceRegisterEvents, handle, _XID_EVENT, self._events))

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
            event = driver_answer(partial(self._nvml.nvmlEventSetWait_v2, self._events, 0))
            if event is None:
                break
            name = driver_answer(partial(self._nvml.nvmlDeviceGetUUID, event.device))
            words = _XIDS.get(event.eventData) if isinstance(event.eventData, int) else None
            if words is not None:
                name = name.decode() if isinstance(name, bytes) else str(name)
                found[name if name in self._names else self._names[0]] = f"Xid {event.eventData}, {words}"
        return found

    def _sign(self, name: str) -> str:
        """Returns the sign of a fault that the device shows now; empty if it shows none."""
        nvml = self._nvml
        if nvml is None:
            return "NVIDIA's driver does not answer"
        handle = driver_answer(partial(nvml.nvmlDeviceGetHandleByUUID, name))
        if handle is None or driver_answer(partial(nvml.nvmlDeviceGetMemoryInfo, handle)) is None:
            return "it is gone: the driver does not find it"
        errors = driver_answer(partial(nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _SINCE_LOADED))
        if isinstance(errors, int):
            known = self._errors.setdefault(name, errors)
            self._errors[name] = errors
            if errors > known:
                return f"{errors - known} uncorrectable memory errors"
        rows = driver_answer(partial(nvml.nvmlDeviceGetRemappedRows, handle))
        if rows is not None and rows[3]:
            return "memory rows could not be replaced"
        reasons = driver_answer(partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle))
        is_hot = isinstance(reasons, int) and bool(reasons & _HEAT)
        self._hot[name] = self._hot.get(name, 0) + 1 if is_hot else 0
        return "heat holds its clocks down" if self._hot[name] >= _HOT_LOOKS else ""
