"""A real PyTorch job submitted with a plan: the planned machines are rented and measured, and no others."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_spot_money import JOB, NOBODY_PAYS, SPOT, steps_of
from tests.support.real_server import Serve, wait_for
from walras.cli.arguments import instant_of

pytestmark = pytest.mark.slow

RENTED = {**SPOT, "market": "on_demand", "quota": 2}
SLOW = {**RENTED, "shape": "kx1", "accelerator": "k80", "usd_per_h": 0.2}
FAST = {**RENTED, "shape": "vx1", "accelerator": "v100", "usd_per_h": 3.0}


def job_file(folder: Path, **fields: Any) -> Path:
    """A job of 200 steps of 50 ms, which its file takes to be twelve times as fast on a v100 as on a k80."""
    path = folder / "job.yaml"
    spec = {
        "run": [sys.executable, str(JOB), "200", "0.05", "planned"], "steps": 200, "batch": {"global": 1},
        "profile": "spot-job", "resources": {"accelerators": {"k80": 1, "v100": 1}},
        "throughput": {"k80": 1.5, "v100": 18}, "grace_period": "2s", "checkpoint": {"interval": "5s"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**spec, **fields}))
    return path


def test_exactly_the_planned_machines_are_rented_and_measured(serve: Serve, tmp_path: Path) -> None:
    """Time for the cheap pool: that one. Less time: the fast one, one machine of it, in time; the plan is shown."""
    server = serve([SLOW, FAST], NOBODY_PAYS)
    file = str(job_file(tmp_path))
    told = server.told("submit", file, "--recommend", "deadline=1h", "--dry-run", "--yes")
    assert "take 1 x kx1/on_demand/default" in told
    asked = server.command("submit", file, "--recommend", "deadline=120s")
    assert asked.returncode != 0
    assert "add --yes" in asked.stderr
    assert server.call("GET", "/jobs")[1]["items"] == []

    job_id = int(server.told("submit", file, "--recommend", "deadline=120s", "--yes", "-q"))
    seen: set[tuple[str, int]] = set()

    def is_over() -> bool:
        pools = server.call("GET", "/pools")[1]
        seen.update((each["pool_id"], each["machines"] + each["coming"]) for each in pools)
        return server.state(job_id) == "SUCCEEDED"

    wait_for(is_over, 120, "the planned job ends", lambda: server.job(job_id))
    rented = {(pool, machines) for pool, machines in seen if machines}
    assert rented == {("vx1/on_demand/default", 1)}
    detail = server.job(job_id)
    assert [each["pool"] for each in detail["attempt_list"]] == ["vx1/on_demand/default"]
    assert instant_of(detail["ended_at"]) - instant_of(detail["submitted_at"]) <= 120
    shown = server.told("show", str(job_id))
    assert "planned 18 steps/s on 1 x v100" in shown
    assert "measured" in shown


def test_a_plan_that_was_wrong_is_told(serve: Serve, tmp_path: Path) -> None:
    """The file takes the job to be twice as fast as it is: `explain` says so while it runs."""
    server = serve([SLOW, FAST], NOBODY_PAYS)
    # So long that it still runs when it has been told, and asked about again.
    run = [sys.executable, str(JOB), "4000", "0.05", "planned"]
    file = str(job_file(tmp_path, throughput={"v100": 36}, run=run, steps=4000))
    job_id = int(server.told("submit", file, "--recommend", "budget=20", "--yes", "-q"))

    def told() -> str:
        conditions = server.call("GET", f"/jobs/{job_id}/explain")[1]["conditions"]
        return next((str(each["detail"]) for each in conditions if each["type"] == "off_plan"), "")

    assert "planned 36 steps/s" in wait_for(told, 90, "the job is off its plan", lambda: server.job(job_id))
    assert server.job(job_id)["spec"]["limits"]["budget_usd"] == 20
    again = server.told("cloud", "recommend", "--job", str(job_id))
    assert "keeps its goal" in again
    assert "leave it where it is" in again


def test_a_job_that_is_late_by_its_measured_speed_is_moved_with_its_work(serve: Serve, tmp_path: Path) -> None:
    """Three times slower than its file says on the cheap pool: the next plan has it on the fast one, from its save."""
    server = serve([SLOW, FAST], NOBODY_PAYS, lease="60s")
    # Nine minutes at this speed, three by its file: it is late however long it took to start.
    run = ["sh", "-c", f"cd {tmp_path} && exec {sys.executable} {JOB} 10000 0.05 planned"]
    file = str(job_file(tmp_path, throughput={"k80": 60, "v100": 240}, run=run, steps=10_000))
    job_id = int(server.told("submit", file, "--recommend", "deadline=250s", "--yes", "-q"))
    server.until_running(job_id, timeout_s=60)
    assert server.attempt(job_id)["pool"] == "kx1/on_demand/default"
    wait_for(lambda: server.job(job_id)["steps_per_s"], 120, "its speed is measured", lambda: server.job(job_id))
    moved = server.command("cloud", "recommend", "--job", str(job_id), "--apply")
    assert "misses its goal" in moved.stdout, moved.stderr
    assert "move it to 1 x vx1/on_demand/default" in moved.stdout
    assert f"job {job_id} was saved and goes on there" in moved.stdout
    server.until_running(job_id, attempt=2, timeout_s=60)
    assert server.attempt(job_id)["pool"] == "vx1/on_demand/default"
    assert server.job(job_id)["spec"]["plan"]["pool"] == "vx1/on_demand/default"
    server.kill()
    server.start()
    speeds = server.call("GET", f"/jobs/{job_id}/explain")[1]["speeds"]
    assert {each["pool"] for each in speeds} == {"vx1/on_demand/default"}, "a new server knows where it belongs"
    wait_for(lambda: steps_of(server.log(job_id, 2)), 90, "it takes steps there", lambda: server.job(job_id))
    (tmp_path / "enough").touch()
    server.until_state(job_id, "SUCCEEDED", 90)
    assert [each["pool"] for each in server.job(job_id)["attempt_list"]][1:] == ["vx1/on_demand/default"]
    saved = max(step for attempt, step, _ in server.recorded(job_id) if attempt == 1)
    assert saved > 0
    assert steps_of(server.log(job_id, 2))[0][0] == saved


def test_a_recommendation_from_the_catalog_is_launched_as_a_pool(serve: Serve, tmp_path: Path) -> None:
    """The server gets a pool with exactly the planned quota, and the job runs there to its end."""
    server = serve([SLOW], NOBODY_PAYS)
    sold = {"instance": "vx1", "accelerator": "v100", "accelerators": 1, "cpus": 2, "memory": "1GB"}
    common = {"cloud": "rehearsal", "region": "east", "as_of": "2026-11-01", "source": "made up"}
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(yaml.safe_dump({**common, "instances": [{**sold, "on_demand_usd_per_h": 3.0}]}))
    where = ["--catalog", str(catalog), "--cloud", "rehearsal", "--launch"]
    words = [str(job_file(tmp_path)), "--deadline", "100s", *where]
    asked = server.command("cloud", "recommend", *words)
    assert "add --yes" in asked.stderr
    assert [each["pool_id"] for each in server.call("GET", "/pools")[1]] == ["kx1/on_demand/default"]
    server.told("cloud", "recommend", *words, "--yes")
    pool = next(each for each in server.call("GET", "/pools")[1] if each["shape"] == "vx1")
    assert (pool["pool_id"], pool["quota"], pool["provider"]) == ("vx1/on_demand/east", 1, "local")
    server.until_state(1, "SUCCEEDED", 90)
    assert server.attempt(1)["pool"] == "vx1/on_demand/east"
    again = server.command("cloud", "recommend", *words, "--yes")
    assert "use vx1/on_demand/east" in again.stdout, again.stderr
    server.until_state(2, "SUCCEEDED", 90)
