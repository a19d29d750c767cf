"""A submitted collection runs where machines are cheapest, and moves when a price falls elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_elastic_spot_live import JOB, MARKET, SPOT
from tests.support.real_server import WALRAS, RealServer, wait_for

pytestmark = pytest.mark.slow

#: More than it makes: it has trained enough once both jobs have moved, however long that takes.
STEPS = 2000
WEST, EAST = ({**SPOT, "zone": zone, "quota": 2, "usd_per_h": usd} for zone, usd in (("west", 1.0), ("east", 1.2)))


def test_jobs_go_where_the_price_falls_and_lose_no_step(tmp_path: Path) -> None:
    server = RealServer(tmp_path, [WEST, EAST], MARKET)
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        out.mkdir()
    many = tmp_path / "many.yaml"
    jobs = [{"name": out.name, "run": [sys.executable, str(JOB), str(out)]} for out in outs]
    shared = {
        "resources": {"accelerators": "s:1"}, "steps": STEPS, "grace_period": "20s", "value_usd_per_h": 8,
        "batch": {"global": 6}, "checkpoint": {"interval": "10m"}, "workdir": str(tmp_path),
    }  # fmt: skip
    many.write_text(yaml.safe_dump({"collection": "pair", "defaults": shared, "jobs": jobs}))
    try:
        server.start()
        access = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN_FILE": str(server.data / "admin.token")}
        told = subprocess.run(
            [WALRAS, "submit", str(many), "-q"], env=access, capture_output=True, text=True, check=True
        )
        numbers = [int(line) for line in told.stdout.split()]
        assert len(numbers) == 2

        def pools() -> list[str | None]:
            return [server.job(number)["pool"] for number in numbers]

        wait_for(lambda: pools() == ["sx1/spot/west"] * 2, 60, "both where it is cheaper", lambda: str(pools()))
        for number in numbers:
            server.until_step(number, 10, 60.0)
        assert server.call("PATCH", "/pools/sx1%2Fspot%2Feast", {"usd_per_h": 0.2})[0] == 200
        wait_for(lambda: pools() == ["sx1/spot/east"] * 2, 90, "both where it is cheaper now", lambda: str(pools()))
        for number, out in zip(numbers, outs, strict=True):
            server.until_step(number, server.job(number)["steps"] + 10, 60.0)
            (out / "enough").touch()
        for number, out in zip(numbers, outs, strict=True):
            server.until_state(number, "SUCCEEDED", 120.0)
            steps = [json.loads(line)[0] for line in (out / "steps").read_text().splitlines()]
            assert steps == list(range(len(steps)))  # each once, in order
        assert {server.job(number)["labels"]["collection"] for number in numbers} == {"pair"}
    finally:
        server.close()
