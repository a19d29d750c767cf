"""Runs of `walras cloud profile run`: executes a job's script on this machine, watched by `walras.training.probe`.

A run gets the environment of an attempt (variables, client folder, a folder for checkpoints), but no supervisor: the
ranks die with the profiler and are always ended, loader workers and their children included; the folder is removed.
Before a cold run the data files are evicted from the page cache, which needs no privileges. `walras.profiling` decides
which runs there are.
"""

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from walras.errors import JobSpecError
from walras.job_needs import ScriptLaunch
from walras.profiling.profiles import (
    AttributeStalls,
    JobProfile,
    NeverStepped,
    ProfilingExtent,
    ProfilingRequest,
    ProfilingRun,
    RankMeasurement,
    RunMeasurement,
    ScriptFailed,
    TooFewUpdates,
    profile_script,
)
from walras.spec.job_groups import global_batch_of, secret_values
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import argv_of, env_of, kind_of
from walras.training import probe
from walras.wire import StartCommand
from workers import processes
from workers.devices import detect_accelerators, detect_host
from workers.rank_environment import RankSettings, build_client_folder, rank_environment

#: Number of evenly spaced files that are checked for successful eviction.
SAMPLED_FILES = 20
#: A check may start reading the file; it is evicted again after this many seconds.
_SETTLE_S = 0.05
_TRIES = 3


_LOG_TAIL_BYTES = 2000


def _start_command(script: ScriptLaunch, ranks: int, machines: int, checkpoints: Path) -> StartCommand:
    """Returns the start command that an agent would receive, with job number 0 and without a lease.

    `machines`: their number in the ranks' environment: 1, or one for each rank.
    """
    checkpoints.mkdir(parents=True, exist_ok=True)
    return StartCommand(
        command_id=0,
        job_id=0,
        attempt=1,
        **script.command_fields(),
        devices=list(range(ranks)),
        accelerator="",
        node_rank=0,
        num_nodes=machines,
        world_size=ranks,
        first_rank=0,
        master_address="127.0.0.1",
        master_port=0,
        checkpoint_dir=str(checkpoints),
        resume=None,
        steps=None,
        lease_s=0.0,
        grace_s=0.0,
        job_token="",
    )


@dataclass
class _LocalRanks:
    """One process group."""

    cookie: str = field(default_factory=lambda: secrets.token_hex(16))
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, script: ScriptLaunch, env: Mapping[str, str], log: Path) -> None:
        """Starts one more rank; its output goes to the log. Raises ScriptFailed."""
        with log.open("wb") as output:
            try:
                started = subprocess.Popen(
                    script.argv,
                    cwd=script.workdir,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=self.all[0].pid if self.all else 0,
                    preexec_fn=processes.die_with_parent,
                )
            except OSError as error:
                raise ScriptFailed(
                    f"cannot start {script.argv[0]!r} in {script.workdir}: {error.strerror}",
                    field="run",
                    fix="check the path",
                ) from None
        self.all.append(started)

    @property
    def are_running(self) -> bool:
        return any(rank.poll() is None for rank in self.all)

    def end(self) -> None:
        """Kills the remaining ranks, and every process that they started."""
        for rank in self.all:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        processes.kill_carriers(self.cookie, 5.0)


def _log_tail(log: Path) -> str:
    """Returns the last part of a rank's output."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip() or "(it said nothing)"


def evict_from_page_cache(files: Sequence[str]) -> tuple[int, int]:
    """Evicts the files from the page cache. Returns how many were checked, and how many of those stayed in it.

    Pages that are being read cannot be evicted, so files that stayed are tried again.
    """
    for name in files:
        _with_open_file(name, _drop_pages)
    sampled_files = (
        [files[at * len(files) // SAMPLED_FILES] for at in range(SAMPLED_FILES)]
        if len(files) > SAMPLED_FILES
        else files
    )
    cached_files = 0
    for _ in range(_TRIES):
        cached_files = sum(_with_open_file(name, _is_cached) for name in sampled_files)
        time.sleep(_SETTLE_S)
        for name in files if cached_files else sampled_files:
            _with_open_file(name, _drop_pages)
        if not cached_files:
            break
    return len(sampled_files), cached_files


def _with_open_file(name: str, what: Callable[[int], bool]) -> bool:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # deleted meanwhile, so no page of it can be cached
    try:
        return what(handle)
    finally:
        os.close(handle)


def _drop_pages(handle: int) -> bool:
    os.fsync(handle)  # dirty pages cannot be evicted
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _is_cached(handle: int) -> bool:
    """Returns whether the file's beginning can be read without waiting for a device. The check may start a read."""
    try:
        return os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except OSError:
        return False


#: Seconds that ranks with a written result get to end by themselves.
GRACE_S = 3.0
_POLL_S = 0.02
_SITE = '''"""Begins the probe, and then whatever stood here before."""
import importlib.util, sys
from importlib.machinery import PathFinder
from walras.training.probe import install
install()
_here = __file__.rsplit("/", 1)[0]
_next = PathFinder.find_spec("sitecustomize", [place for place in sys.path if place != _here])
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(importlib.util.module_from_spec(_next))
'''


@dataclass(frozen=True)
class ProfiledJob(ScriptLaunch):
    """A script to be profiled: how it is started, with how many ranks, batch and environment on this machine."""

    #: Samples of one update of the whole gang of `ranks`; None: the script's own number.
    batch: int | None
    ranks: int
    #: The environment of the profiler; ranks see a whitelist of it.
    environ: Mapping[str, str]
    #: Names of the accelerators in CUDA_VISIBLE_DEVICES; empty on a machine without accelerators.
    devices: tuple[str, ...] = ()
    cpus: int = 1

    def run(self, run: ProfilingRun, extent: ProfilingExtent, folder: Path) -> RunMeasurement:
        """Starts the ranks, waits until all have written their results, and ends them.

        Raises NeverStepped, ScriptFailed or TooFewUpdates.
        """
        folder.mkdir(parents=True)
        sampled_files, cached_files = evict_from_page_cache(run.evict)
        ranks = _LocalRanks()
        env = self._environment(run, extent, folder, ranks.cookie)
        held = processes.hold_port()
        try:
            for rank in range(run.ranks):
                ranks.start(self, env | _of_rank(run, rank, held.getsockname()[1]), folder / f"rank-{rank}.log")
            _wait(ranks.all, folder, extent)
            _let_end(ranks)
        finally:
            ranks.end()
            held.close()
        measurements = [_rank_measurement(folder, rank) for rank in range(run.ranks)]
        listing = folder / "files.txt"
        files = sorted(set(listing.read_text(errors="surrogateescape").splitlines())) if listing.exists() else []
        return RunMeasurement(run, tuple(measurements), tuple(files), sampled_files, cached_files)

    def _environment(self, run: ProfilingRun, extent: ProfilingExtent, folder: Path, cookie: str) -> dict[str, str]:
        client = build_client_folder(folder.parent)
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        visible = ",".join(self.devices[: run.ranks])
        settings = RankSettings(client, "", cookie, visible, None, max(1, self.cpus // run.ranks))
        command = _start_command(self, run.ranks, run.ranks if run.apart else 1, folder / "checkpoints")
        env = rank_environment(self.environ, command, settings)
        wanted = {
            "folder": str(folder),
            "data": probe.REAL if run.real_data else probe.MADE_UP,
            "warm_up": extent.warm_up,
            "updates": extent.updates,
            "facts": run.facts,
            "files": run.files,
        }
        env["PYTHONPATH"] = f"{site}:{env['PYTHONPATH']}"
        env[probe.PROBE_VARIABLE] = json.dumps(wanted)
        if self.batch is not None:  # the same samples per rank in every run
            env["WALRAS_BATCH"] = str(max(1, self.batch * run.ranks // self.ranks))
        if run.apart:  # disable transports that two machines would not have
            env |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "LOCAL_WORLD_SIZE": "1"}
        return env


def _of_rank(run: ProfilingRun, rank: int, port: int) -> dict[str, str]:
    env = {"RANK": str(rank), "LOCAL_RANK": "0" if run.apart else str(rank), "MASTER_PORT": str(port)}
    return env | ({"WALRAS_NODE_RANK": str(rank)} if run.apart else {})


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, extent: ProfilingExtent) -> None:
    """Waits until every rank has written its result. Raises for the first that ends without one, and when time runs
    out.
    """
    until = time.monotonic() + extent.timeout_s
    while True:
        missing = [rank for rank in range(len(ranks)) if not (folder / f"rank-{rank}.json").exists()]
        if not missing:
            return
        for rank in missing:
            code = ranks[rank].poll()
            if code is not None and not (folder / f"rank-{rank}.json").exists():
                _raise_for_rank(folder, rank, code, extent)
        if time.monotonic() >= until:
            _raise_for_rank(folder, missing[0], None, extent)
        time.sleep(_POLL_S)


def _raise_for_rank(folder: Path, rank: int, code: int | None, extent: ProfilingExtent) -> None:
    """Raises the error for a rank without a result. `code` is None if time ran out."""
    done = _updates(folder, rank)
    log = _log_tail(folder / f"rank-{rank}.log")
    if code:
        ending = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        raise ScriptFailed(f"rank {rank} failed in update {done + 1} ({ending}):\n{log}", fix="correct the script")
    how = "ended" if code == 0 else f"had run for {extent.timeout_s:g} s"
    if done == 0:
        raise NeverStepped(
            f"rank {rank} {how} without a step of a torch optimizer:\n{log}",
            fix="profile a training script, started by `python` without -I or -S, or give more time with --timeout",
        )
    wanted = extent.warm_up + extent.updates
    raise TooFewUpdates(
        f"rank {rank} {how} after {done} of {wanted} updates", fix="give fewer --steps, more epochs, or more --timeout"
    )


def _let_end(ranks: _LocalRanks) -> None:
    until = time.monotonic() + GRACE_S
    while ranks.are_running and time.monotonic() < until:
        time.sleep(_POLL_S)


def _rank_measurement(folder: Path, rank: int) -> RankMeasurement:
    try:
        return RankMeasurement.parse((folder / f"rank-{rank}.json").read_bytes())
    except ValueError as error:
        raise ScriptFailed(f"rank {rank} left a result that cannot be read ({error})") from None


def _updates(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"rank-{rank}.updates").read_bytes() or b"0")
    except (OSError, ValueError):
        return 0


MAX_RANKS = 64


def profile_job(spec: JobSpec, ranks: int | None, extent: ProfilingExtent, attribute: AttributeStalls) -> JobProfile:
    """Profiles the job; `ranks` None: as many as its gang has.

    Raises:
        ProfileError: its script cannot be profiled.
        JobSpecError: this machine lacks what the job asks for.
    """
    if spec.roles:
        raise JobSpecError("a job with roles has several scripts", field="roles", fix="profile that of one role alone")
    ranks = ranks or _gang_size(spec)
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
            env=env_of(spec, keeps_batch=True) | secret_values(spec.secrets, os.environ),
            workdir=_workdir(spec, Path(folder)),
            batch=global_batch_of(spec.batch),
            ranks=ranks,
            environ=os.environ,
            devices=accelerators.cuda_names,
            cpus=int(detect_host().cpus),
        )
        return profile_script(
            ProfilingRequest(spec.name, kind_of(spec), ranks, extent, accelerators.name), job, attribute, Path(folder)
        )


def _gang_size(spec: JobSpec) -> int:
    count = min((demand.count for demand in spec.resources.accelerators), default=1)
    if count > MAX_RANKS:
        raise JobSpecError(
            f"a gang of {count} on one machine", field="resources", fix="profile fewer ranks with --ranks"
        )
    return count


def _workdir(spec: JobSpec, folder: Path) -> str:
    if spec.workdir is None:
        own = folder / "work"
        own.mkdir()
        return str(own)
    if not Path(spec.workdir).is_dir():
        raise JobSpecError(f"{spec.workdir} is no folder", field="workdir", fix="start from where the job file means")
    return spec.workdir
