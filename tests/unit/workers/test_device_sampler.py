"""What a machine's devices do and are, from a driver that this test plays."""

import sys
import threading
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from tests.support.fake_nvml import FakeGpu, nvml_with
from walras.device_samples import DeviceSample, memory_text, power_text, temperature_text, utilization_text
from walras.spec.accelerator_names import canonical_accelerator
from walras.wire import Heartbeat
from workers.device_sampler import DeviceSampler, sample_devices
from workers.devices import Accelerators, detect_accelerators

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
    """Each slice is a device of a type of its own; places without one are passed over."""
    part = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    slices = [FakeGpu("M0", part, 5), None, FakeGpu("M1", part, 5)]
    nvml_with(monkeypatch, FakeGpu("G0", slices=slices))
    found = detect_accelerators({})
    assert found == Accelerators("a100-40gb-1g.5gb", 2, ("M0", "M1"))
    assert canonical_accelerator(found.name) == found.name
    assert [each.memory_bytes for each in sample_devices(found.cuda_names)] == [5 * GIB] * 2


def test_slices_beside_whole_gpus_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
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
