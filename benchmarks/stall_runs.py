"""Profiles of a script whose stalls are planted, as numbers that benchmark and tests share."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from optimizer.prediction.step_time import StallRuns, attribute_stalls
from walras.job_request import Kind
from walras.profiling.profiles import JobProfile, ProfilingExtent, ProfilingRequest, profile_script
from workers.trials.profile_job import ProfiledJob

SCRIPT = Path(__file__).parents[1] / "tests" / "support" / "planted_job.py"
#: Which stall the seconds of each plant have to be found in.
PLANTS = {"LOADER": "prepare", "DISK": "fetch", "REDUCE": "inside", "NETWORK": "network"}
_RANKS, _BATCH, _FLOATS = 2, 4, 64


def profiled(planted: Mapping[str, float], extent: ProfilingExtent, python: str) -> JobProfile:
    """Two ranks on this machine, every sample a file of its own that is read once in a run."""
    with tempfile.TemporaryDirectory(prefix="walras-planted-") as text:
        folder = Path(text)
        data = folder / "data"
        data.mkdir()
        # Two updates more are counted in one run, and a file that is read again would not be cold.
        for number in range(_RANKS * _BATCH * (extent.warm_up + extent.updates + 4)):
            (data / f"{number:06d}.bin").write_bytes(torch.randn(_FLOATS).numpy().tobytes())
        job = ProfiledJob(
            name="planted",
            kind=Kind("planted"),
            argv=(python, str(SCRIPT), str(data)),
            env={f"PLANT_{name}": str(seconds) for name, seconds in planted.items()},
            workdir=str(folder),
            batch=None,
            ranks=_RANKS,
            environ=os.environ,
        )
        question = ProfilingRequest("planted", "planted", _RANKS, extent)
        return profile_script(question, job, lambda *seconds: attribute_stalls(StallRuns(*seconds)), folder / "runs")


def seconds(profile: JobProfile) -> dict[str, float]:
    """Of each stall; one that the runs do not tell is left out."""
    return {stall.name: stall.seconds for stall in profile.stalls if stall.seconds is not None}
