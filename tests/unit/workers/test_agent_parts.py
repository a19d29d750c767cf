"""A machine with accelerators of several types: found, stated, and divided into parts that have nothing in common."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeGpu, nvml_with
from walras.errors import ConfigError
from walras.machine_parts import TypeCount
from workers.agent.launch import AgentMachine
from workers.agent.report_store import AgentStore
from workers.agent.startup import (
    AgentOptions,
    StatedAccelerators,
    machine_parts,
    make_part_folders,
    own_accelerators,
    own_parts,
)
from workers.devices import Accelerators, Host, detect_accelerators, detect_types
from workers.preparation.folder_cache import PREPARED_FOLDER, CacheBounds, FolderCache

T4 = "Tesla T4"
MIXED = (TypeCount("a100-40gb", 2), TypeCount("t4", 1))


def test_unlike_gpus_are_found_by_type_with_their_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order the bus has them in: a job of one type sees the devices of that type and no other."""
    nvml_with(monkeypatch, FakeGpu("G0"), FakeGpu("G1", T4, 15), FakeGpu("G2"))
    a100, t4 = detect_types({})
    assert a100 == Accelerators("a100-40gb", 2, ("G0", "G2"))
    assert (a100.visible_devices([0, 1]), a100.numbers_of([0, 1])) == ("0,2", "0,2")
    assert (t4.visible_devices([0]), t4.numbers_of([0])) == ("1", "1")
    assert detect_types({"CUDA_VISIBLE_DEVICES": "1,2"})[0].cuda_names == ("G1",)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        detect_accelerators({})


def test_profiles_of_divided_gpus_are_types_beside_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of the same profile on two GPUs are of one type; CUDA knows each by its UUID, no program by a number."""
    small, large = "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    first = [FakeGpu("MIG-1", small, 10), None, FakeGpu("MIG-2", large, 40)]
    second = [FakeGpu("MIG-3", small, 10)]
    h100 = FakeGpu("G0", "NVIDIA H100 80GB HBM3", 80)
    nvml_with(
        monkeypatch, replace(h100, slices=first), replace(h100, uuid="G1", slices=second), replace(h100, uuid="G2")
    )
    found = {each.name: each for each in detect_types({})}
    assert {name: each.cuda_names for name, each in found.items()} == {
        "h100-80gb-1g.10gb": ("MIG-1", "MIG-3"),
        "h100-80gb-3g.40gb": ("MIG-2",),
        "h100-80gb": ("G2",),
    }
    assert found["h100-80gb-1g.10gb"].visible_devices([1]) == "MIG-3"
    assert found["h100-80gb-1g.10gb"].numbers_of([1]) == ""
    parts = own_parts(AgentOptions(("http://x",), Path("state"), "gpu-1", ""), {})
    assert [part.node_id for part in parts] == ["gpu-1.h100-80gb-1g.10gb", "gpu-1.h100-80gb-3g.40gb", "gpu-1.h100-80gb"]


FOUND = (Accelerators("a100-40gb", 2, ("G0", "G2"), (0, 2)), Accelerators("t4", 1, ("G1",), (1,)))


def test_types_that_are_stated_are_those_of_the_machine() -> None:
    stated = StatedAccelerators(types=(TypeCount("t4", 1), TypeCount("a100-40gb", 1)))
    t4, a100 = own_accelerators(stated, FOUND)
    assert (t4.cuda_names, a100.cuda_names) == (("G1",), ("G0",))
    assert own_accelerators(StatedAccelerators(), FOUND) == FOUND
    assert own_accelerators(StatedAccelerators("t4"), FOUND) == (FOUND[1],)
    emulated = StatedAccelerators(types=MIXED, is_emulated=True)
    assert own_accelerators(emulated, ()) == (Accelerators("a100-40gb", 2), Accelerators("t4", 1))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        (StatedAccelerators(types=(TypeCount("v100", 1), TypeCount("t4", 1))), "no v100 is found.*a100-40gb:2, t4:1"),
        (StatedAccelerators(types=(TypeCount("t4", 2),)), "2 t4 asked for, 1 found"),
        (StatedAccelerators("t4", types=MIXED), "names the types already"),
        (StatedAccelerators(accelerators=2), "of which type"),
        (StatedAccelerators("v100"), "no v100 is found"),
        (StatedAccelerators("t4", 2), "2 accelerators asked for, 1 found"),
    ],
)
def test_what_the_machine_does_not_have_is_refused(stated: StatedAccelerators, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        own_accelerators(stated, FOUND)


@pytest.mark.parametrize("counts", [(2, 1), (1, 7), (3, 3, 3), (1, 1024)])
def test_processors_and_memory_are_never_given_twice(counts: tuple[int, ...], tmp_path: Path) -> None:
    host = Host(cpus=13.0, memory_bytes=10**10 + 7)
    types = [Accelerators(f"type-{at}", count) for at, count in enumerate(counts)]
    parts = machine_parts(types, host, "gpu-1", "", tmp_path)
    assert sum(part.host.cpus for part in parts) == pytest.approx(host.cpus)
    assert host.memory_bytes - len(parts) < sum(part.host.memory_bytes for part in parts) <= host.memory_bytes
    assert all(part.host.cpus > 0 and part.host.memory_bytes > 0 for part in parts)
    assert len({part.state for part in parts} | {part.node_id for part in parts}) == 2 * len(parts)


def test_a_machine_of_one_type_is_no_part_of_anything(tmp_path: Path) -> None:
    (part,) = machine_parts([Accelerators("t4", 2)], Host(4.0, 1000), "gpu-1", "", tmp_path)
    assert (part.node_id, part.shape, part.state, part.machine) == ("gpu-1", "t4x2", tmp_path, "")


def test_a_rented_machine_has_one_type(tmp_path: Path) -> None:
    options = AgentOptions(("http://x",), tmp_path, "gpu-1", "", types=MIXED, emulated=True, rent_token_file=tmp_path)
    with pytest.raises(ConfigError, match="of one type"):
        own_parts(options, {})
    with pytest.raises(ConfigError, match="longer than 100") as refused:
        own_parts(replace(options, node_id="n" * 95, rent_token_file=None), {})
    assert refused.value.fix == "choose a shorter --node"


def test_parts_share_what_is_fetched_and_the_notice_and_remember_apart(tmp_path: Path) -> None:
    """Inputs that one part fetched are there for the other; attempts of one are nothing to the other."""
    parts = machine_parts([Accelerators("a", 1), Accelerators("b", 1)], Host(2.0, 1000), "gpu-1", "", tmp_path)
    for _ in range(2):  # an agent that is started again finds them
        make_part_folders(parts, tmp_path)
    first, second = (FolderCache(part.state / PREPARED_FOLDER / "inputs", CacheBounds(5, 10**6)) for part in parts)
    first.get("k", lambda place: place.joinpath("file").touch())
    assert second.has("k")
    machine = AgentMachine(parts[0].state, parts[0].accelerators, parts[0].host, True, {}, {}, whole=tmp_path)
    assert machine.notices == tmp_path
    stores = [AgentStore(tmp_path), *(AgentStore(part.state) for part in parts)]
    assert len({store.agent for store in stores}) == 3
    for store in stores:
        store.close()
