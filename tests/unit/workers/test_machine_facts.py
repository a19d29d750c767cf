"""Names of accelerators, speed tables, device holds, notices."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from walras.errors import ConfigError
from workers.agent.launch import load_emulated_speeds, pace_of
from workers.agent.machine_notices import read_notice
from workers.agent.startup import StatedAccelerators, own_accelerators
from workers.devices import (
    CPU,
    Accelerators,
    DeviceHold,
    DeviceHolds,
    bind_rendezvous_port,
    mps_folder,
    own_address,
)


def test_emulated_devices_see_no_gpu_and_real_ones_only_their_own() -> None:
    """CUDA_VISIBLE_DEVICES names exactly the devices of the attempt: by number, slices and on request by UUID."""
    assert Accelerators("a100", 2).visible_devices([0, 1]) == ""
    two = Accelerators("h200", 2, ("GPU-a", "GPU-b"), (4, 6))
    assert (two.visible_devices([1]), two.visible_devices([0, 1], by_uuid=True)) == ("6", "GPU-a,GPU-b")
    assert Accelerators("h200-1g.18gb", 2, ("MIG-a", "MIG-b")).visible_devices([1]) == "MIG-b"


def test_a_speed_table_is_checked_where_it_is_read(tmp_path: Path) -> None:
    """A wrong number is an error that names its place; a missing kind runs free."""
    path = tmp_path / "speeds.yaml"
    path.write_text("cnn: {a100: 12, v100: 6}\n")
    speeds = load_emulated_speeds(path)
    assert [pace_of(speeds, "cnn", "v100"), pace_of(speeds, "cnn", "k80"), pace_of(speeds, "rnn", "v100")] == [
        6,
        None,
        None,
    ]
    path.write_text("cnn: {a100: -1}\n")
    with pytest.raises(ConfigError, match=r"cnn\.a100"):
        load_emulated_speeds(path)


def test_emulated_speeds_may_be_stated_for_a_family() -> None:
    """`h100: 5` is the speed on any size of it, and a size with a number of its own has that."""
    speeds = {"cnn": {"h100": 5.0, "h100-94gb": 6.0}}
    assert [pace_of(speeds, "cnn", name) for name in ("h100-80gb", "h100-94gb", "a100-80gb")] == [5.0, 6.0, None]


def test_devices_are_held_by_one_attempt() -> None:
    """Taken devices, unknown ones and the same one twice are conflicts; released ones are free again."""
    holds = DeviceHolds(2)
    holds.start((1, 1), [0])
    assert "job 1, attempt 1" in holds.conflict((2, 1), [0, 1])
    assert holds.conflict((2, 1), [1]) == ""
    assert holds.conflict((2, 1), [2])
    assert holds.conflict((2, 1), [1, 1])
    holds.release((1, 1))
    assert holds.conflict((2, 1), [0, 1]) == ""


def test_a_prepared_hold_keeps_its_port_until_the_start_and_expires() -> None:
    """The port is bound while prepared and free for the ranks once started."""
    holds = DeviceHolds(1)
    holds.take((1, 1), DeviceHold([0], bind_rendezvous_port(), expires_at=100.0))
    port = holds.port_of((1, 1))
    assert port > 0
    assert holds.expired(99.0) == []
    assert holds.expired(100.0) == [(1, 1)]
    holds.start((1, 1), [0])
    assert holds.port_of((1, 1)) == 0
    assert holds.expired(1e9) == []


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
    assert notice is not None
    assert notice.gone_in_s == pytest.approx(20, abs=1)


def test_the_address_is_the_one_that_reaches_the_server() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"


def test_accelerators_that_are_not_there_are_refused() -> None:
    """A declared type without a GPU on the machine ran on the CPU under its name; emulated it may be anything."""
    stated, nothing = StatedAccelerators("a100", 2), [Accelerators(CPU, 1)]
    with pytest.raises(ConfigError, match="no a100 is found") as refused:
        own_accelerators(stated, nothing)
    assert "--emulated" in str(refused.value.fix)
    assert own_accelerators(replace(stated, is_emulated=True), []) == (Accelerators("a100", 2),)
    assert own_accelerators(replace(stated, accelerator=CPU), nothing) == (Accelerators(CPU, 2),)
    found = [Accelerators("a100-40gb", 2, ("G1", "G2"))]
    assert own_accelerators(stated, found) == (Accelerators("a100", 2, ("G1", "G2")),)


def test_two_jobs_share_devices_only_where_the_server_said_so_and_never_three() -> None:
    holds = DeviceHolds(2)
    holds.take((1, 1, ""), DeviceHold([0]))
    assert holds.conflict((2, 1, ""), [0]) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict((2, 1, ""), [0], beside=3) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict((2, 1, ""), [0, 1], beside=1) == "devices [0] are held by job 1, attempt 1"
    assert holds.conflict((2, 1, ""), [0], beside=1) == ""
    holds.take((2, 1, ""), DeviceHold([0]))
    assert holds.conflict((3, 1, ""), [0], beside=1) == "devices [0] are held by job 1, attempt 1"
    holds.release((1, 1, ""))
    assert holds.conflict((3, 1, ""), [0], beside=2) == ""


def test_the_pipes_of_the_multi_process_service_are_found_where_its_daemon_runs(tmp_path: Path) -> None:
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert mps_folder(environ) == ""
    os.mkfifo(tmp_path / "control")
    assert mps_folder(environ) == str(tmp_path)
