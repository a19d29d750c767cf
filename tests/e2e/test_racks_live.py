"""Real ranks on machines in two racks: kept in one, and slower over two, as explain says: assumed, then measured."""

import sys
from pathlib import Path

import pytest

from tests.support.networks_apart import CABLE, networks_apart
from tests.support.real_server import FIFO, A, RealServer, wait_for

pytestmark = pytest.mark.slow

RACKS = {"r1": ["a1", "a2"], "r2": ["b1", "b2"]}
#: An update of 4 MB between two ranks.
GANG = """
import torch, torch.distributed as dist
from walras.training import Loop
dist.init_process_group("gloo")
gradient = torch.ones(1_000_000)
for _ in Loop().steps(range(100_000)):
    dist.all_reduce(gradient)
    gradient /= 2.0
"""


def test_a_gang_is_placed_in_one_rack_and_told_what_two_cost_it(tmp_path: Path) -> None:
    """Each machine has a network of its own, and links between racks carry 100 Mbit/s.

    The first gang leaves the rack alone in which a job runs; for the second there is a machine in each rack.
    """
    names = [name for rack in RACKS.values() for name in rack]
    script = tmp_path / "gang.py"
    script.write_text(GANG)
    racks = {"uplinks": {"machine": "10Gbit", "rack": "100Mbit"}, "switches": RACKS}
    with networks_apart(*names) as networks:
        for name in names:
            networks.slow_down(name, [other for other in names if other[0] != name[0]], 100)
        server = RealServer(tmp_path, [A], FIFO, topology=racks, listen=["--host", networks.outside, "--insecure"])
        try:
            server.start()
            for name in names:
                server.start_agent(name, within=networks.enter(name))
            assert _places(server, _submit(server, "one", ["sleep", "600"], 1)) == {"a1"}
            near = _submit(server, "gang", [sys.executable, str(script)], 2)
            assert _places(server, near) == {"b1", "b2"}
            assert _slower(server, near) == ""
            near_bytes_per_s = _network(server, near)
            wait_for(lambda: server.job(near)["steps_per_s"], 60, "a speed")
            server.call("POST", f"/jobs/{near}/cancel")
            server.until_state(near, "CANCELLED", 60)
            server.call("POST", "/nodes/b2/drain")
            far = _submit(server, "gang", [sys.executable, str(script)], 2)
            assert _places(server, far) == {"a2", "b1"}
            assert _slower(server, far).startswith("2 racks: ")
            assert _network(server, far) < 0.5 * near_bytes_per_s
            measured = wait_for(lambda: server.job(far)["steps_per_s"], 60, "a speed there")
            percent = round(100 - 100 * measured / server.job(near)["steps_per_s"])
            wait_for(
                lambda: abs(int(_slower(server, far)[9:11]) - percent) < 10, 60, f"{percent} % slower, as measured"
            )
            assert percent > 50
        finally:
            server.close()


def _submit(server: RealServer, name: str, run: list[str], ranks: int) -> int:
    more = {"envs": {"GLOO_SOCKET_IFNAME": CABLE}, "num_nodes": ranks, "profile": name}
    return server.submit(name=name, run=run, resources={"accelerators": f"a:{ranks}"}, **more)


def _places(server: RealServer, job_id: int) -> set[str]:
    server.until_running(job_id, 1, 90)
    return {place.split(":")[0] for place in server.attempt(job_id)["placement"]}


def _network(server: RealServer, job_id: int) -> float:
    """The bandwidth that its ranks measured, bytes per second."""
    told = wait_for(lambda: server.job(job_id)["last_values"].get("network_bytes_per_s"), 60, "a network")
    return float(told)


def _slower(server: RealServer, job_id: int) -> str:
    """What `walras explain` notes of its speed."""
    told = server.call("GET", f"/jobs/{job_id}/explain")[1]["conditions"]
    return next((str(each["detail"]) for each in told if each["type"] == "speed_differs"), "")
