"""What a machine says that it has, and machines of several types as parts."""

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_nvml import FakeGpu, nvml_with
from walras.cluster import TypeCount
from walras.errors import ConfigError
from workers.agent.follower import Follower, end_of
from workers.agent.launch import AgentMachine, load_emulated_speeds, pace_of
from workers.agent.machine_notices import read_notice
from workers.agent.report_store import AgentStore
from workers.agent.startup import (
    AgentOptions,
    machine_parts,
    make_part_folders,
    own_accelerators,
    own_parts,
)
from workers.devices import (
    CPU,
    Accelerators,
    AttemptKey,
    DeviceHold,
    DeviceHolds,
    Host,
    detect_accelerators,
    detect_types,
    mps_folder,
    own_address,
)
from workers.preparation.folder_cache import PREPARED_FOLDER, CacheBounds, FolderCache
from workers.processes import hold_port, name_process

T4 = "Tesla T4"
MIXED = (TypeCount("a100-40gb", 2), TypeCount("t4", 1))


def test_unlike_gpus_are_found_by_type_with_their_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job sees the devices of its type alone; slices of one profile are a type, known to CUDA by their UUIDs."""
    nvml_with(monkeypatch, FakeGpu("G0"), FakeGpu("G1", T4, 15), FakeGpu("G2"))
    a100, t4 = detect_types({})
    assert a100 == Accelerators("a100-40gb", 2, ("G0", "G2"))
    assert (a100.visible_devices([0, 1]), a100.numbers_of([0, 1])) == ("0,2", "0,2")
    assert (t4.visible_devices([0]), t4.numbers_of([0])) == ("1", "1")
    assert detect_types({"CUDA_VISIBLE_DEVICES": "1,2"})[0].cuda_names == ("G1",)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        detect_accelerators({})
    small, large = "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    first = [FakeGpu("MIG-1", small, 10), None, FakeGpu("MIG-2", large, 40)]
    second = [FakeGpu("MIG-3", small, 10)]
    h100 = FakeGpu("G0", "NVIDIA H100 80GB HBM3", 80)
    nvml_with(
        monkeypatch, replace(h100, slices=first), replace(h100, uuid="G1", slices=second), replace(h100, uuid="G2")
    )
    found = {each.name: each for each in detect_types({})}
    assert {name: each.cuda_names for name, each in found.items()} == {
        "h100-80gb-1g.10gb": ("MIG-1", "MIG-3"), "h100-80gb-3g.40gb": ("MIG-2",), "h100-80gb": ("G2",),
    }  # fmt: skip
    assert found["h100-80gb-1g.10gb"].visible_devices([1]) == "MIG-3"
    assert found["h100-80gb-1g.10gb"].numbers_of([1]) == ""
    parts = own_parts(AgentOptions(("http://x",), Path("state"), "gpu-1", ""), {})
    assert [part.node_id for part in parts] == ["gpu-1.h100-80gb-1g.10gb", "gpu-1.h100-80gb-3g.40gb", "gpu-1.h100-80gb"]


def _stated(accelerator: str | None = None, accelerators: int | None = None, **more: Any) -> AgentOptions:
    return AgentOptions((), Path("state"), "gpu-1", "", None, accelerator, accelerators, **more)


FOUND = (Accelerators("a100-40gb", 2, ("G0", "G2"), (0, 2)), Accelerators("t4", 1, ("G1",), (1,)))


def test_types_that_are_stated_are_those_of_the_machine() -> None:
    stated = _stated(types=(TypeCount("t4", 1), TypeCount("a100-40gb", 1)))
    t4, a100 = own_accelerators(stated, FOUND)
    assert (t4.cuda_names, a100.cuda_names) == (("G1",), ("G0",))
    assert own_accelerators(_stated(), FOUND) == FOUND
    assert own_accelerators(_stated("t4"), FOUND) == (FOUND[1],)
    emulated = _stated(types=MIXED, emulated=True)
    assert own_accelerators(emulated, ()) == (Accelerators("a100-40gb", 2), Accelerators("t4", 1))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        (_stated(types=(TypeCount("v100", 1), TypeCount("t4", 1))), "no v100 is found.*a100-40gb:2, t4:1"),
        (_stated(types=(TypeCount("t4", 2),)), "2 t4 asked for, 1 found"),
        (_stated("t4", types=MIXED), "names the types already"),
        (_stated(accelerators=2), "of which type"),
        (_stated("v100"), "no v100 is found"),
        (_stated("t4", 2), "2 accelerators asked for, 1 found"),
    ],
)
def test_what_the_machine_does_not_have_is_refused(stated: AgentOptions, told: str) -> None:
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
    second.get("k", lambda place: pytest.fail("it is made again"))
    machine = AgentMachine(parts[0].state, parts[0].accelerators, parts[0].host, True, {}, {}, whole=tmp_path)
    assert machine.notices == tmp_path
    stores = [AgentStore(tmp_path), *(AgentStore(part.state) for part in parts)]
    assert len({store.agent for store in stores}) == 3
    for store in stores:
        store.close()


def test_emulated_devices_see_no_gpu_and_real_ones_only_their_own() -> None:
    """CUDA_VISIBLE_DEVICES names exactly the devices of the attempt: by number, slices and on request by UUID."""
    assert Accelerators("a100", 2).visible_devices([0, 1]) == ""
    two = Accelerators("h200", 2, ("GPU-a", "GPU-b"), (4, 6))
    assert (two.visible_devices([1]), two.visible_devices([0, 1], by_uuid=True)) == ("6", "GPU-a,GPU-b")
    assert Accelerators("h200-1g.18gb", 2, ("MIG-a", "MIG-b")).visible_devices([1]) == "MIG-b"


def test_a_speed_table_is_checked_where_it_is_read(tmp_path: Path) -> None:
    """A wrong number is an error that names its place, a missing kind runs free, a family stands for its sizes."""
    path = tmp_path / "speeds.yaml"
    path.write_text("cnn: {a100: 12, v100: 6}\n")
    speeds = load_emulated_speeds(path)
    found = [pace_of(speeds, kind, name) for kind, name in (("cnn", "v100"), ("cnn", "k80"), ("rnn", "v100"))]
    assert found == [6, None, None]
    path.write_text("cnn: {a100: -1}\n")
    with pytest.raises(ConfigError, match=r"cnn\.a100"):
        load_emulated_speeds(path)
    speeds = {"cnn": {"h100": 5.0, "h100-94gb": 6.0}}
    assert [pace_of(speeds, "cnn", name) for name in ("h100-80gb", "h100-94gb", "a100-80gb")] == [5.0, 6.0, None]


def test_devices_are_held_by_one_attempt() -> None:
    """Or by two where the server said so, never three; a prepared hold keeps its port until the start, and expires."""
    holds = DeviceHolds(2)
    holds.start(AttemptKey(1, 1), [0])
    assert "job 1, attempt 1" in holds.conflict(AttemptKey(2, 1), [0, 1])
    assert holds.conflict(AttemptKey(2, 1), [1]) == ""
    assert holds.conflict(AttemptKey(2, 1), [2])
    assert holds.conflict(AttemptKey(2, 1), [1, 1])
    holds.release(AttemptKey(1, 1))
    assert holds.conflict(AttemptKey(2, 1), [0, 1]) == ""
    holds = DeviceHolds(1)
    holds.take(AttemptKey(1, 1), DeviceHold([0], hold_port(), expires_at=100.0))
    port = holds.port_of(AttemptKey(1, 1))
    assert port > 0
    assert holds.expired(99.0) == []
    assert holds.expired(100.0) == [AttemptKey(1, 1)]
    holds.start(AttemptKey(1, 1), [0])
    assert holds.port_of(AttemptKey(1, 1)) == 0
    assert holds.expired(1e9) == []
    holds = DeviceHolds(2)
    holds.take(AttemptKey(1, 1), DeviceHold([0]))
    assert holds.conflict(AttemptKey(2, 1), [0]) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict(AttemptKey(2, 1), [0], beside=3) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict(AttemptKey(2, 1), [0, 1], beside=1) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict(AttemptKey(2, 1), [0], beside=1) == ""
    holds.take(AttemptKey(2, 1), DeviceHold([0]))
    assert holds.conflict(AttemptKey(3, 1), [0], beside=1) == "devices [0] are held by job 1, attempt 1"
    holds.release(AttemptKey(1, 1))
    assert holds.conflict(AttemptKey(3, 1), [0], beside=2) == ""


def test_a_notice_counts_from_when_it_was_written(tmp_path: Path) -> None:
    """An agent that finds the file late knows that less time is left; a half-written file is no notice yet."""
    assert read_notice(tmp_path) is None
    path = tmp_path / "notice"
    path.write_text("")
    assert read_notice(tmp_path) is None
    path.write_text("30\n")
    written_at = time.time() - 10
    os.utime(path, (written_at, written_at))
    notice = read_notice(tmp_path)
    assert notice.gone_in_s == pytest.approx(20, abs=1)


def test_the_address_is_the_one_that_reaches_the_server() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"


def test_accelerators_that_are_not_there_are_refused() -> None:
    """A declared type without a GPU on the machine ran on the CPU under its name; emulated it may be anything."""
    stated, nothing = _stated("a100", 2), [Accelerators(CPU, 1)]
    with pytest.raises(ConfigError, match="no a100 is found") as refused:
        own_accelerators(stated, nothing)
    assert "--emulated" in str(refused.value.fix)
    assert own_accelerators(replace(stated, emulated=True), []) == (Accelerators("a100", 2),)
    assert own_accelerators(replace(stated, accelerator=CPU), nothing) == (Accelerators(CPU, 2),)
    found = [Accelerators("a100-40gb", 2, ("G1", "G2"))]
    assert own_accelerators(stated, found) == (Accelerators("a100", 2, ("G1", "G2")),)


def test_the_pipes_of_the_multi_process_service_are_found_where_its_daemon_runs(tmp_path: Path) -> None:
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert mps_folder(environ) == ""
    os.mkfifo(tmp_path / "control")
    assert mps_folder(environ) == str(tmp_path)


async def test_an_end_is_awaited_where_python_cannot_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standalone builds of Python have no `os.pidfd_open`; the supervisor is then polled."""
    monkeypatch.delattr(os, "pidfd_open")
    with end_of(name_process(os.getpid())) as ended:
        assert not ended.is_set()


async def test_a_supervisor_hears_of_the_lease_that_was_renewed_before_it_listened(tmp_path: Path) -> None:
    """While it starts, and between two connections; the last one counts."""
    heard = asyncio.Queue[dict[str, Any]]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            heard.put_nowait(json.loads(line))
            if json.loads(line)["type"] == "renew":
                writer.close()

    socket = str(tmp_path / "control")
    plan: Any = SimpleNamespace(job_id=1, attempt=1, incarnation="", control_socket=socket)
    unused: Any = None
    follower = Follower(tmp_path, plan, unused, unused, 0, unused)
    for until in (20.0, 30.0):
        follower.renew(until, 20.0)
    async with await asyncio.start_unix_server(listen, socket):
        for _ in range(2):
            await follower._read_connection()
            assert await heard.get() == {"type": "status"}
            assert await heard.get() == {"type": "renew", "until": 30.0, "lease_s": 20.0}
