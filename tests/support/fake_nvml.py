"""A driver of NVIDIA's that a test plays: GPUs, and the slices of divided ones."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 2**30


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    gib: int = 40
    utilization: Any = 97
    power_mw: Any = 312_500
    temperature: Any = 71
    #: Uncorrectable memory errors, whether rows could not be replaced, and why its clocks are held down.
    ecc: Any = 0
    remap_failed: bool = False
    throttled: int = 0
    #: Slices of a divided GPU, by place; None: no slice there. Not divided: None in the list's place.
    slices: list["FakeGpu | None"] | None = None


@dataclass
class FakeNvml:
    """The part of NVML that is used. A value that is an exception is raised."""

    gpus: list[FakeGpu]
    opened: int = 0
    closed: int = 0
    #: Xid errors that nobody was told yet.
    xids: list[tuple[FakeGpu, int]] = field(default_factory=list)
    NVML_DEVICE_MIG_ENABLE: int = 1
    NVMLError: type[Exception] = field(default=OSError)

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed += 1

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid.encode(),
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=gpu.gib * GIB, used=3 * GIB),
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=self._value(gpu.utilization)),
            "nvmlDeviceGetPowerUsage": lambda gpu: self._value(gpu.power_mw),
            "nvmlDeviceGetTemperature": lambda gpu, _: self._value(gpu.temperature),
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: self._value(gpu.ecc),
            "nvmlDeviceGetRemappedRows": lambda gpu: (0, 0, 0, int(gpu.remap_failed)),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttled,
            "nvmlEventSetCreate": lambda: object(),
            "nvmlDeviceRegisterEvents": lambda gpu, kinds, events: None,
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlDeviceGetMigMode": lambda gpu: (int(gpu.slices is not None), 0),
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _by_uuid(self, uuid: str) -> FakeGpu:
        every = [part for gpu in self.gpus for part in (gpu, *filter(None, gpu.slices or []))]
        for gpu in every:
            if gpu.uuid == uuid:
                return gpu
        raise self.NVMLError("not found")

    def _next_event(self, events: object, timeout_ms: int) -> SimpleNamespace:
        if not self.xids:
            raise self.NVMLError("timeout")
        gpu, number = self.xids.pop(0)
        return SimpleNamespace(device=gpu, eventType=8, eventData=number)

    def _slice(self, gpu: FakeGpu, place: int) -> FakeGpu:
        found = (gpu.slices or [])[place : place + 1]
        if not found or found[0] is None:
            raise self.NVMLError("not found")
        return found[0]

    def _value(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value


def nvml_with(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> FakeNvml:
    fake = FakeNvml(list(gpus))
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake
