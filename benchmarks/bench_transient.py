"""An elastic job whose workers follow the price of spot machines, against the same job on machines on demand alone.

    python -m benchmarks transient

`walras simulate run` under the default policy, as a user types it: eight spot machines at .9 USD an hour whose price
wanders (lognormal, every half hour, .5) and that live four hours in the mean, beside eight on demand at 3 USD. The
scheduler knows nothing of either law. Three more runs tell where the difference comes from.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.tables import Measured

_SEEDS, _FIRST_SEED = 8, 300
_SPOT_USD, _SURE_USD = 0.9, 3.0
_MACHINE = {"shape": "v100x1", "accelerator": "v100", "accelerators": 1, "cpus": 8, "memory": "60GiB"}
_TERMS = {"provider": "simulated", "quota": 8, "boot": "60s", "minimum_billing": "60s"}
_SURE = {**_MACHINE, **_TERMS, "market": "on_demand", "usd_per_h": _SURE_USD}
_SPOT = {**_MACHINE, **_TERMS, "market": "spot", "usd_per_h": _SPOT_USD, "notice": "30s"}
#: Seconds of a step by accelerators and samples on each.
_STEP_S = {
    workers: {each: 0.012 + 0.0011 * each + 0.008 * (1 - 1 / workers) for each in (8, 16, 32, 64, 128)}
    for workers in (1, 2, 4, 8)
}
_LAW = {
    "batch": {"initial": 128, "max": 1024},
    "steps": 400_000,
    "noise_scale": 4000,
    "on": {"v100": {"step_s": _STEP_S}},
}
_CONDITIONS = {
    "costs": {"start": "20s", "warm_up": "10s", "checkpoint": "10s", "checkpoint_every": "10m", "exit": "1s"},
    "markets": {"spot": {"life": "4h", "reprice_every": "30m", "price_noise": 0.5}},
}
#: What an hour of the job is worth, USD.
_WORTH = 30.0


def _run(folder: Path, name: str, pools: list[dict[str, Any]], job: dict[str, Any], seed: int) -> tuple[float, float]:
    """USD, and seconds until the job has ended."""
    files = {
        "cluster": {"pools": pools},
        "jobs": {"laws": {"net": _LAW}, "jobs": [{"at": "0s", "job": job}]},
        "conditions": _CONDITIONS,
    }
    paths = {what: folder / f"{name}-{what}.yaml" for what in files}
    for what, content in files.items():
        paths[what].write_text(yaml.safe_dump(content))
    command = [
        str(Path(sys.executable).parent / "walras"),
        "simulate",
        "run",
        str(paths["jobs"]),
        "--cluster",
        str(paths["cluster"]),
    ]
    told = subprocess.run(
        [*command, "--set", f"conditions={paths['conditions']}", "--policy", "walras", "--seed", str(seed),
         "-o", "json"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    summary = json.loads(told.stdout)
    assert summary["unfinished"] == 0, "the job did not end"
    return float(summary["usd"]), float(summary["avg_jct_s"])


def measure(scale: float) -> list[Measured]:
    """One table."""
    job = {
        "name": "net", "run": "python train.py", "profile": "net", "resources": {"accelerators": "v100:4"},
        "batch": {"global": 128}, "value_usd_per_h": _WORTH,
    }  # fmt: skip
    elastic = {**job, "elastic": {"min": 1, "max": 8}}
    runs = {
        "spot and on demand, elastic": ([_SPOT, _SURE], elastic),
        "spot and on demand, always four workers": ([_SPOT, _SURE], job),
        "spot alone, elastic": ([_SPOT], elastic),
    }
    seeds = range(_FIRST_SEED, _FIRST_SEED + max(2, round(_SEEDS * scale)))
    with tempfile.TemporaryDirectory() as name:
        sure = {seed: _run(Path(name), "sure", [_SURE], elastic, seed) for seed in seeds}
        usd, took_s = sure[seeds[0]]
        setting = f"{len(seeds)} seeds; on demand alone, elastic: {usd:.1f} USD, {took_s / 3600:.1f} h"
        measured = Measured("workers that follow the price of spot", setting)
        for number, (what, (pools, wanted)) in enumerate(runs.items()):
            found = {seed: _run(Path(name), f"run{number}", pools, wanted, seed) for seed in seeds}
            cost = [found[seed][0] / sure[seed][0] for seed in seeds]
            time = [found[seed][1] / sure[seed][1] for seed in seeds]
            goal = 0.5 if number == 0 else None
            measured.add(f"{what}: cost, mean", statistics.mean(cost), "x", at_most=goal)
            measured.add("   worst seed", max(cost), "x")
            measured.add("   completion time, mean", statistics.mean(time), "x", at_most=1.0 if number == 0 else None)
            measured.add("   worst seed", max(time), "x")
    return [measured]
