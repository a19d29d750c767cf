"""What only a real GPU can show: detection and samples through NVML, exact resume of the device's random numbers, NCCL,
and two jobs on one device. Skipped where there is none; the driver that other tests play is `fake_nvml`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_machine import (
    ENDLESS,
    NODE,
    RESUMED,
    WAITING,
    GpuMachine,
    ask_multi_process_service,
    gpus_here,
    multi_process_service,
    share_a_device,
)
from tests.support.real_server import wait_for
from workers.devices import Accelerators, sample_devices

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def found() -> Accelerators:
    gpus = gpus_here()
    if gpus is None:
        pytest.skip("this machine has no GPU that PyTorch can use")
    return gpus


@pytest.fixture
def machine(tmp_path: Path, found: Accelerators) -> Iterator[GpuMachine]:
    each = GpuMachine(tmp_path, found)
    try:
        yield each.start()
    finally:
        each.close()


def test_nvml_finds_the_devices_that_pytorch_sees(found: Accelerators) -> None:
    """As many, under the same UUIDs, with the memory that PyTorch tells."""
    import torch

    of_torch = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    assert {f"GPU-{each.uuid}" for each in of_torch} == set(found.cuda_names)
    assert found.numbers == tuple(range(found.count))
    told = [each.memory_bytes for each in sample_devices(found.cuda_names)]
    assert all(
        memory is not None and each.total_memory <= memory <= 1.1 * each.total_memory
        for memory, each in zip(told, of_torch, strict=True)
    )


def test_a_machine_joins_with_what_it_found_and_tells_what_its_devices_do(machine: GpuMachine) -> None:
    """A job that computes all the time is seen as utilisation, memory, temperature and power of its device."""
    node = machine.server.node(NODE)
    assert node is not None
    assert (node["accelerator"], node["accelerators"]) == (machine.found.name, machine.found.count)
    job = machine.submit("busy", ENDLESS, envs={"SIZE": "8192", "BATCH": "8192", "WAIT_S": "0"})

    def is_seen() -> bool:
        (sample, *_) = (machine.server.node(NODE) or {}).get("devices") or [{}]
        return (sample.get("utilization") or 0) > 80

    wait_for(is_seen, 90, "the device is seen at work", lambda: machine.server.job(job))
    (sample, *_) = (machine.server.node(NODE) or {})["devices"]
    assert sample["memory_used_bytes"] > 2**30
    assert 10 < sample["temperature_c"] < 110
    assert sample["power_w"] > 50


def test_a_job_that_is_stopped_twice_ends_with_the_bits_of_a_quiet_run(machine: GpuMachine, tmp_path: Path) -> None:
    """Over NCCL, with dropout and noise drawn on the device; without the device's generator it ends elsewhere."""
    ranks = machine.found.count
    quiet = _run_alone(tmp_path)
    if ranks == 1:
        assert _stopped_twice(machine, tmp_path / "kept", ranks) == quiet
    else:
        assert _stopped_twice(machine, tmp_path / "kept", ranks).split()[2] == quiet.split()[2]
    assert _stopped_twice(machine, tmp_path / "forgotten", ranks, FORGET_DEVICE="1") != quiet


def _run_alone(folder: Path) -> str:
    from tests.support.attempts import ROOT

    environ = {
        **os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", RESUMED, str(folder / "quiet")], env=environ, check=True, timeout=120)
    return (folder / "quiet").read_text()


def _stopped_twice(machine: GpuMachine, result: Path, ranks: int, **envs: str) -> str:
    job = machine.submit(result.name, RESUMED, str(result), ranks=ranks, envs={"STEP_S": "0.1", **envs})
    for step in (10, 50):
        machine.server.until_step(job, step, 120)
        machine.stop_and_go_on(job)
    machine.server.until_state(job, "SUCCEEDED", 150)
    assert len(machine.server.job(job)["attempt_list"]) == 3
    return result.read_text()


def test_jobs_are_clients_of_the_multi_process_service_where_it_runs(tmp_path: Path, found: Accelerators) -> None:
    """Two jobs share a device through it: each is measured beside the other, and the service knows both."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("this machine has no nvidia-cuda-mps-control")
    with multi_process_service(tmp_path / "mps") as environ:
        machine = GpuMachine(tmp_path, found, **environ)
        try:
            machine.start()
            kept = share_a_device(machine, WAITING)
            (server,) = ask_multi_process_service(environ, "get_server_list").split()
            clients = ask_multi_process_service(environ, f"get_client_list {server}").split()
        finally:
            machine.close()
    assert len(clients) == 2
    assert kept > 1.1


def test_two_jobs_share_a_device_by_time_slices(machine: GpuMachine) -> None:
    """Each waits for most of its time: together they do more than one after the other."""
    assert share_a_device(machine, WAITING) > 1.1
