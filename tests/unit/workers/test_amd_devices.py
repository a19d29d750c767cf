"""AMD's devices, from a driver that this test plays: no such device was at hand."""

import sys
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from walras.device_samples import DeviceSample
from walras.spec.accelerator_names import canonical_accelerator
from workers.device_sampler import canonical_amd_name
from workers.devices import Accelerators, detect_accelerators, detect_types, look_at_devices

MIB = 2**20
UNKNOWN = 2**32 - 1
Place = Enum("Place", ["EDGE", "HOTSPOT"])


@dataclass
class FakeGpu:
    hip_id: Any
    name: str = "AMD Instinct MI300X"
    activity: Any = 88
    power: dict[str, Any] = field(default_factory=lambda: {"current_socket_power": 640, "average_socket_power": "N/A"})
    temperature: dict[str, Any] = field(default_factory=lambda: {"EDGE": 50, "HOTSPOT": 77})


class FakeAmdSmi(SimpleNamespace):
    """The part of AMD SMI that is used. A value that is an exception is raised."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus, self.opened = list(gpus), 0
        super().__init__(
            AmdSmiInitFlags=SimpleNamespace(INIT_AMD_GPUS=2),
            AmdSmiTemperatureType=Place,
            AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
            amdsmi_init=lambda flags: self._count(1),
            amdsmi_shut_down=lambda: self._count(-1),
            amdsmi_get_processor_handles=lambda: self.gpus,
            amdsmi_get_gpu_asic_info=lambda gpu: {"market_name": gpu.name},
            amdsmi_get_gpu_enumeration_info=lambda gpu: {"hip_id": self._value(gpu.hip_id)},
            amdsmi_get_gpu_vram_usage=lambda gpu: {"vram_total": 196592, "vram_used": 1024},
            amdsmi_get_gpu_activity=lambda gpu: {"gfx_activity": self._value(gpu.activity)},
            amdsmi_get_power_info=lambda gpu: gpu.power,
            amdsmi_get_temp_metric=lambda gpu, place, metric: self._value(gpu.temperature[place.name]),
        )

    def _count(self, by: int) -> None:
        self.opened += by

    @staticmethod
    def _value(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value


def amdsmi_with(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> FakeAmdSmi:
    fake = FakeAmdSmi(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("Instinct MI210", "mi210"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("AMD Radeon PRO W7900", "w7900"),
        ("0x74a1", "rocm-gpu"),
        ("", "rocm-gpu"),
    ],
)
def test_products_have_short_names_that_job_files_take(product: str, name: str) -> None:
    assert canonical_amd_name(product) == name
    assert canonical_accelerator(name) == name


def test_devices_go_by_the_numbers_of_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order the library has them in; a job sees those that it holds, and its launcher calls them so."""
    fake = amdsmi_with(monkeypatch, FakeGpu(2), FakeGpu(0), FakeGpu(1))
    found = detect_accelerators({})
    assert found == Accelerators("mi300x", 3, ("0", "1", "2"))
    assert (found.visible_devices([0, 2]), found.numbers_of([0, 2])) == ("0,2", "0,2")
    assert detect_accelerators({"HIP_VISIBLE_DEVICES": "1,2"}) == Accelerators("mi300x", 2, ("1", "2"))
    assert fake.opened == 0


def test_each_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi_with(monkeypatch, FakeGpu(1), FakeGpu(0, activity=3))
    first, second = look_at_devices(["1", "0"])
    assert first == DeviceSample(
        device=0, utilization=88, memory_used_bytes=1024 * MIB, memory_bytes=196592 * MIB, temperature_c=77, power_w=640
    )
    assert (second.device, second.utilization) == (1, 3)


def test_what_the_driver_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, the largest number there is, questions that are refused, and devices that are gone."""
    silent = FakeGpu(
        OSError("no"),
        activity="N/A",
        power={"current_socket_power": UNKNOWN, "average_socket_power": "N/A", "socket_power": 0},
        temperature={"EDGE": 40, "HOTSPOT": OSError("no")},
    )
    amdsmi_with(monkeypatch, silent)
    (found,) = look_at_devices(["0", "7"])
    assert (found.device, found.utilization, found.power_w, found.temperature_c) == (0, None, None, 40)


@pytest.mark.parametrize("absent", [None, SimpleNamespace()])
def test_without_its_library_there_are_none(monkeypatch: pytest.MonkeyPatch, absent: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", absent)
    assert look_at_devices(["0"]) == []
    assert detect_accelerators({}) == Accelerators("cpu", 1)


def test_unlike_ones_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi_with(monkeypatch, FakeGpu(0), FakeGpu(1, "AMD Instinct MI210"))
    assert [(each.name, each.cuda_names) for each in detect_types({})] == [("mi300x", ("0",)), ("mi210", ("1",))]
    with pytest.raises(ValueError, match="mi210, mi300x"):
        detect_accelerators({})
    assert detect_accelerators({"CUDA_VISIBLE_DEVICES": "1"}) == Accelerators("mi210", 1, ("1",))
