"""What `walras profile run` starts: the runs of a job's script on this machine, in a folder that is removed again."""

import os
import tempfile
from pathlib import Path

from walras.errors import JobSpecError
from walras.job import JobSpec, argv_of, env_of, kind_of
from walras.job_elastic import batch_of
from walras.profiling.runs import Extent
from walras.profiling.study import Attribute, Profile, Question, study
from workers.gpus import detect_accelerators, detect_host
from workers.trials.profile_runs import ProfiledJob

RANKS_MAX = 64


def profile_job(spec: JobSpec, ranks: int | None, extent: Extent, attribute: Attribute) -> Profile:
    """Profile the job; `ranks` None: as many as its gang has.

    Raises:
        ProfileError: its script cannot be profiled.
        JobSpecError: what it asks for cannot be had on one machine.
    """
    ranks = ranks or _gang(spec)
    accelerators = detect_accelerators(os.environ)
    if accelerators.cuda_names and ranks > accelerators.count:
        raise JobSpecError(
            f"{ranks} ranks on {accelerators.count} accelerators", field="--ranks", fix="profile fewer ranks"
        )
    with tempfile.TemporaryDirectory(prefix="walras-profile-") as folder:
        job = ProfiledJob(
            name=spec.name,
            kind=kind_of(spec),
            argv=argv_of(spec),
            env=env_of(spec),
            workdir=_workdir(spec, Path(folder)),
            batch=batch_of(spec.batch),
            ranks=ranks,
            environ=os.environ,
            devices=accelerators.cuda_names,
            cpus=int(detect_host().cpus),
        )
        return study(Question(spec.name, kind_of(spec), ranks, extent, accelerators.name), job, attribute, Path(folder))


def _gang(spec: JobSpec) -> int:
    count = min((demand.count for demand in spec.resources.accelerators), default=1)
    if count > RANKS_MAX:
        raise JobSpecError(f"a gang of {count} on one machine", field="resources", fix="--ranks: profile a small one")
    return count


def _workdir(spec: JobSpec, folder: Path) -> str:
    if spec.workdir is None:
        own = folder / "work"
        own.mkdir()
        return str(own)
    if not Path(spec.workdir).is_dir():
        raise JobSpecError(f"{spec.workdir} is no folder", field="workdir", fix="start from where the job file means")
    return spec.workdir
