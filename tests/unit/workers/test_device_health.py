"""Faults of GPUs, from a driver that this test plays."""

import sys
from collections.abc import Callable

import pytest

from tests.support.fake_nvml import FakeGpu, FakeNvml, nvml_with
from walras.device_samples import DeviceSample, faults_text
from workers.device_health import CLEAN_LOOKS, DeviceHealth
from workers.device_sampler import DeviceSampler


def look(health: DeviceHealth) -> str:
    return "; ".join(f"GPU {number}: {fault}" for number, fault in health.look().items())


def looks(health: DeviceHealth, times: int) -> list[str]:
    return [look(health) for _ in range(times)]


def test_devices_without_a_fault_are_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs cause (Xid 13, 31), old memory errors and a moment of heat say nothing against a device."""
    first, second = FakeGpu("G0", ecc=3), FakeGpu("G1", ecc=OSError("no ECC memory"))
    fake = nvml_with(monkeypatch, first, second)
    health = DeviceHealth(["G0", "G1"])
    assert looks(health, 3) == [""] * 3
    fake.xids += [(first, 13), (second, 31)]
    first.throttled = 0x40
    assert looks(health, 3) == [""] * 3
    first.throttled = 0x4  # at its power limit
    assert looks(health, 20) == [""] * 20


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
    assert looks(health, CLEAN_LOOKS) == [told] * (CLEAN_LOOKS - 1) + [""]


def test_heat_is_a_fault_once_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu("G0", throttled=0x40)
    nvml_with(monkeypatch, gpu)
    health = DeviceHealth(["G0"])
    told = looks(health, 10)
    assert told[0] == ""
    assert told[-1] == "GPU 0: heat holds its clocks down"


def test_a_driver_that_is_gone_is_a_fault_of_all_and_amd_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert look(DeviceHealth(["G0", "G1"])).count("driver does not answer") == 2
    assert DeviceHealth(["0", "1"]).look() == {}
    assert DeviceHealth([]).look() == {}


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
