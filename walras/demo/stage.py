"""Where the demo's files are: its configuration, the folder of this run, and the jobs made ready to be submitted."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import walras
from walras.config import Arrival, ClusterConfig, Workload, load_yaml
from walras.errors import ConfigError
from walras.job import JobSpec


def configs_folder() -> Path:
    """The `configs` folder that belongs to this `walras`: in a checkout and in an installation alike."""
    folder = Path(walras.__file__).resolve().parents[1] / "configs"
    if not (folder / "workloads" / "demo.yaml").exists():
        raise ConfigError(f"the demo's files are not at {folder}", fix="reinstall walras, or run from a checkout")
    return folder


@dataclass(frozen=True, slots=True)
class Stage:
    """Files and folders of one run."""

    configs: Path
    folder: Path
    cluster: ClusterConfig
    workload: Workload

    @property
    def cluster_path(self) -> Path:
        return self.configs / "clusters" / "demo.yaml"

    @property
    def workload_path(self) -> Path:
        return self.configs / "workloads" / "demo.yaml"

    @property
    def policy_path(self) -> Path:
        return self.configs / "policies" / "demo.yaml"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def picture(self) -> Path:
        return self.folder / "timeline.png"

    @property
    def measured_path(self) -> Path:
        return self.folder / "measured.json"

    @property
    def users(self) -> dict[str, str]:
        """Project by user."""
        return {arrival.user: arrival.project or "default" for arrival in self.workload.jobs}

    def spec(self, arrival: Arrival) -> JobSpec:
        """The job as it is submitted: its folder made absolute, one thread for each rank."""
        spec = arrival.job
        changes: dict[str, object] = {"project": arrival.project, "envs": {"OMP_NUM_THREADS": "1", **spec.envs}}
        if spec.workdir is not None and not Path(spec.workdir).is_absolute():
            changes["workdir"] = str(self.configs.parent / spec.workdir)
        return spec.model_copy(update=changes)


def prepare_stage(folder: Path | None) -> Stage:
    """Read the files and make the folder of this run. Raises ConfigError if it holds something already."""
    configs = configs_folder()
    if folder is None:
        folder = Path("demo-run") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}"
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", fix="give --data a new folder: every demo starts afresh")
    stage = Stage(
        configs,
        folder,
        load_yaml(configs / "clusters" / "demo.yaml", ClusterConfig),
        load_yaml(configs / "workloads" / "demo.yaml", Workload),
    )
    for made in (stage.server, stage.logs):
        made.mkdir(parents=True)
    return stage


def walras_command() -> str:
    """The `walras` console script of this Python."""
    beside = Path(sys.executable).parent / "walras"
    found = str(beside) if beside.exists() else shutil.which("walras")
    if found is None:
        raise ConfigError("the `walras` command is not installed for this Python", fix="pip install -e '.[all]'")
    return found


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What daemons of the demo see: `python` in a job file is this Python, and nothing points to another server."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("WALRAS_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"}


def tidy_up(stage: Stage) -> None:
    """Remove what only this run needed (database, checkpoints, agents' state); picture, logs and figures stay."""
    for entry in stage.folder.iterdir():
        if entry.is_dir() and entry != stage.logs:
            shutil.rmtree(entry, ignore_errors=True)
