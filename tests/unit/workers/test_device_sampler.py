"""What devices say of themselves: use, power and faults, of NVIDIA and AMD."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.fake_nvml import FakeGpu, FakeNvml, nvml_with
from walras.machines.machine_facts import (
    DeviceSample,
    faults_text,
    memory_text,
    power_text,
    temperature_text,
    utilization_text,
)
from walras.spec.accelerator_names import canonical_accelerator
from walras.wire import Heartbeat
from workers.devices import (
    CLEAN_LOOKS,
    Accelerators,
    DeviceHealth,
    DeviceSampler,
    canonical_amd_name,
    detect_accelerators,
    detect_types,
    look_at_devices,
    sample_devices,
)

GIB = 2**30


def test_each_device_is_looked_at_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml_with(monkeypatch, FakeGpu("G0"), FakeGpu("G1", utilization=3, power_mw=60_000, temperature=30))
    second, first = sample_devices(["G1", "G0"])
    assert second == DeviceSample(
        device=0, utilization=3, memory_used_bytes=3 * GIB, memory_bytes=40 * GIB, temperature_c=30, power_w=60
    )
    assert (first.device, first.power_w) == (1, 312.5)
    assert (fake.opened, fake.closed) == (1, 1)


def test_what_the_driver_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is refused, a value that cannot be, and a device that is gone cost nothing else."""
    nvml_with(monkeypatch, FakeGpu("G0", utilization=OSError("no"), power_mw=-1, temperature=4e9), FakeGpu("G2"))
    found = sample_devices(["G0", "gone", "G2"])
    assert [each.device for each in found] == [0, 2]
    assert (found[0].utilization, found[0].power_w, found[0].temperature_c) == (None, None, None)
    assert found[0].memory_bytes == 40 * GIB


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sample_devices(["G0"]) == []
    assert detect_accelerators({}) == Accelerators("cpu", 1)


def test_a_sample_is_handed_out_once_and_a_hanging_driver_hangs_nobody() -> None:
    looked, go_on = threading.Event(), threading.Event()

    def look(names: Sequence[str]) -> list[DeviceSample]:
        if looked.is_set():
            go_on.wait(60)
        looked.set()
        return [DeviceSample(device=0, utilization=5)]

    sampler = DeviceSampler(["G0"], look, every_s=0.0)
    assert sampler.take() is None
    sampler.start()
    assert looked.wait(30)
    while (found := sampler.take()) is None:
        pass
    assert found == [DeviceSample(device=0, utilization=5)]
    assert sampler.take() is None
    sampler.stop()
    go_on.set()


def test_a_divided_gpu_is_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is a device of a type of its own, told apart from whole GPUs; places without one are passed over."""
    part = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    slices = [FakeGpu("M0", part, 5), None, FakeGpu("M1", part, 5)]
    nvml_with(monkeypatch, FakeGpu("G0", slices=slices))
    found = detect_accelerators({})
    assert found == Accelerators("a100-40gb-1g.5gb", 2, ("M0", "M1"))
    assert canonical_accelerator(found.name) == found.name
    assert [each.memory_bytes for each in sample_devices(found.cuda_names)] == [5 * GIB] * 2
    part = FakeGpu("M0", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20)
    nvml_with(monkeypatch, FakeGpu("G0", slices=[part]), FakeGpu("G1"))
    with pytest.raises(ValueError, match=r"a100-40gb, a100-40gb-3g\.20gb"):
        detect_accelerators({})
    assert detect_accelerators({"CUDA_VISIBLE_DEVICES": "M0"}) == Accelerators("a100-40gb-3g.20gb", 1, ("M0",))
    assert detect_accelerators({"CUDA_VISIBLE_DEVICES": "G1"}) == Accelerators("a100-40gb", 1, ("G1",))


def test_samples_are_bounded_on_the_wire() -> None:
    """An agent cannot send the server more than a machine can have, nor numbers that are none."""
    assert Heartbeat(node_id="n1").devices is None
    sample = {"device": 0, "utilization": 50}
    assert Heartbeat.model_validate({"node_id": "n1", "devices": [sample]}).devices
    wrong = [{"device": -1}, sample | {"utilization": 101}, sample | {"power_w": float("inf")}]
    for bad in ([sample] * 1025, *([each] for each in wrong)):
        with pytest.raises(ValidationError):
            Heartbeat.model_validate({"node_id": "n1", "devices": bad})


def test_samples_in_words() -> None:
    samples = [
        DeviceSample(device=0, utilization=97, memory_used_bytes=61 * 10**9, memory_bytes=80 * 10**9, power_w=300),
        DeviceSample(device=1, temperature_c=71, power_w=40.4),
    ]
    assert utilization_text(samples) == "97 ?%"
    assert memory_text(samples) == "61 GB of 80 GB"
    assert (temperature_text(samples), power_text(samples)) == ("71°C", "340 W")
    assert [text([]) for text in (utilization_text, memory_text, temperature_text, power_text)] == [""] * 4


def look(health: DeviceHealth) -> str:
    return "; ".join(f"GPU {number}: {fault}" for number, fault in health.look().items())


def looks(health: DeviceHealth, times: int) -> list[str]:
    return [look(health) for _ in range(times)]


def test_what_is_a_fault_of_a_device_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs cause, old memory errors and a moment of heat are no fault; lasting heat is, and a driver gone."""
    first, second = FakeGpu("G0", ecc=3), FakeGpu("G1", ecc=OSError("no ECC memory"))
    fake = nvml_with(monkeypatch, first, second)
    health = DeviceHealth(["G0", "G1"])
    assert looks(health, 3) == [""] * 3
    fake.xids += [(first, 13), (second, 31)]
    first.throttled = 0x40
    assert looks(health, 3) == [""] * 3
    first.throttled = 0x4  # at its power limit
    assert looks(health, 20) == [""] * 20
    first.throttled = 0x40
    assert looks(health, 3) == [""] * 3
    health.close()
    assert fake.opened == fake.closed == 1
    gpu = FakeGpu("G0", throttled=0x40)
    nvml_with(monkeypatch, gpu)
    health = DeviceHealth(["G0"])
    told = looks(health, 10)
    assert told[0] == ""
    assert told[-1] == "GPU 0: heat holds its clocks down"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert look(DeviceHealth(["G0", "G1"])).count("driver does not answer") == 2
    assert DeviceHealth(["0", "1"]).look() == {}
    assert DeviceHealth([]).look() == {}


def lost(fake: FakeNvml, gpu: FakeGpu) -> Callable[[], None]:
    fake.gpus.remove(gpu)
    return lambda: fake.gpus.append(gpu)


def xid(fake: FakeNvml, gpu: FakeGpu) -> Callable[[], None]:
    fake.xids.append((gpu, 79))
    return lambda: None


def ecc(fake: FakeNvml, gpu: FakeGpu) -> Callable[[], None]:
    gpu.ecc = 2
    return lambda: None


def rows(fake: FakeNvml, gpu: FakeGpu) -> Callable[[], None]:
    gpu.remap_failed = True
    return lambda: setattr(gpu, "remap_failed", False)


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lost, "GPU 1: it is gone: the driver does not find it"),
        (xid, "GPU 1: Xid 79, it fell off the bus"),
        (ecc, "GPU 1: 2 uncorrectable memory errors"),
        (rows, "GPU 1: memory rows could not be replaced"),
    ],
)
def test_a_fault_is_named_and_lasts_until_the_device_is_clean_for_a_while(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[FakeNvml, FakeGpu], Callable[[], None]], told: str
) -> None:
    """By device and in words; it comes back only after several looks without any sign of a fault."""
    good, bad = FakeGpu("G0"), FakeGpu("G1")
    fake = nvml_with(monkeypatch, good, bad)
    health = DeviceHealth(["G0", "G1"])
    assert look(health) == ""
    mend = fails(fake, bad)
    assert look(health) == told
    mend()
    assert looks(health, CLEAN_LOOKS - 1) == [told] * (CLEAN_LOOKS - 1)
    fake.xids.append((bad, 74))  # another sign: the while begins again
    assert looks(health, CLEAN_LOOKS + 1) == ["GPU 1: Xid 74, NVLink error"] * CLEAN_LOOKS + [""]


def test_the_sampler_reports_faults_with_its_samples() -> None:
    """Also of a device of which there is no sample any more."""
    sample = DeviceSample(device=0, utilization=5)
    sampler = DeviceSampler(
        ["G0", "G1"], lambda names: [sample], every_s=0.0, judge=lambda: {0: "hot", 1: "it is gone"}
    )
    sampler.start()
    while (found := sampler.take()) is None:
        pass
    sampler.stop()
    assert found == [sample.model_copy(update={"fault": "hot"}), DeviceSample(device=1, fault="it is gone")]
    assert faults_text(found) == "GPU 0: hot; GPU 1: it is gone"


MIB = 2**20
UNKNOWN = 2**32 - 1
Place = Enum("Place", ["EDGE", "HOTSPOT"])


@dataclass
class AmdGpu:
    hip_id: Any
    name: str = "AMD Instinct MI300X"
    activity: Any = 88
    power: dict[str, Any] = field(default_factory=lambda: {"current_socket_power": 640, "average_socket_power": "N/A"})
    temperature: dict[str, Any] = field(default_factory=lambda: {"EDGE": 50, "HOTSPOT": 77})


class FakeAmdSmi(SimpleNamespace):
    """The part of AMD SMI that is used. A value that is an exception is raised."""

    def __init__(self, *gpus: AmdGpu) -> None:
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


def amdsmi_with(monkeypatch: pytest.MonkeyPatch, *gpus: AmdGpu) -> FakeAmdSmi:
    fake = FakeAmdSmi(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("AMD Instinct MI300X", "mi300x"), ("AMD Instinct MI250X / MI250", "mi250x"), ("Instinct MI210", "mi210"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"), ("AMD Radeon PRO W7900", "w7900"), ("0x74a1", "rocm-gpu"),
        ("", "rocm-gpu"),
    ],
)  # fmt: skip
def test_products_have_short_names_that_job_files_take(product: str, name: str) -> None:
    assert canonical_amd_name(product) == name
    assert canonical_accelerator(name) == name


def test_devices_go_by_the_numbers_of_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order the library has them in; a job sees those that it holds, and its launcher calls them so."""
    fake = amdsmi_with(monkeypatch, AmdGpu(2), AmdGpu(0), AmdGpu(1))
    found = detect_accelerators({})
    assert found == Accelerators("mi300x", 3, ("0", "1", "2"))
    assert (found.visible_devices([0, 2]), found.numbers_of([0, 2])) == ("0,2", "0,2")
    assert detect_accelerators({"HIP_VISIBLE_DEVICES": "1,2"}) == Accelerators("mi300x", 2, ("1", "2"))
    assert fake.opened == 0


def test_each_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi_with(monkeypatch, AmdGpu(1), AmdGpu(0, activity=3))
    first, second = look_at_devices(["1", "0"])
    assert first == DeviceSample(
        device=0, utilization=88, memory_used_bytes=1024 * MIB, memory_bytes=196592 * MIB, temperature_c=77, power_w=640
    )
    assert (second.device, second.utilization) == (1, 3)


def test_what_the_amd_driver_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, the largest number there is, questions that are refused, and devices that are gone."""
    silent = AmdGpu(
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
    amdsmi_with(monkeypatch, AmdGpu(0), AmdGpu(1, "AMD Instinct MI210"))
    assert [(each.name, each.cuda_names) for each in detect_types({})] == [("mi300x", ("0",)), ("mi210", ("1",))]
    with pytest.raises(ValueError, match="mi210, mi300x"):
        detect_accelerators({})
    assert detect_accelerators({"CUDA_VISIBLE_DEVICES": "1"}) == Accelerators("mi210", 1, ("1",))
