"""Runs of a job's script that are watched by `walras.training.probe`: real processes on this machine, ended for sure.

A run gets what an attempt gets (environment, client folder, a folder for checkpoints), but no supervisor: nothing has
to outlive whoever profiles. Nothing here decides which runs there are.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from walras.profiling.errors import NeverStepped, ScriptFailed, TooFewUpdates
from walras.profiling.runs import Extent, RankTold, Run, RunTold
from walras.training import probe
from workers import processes
from workers.client_folder import build_client_folder
from workers.environment import RankSettings, rank_environment
from workers.trials import local_ranks
from workers.trials.evicting import evict
from workers.trials.local_ranks import LocalRanks, how_ended, last_words

#: Ranks that have told what was asked get so long to end by themselves.
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
class ProfiledJob:
    """The script, and this machine as it is to see it."""

    name: str
    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    #: Samples of one update of the whole gang of `ranks`; None: as the script does it.
    batch: int | None
    ranks: int
    #: What the profiler itself was started with; ranks see a whitelist of it.
    environ: Mapping[str, str]
    #: What CUDA_VISIBLE_DEVICES calls the accelerators; empty on a machine without.
    devices: tuple[str, ...] = ()
    cpus: int = 1

    def run(self, run: Run, extent: Extent, folder: Path) -> RunTold:
        """Start the ranks, wait until all have told, end them.

        Raises: NeverStepped, ScriptFailed, TooFewUpdates.
        """
        folder.mkdir(parents=True)
        looked_at, stayed = evict(run.evict)
        ranks = LocalRanks(ScriptFailed)
        env = self._environment(run, extent, folder, ranks.cookie)
        port = processes.free_port()
        try:
            for rank in range(run.ranks):
                ranks.start(self, env | _of_rank(run, rank, port), folder / f"rank-{rank}.log")
            _wait(ranks.all, folder, extent)
            _let_end(ranks)
        finally:
            ranks.end()
        told = [_told(folder, rank) for rank in range(run.ranks)]
        listing = folder / "files.txt"
        files = sorted(set(listing.read_text(errors="surrogateescape").splitlines())) if listing.exists() else []
        return RunTold(run, tuple(told), tuple(files), looked_at, stayed)

    def _environment(self, run: Run, extent: Extent, folder: Path, cookie: str) -> dict[str, str]:
        client = build_client_folder(folder.parent)
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        visible = ",".join(self.devices[: run.ranks])
        settings = RankSettings(client, "", cookie, visible, None, max(1, self.cpus // run.ranks))
        started = local_ranks.Run(run.ranks, folder / "checkpoints", run.ranks if run.apart else 1)
        env = rank_environment(self.environ, started.command(self), settings)
        wanted = {
            "folder": str(folder),
            "data": probe.REAL if run.real_data else probe.MADE_UP,
            "warm_up": extent.warm_up,
            "updates": extent.updates,
            "facts": run.facts,
            "files": run.files,
        }
        env["PYTHONPATH"] = f"{site}:{env['PYTHONPATH']}"
        env[probe.VARIABLE] = json.dumps(wanted)
        if self.batch is not None:  # the same samples per rank, however many there are
            env["WALRAS_BATCH"] = str(max(1, self.batch * run.ranks // self.ranks))
        if run.apart:  # no shortcut that two machines would not have
            env |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "LOCAL_WORLD_SIZE": "1"}
        return env


def _of_rank(run: Run, rank: int, port: int) -> dict[str, str]:
    env = {"RANK": str(rank), "LOCAL_RANK": "0" if run.apart else str(rank), "MASTER_PORT": str(port)}
    return env | ({"WALRAS_NODE_RANK": str(rank)} if run.apart else {})


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, extent: Extent) -> None:
    """Until every rank has told. Raises for the first one that ends without, and when time runs out."""
    until = time.monotonic() + extent.timeout_s
    while True:
        missing = [rank for rank in range(len(ranks)) if not (folder / f"rank-{rank}.json").exists()]
        if not missing:
            return
        for rank in missing:
            code = ranks[rank].poll()
            if code is not None and not (folder / f"rank-{rank}.json").exists():
                _gave_up(folder, rank, code, extent)
        if time.monotonic() >= until:
            _gave_up(folder, missing[0], None, extent)
        time.sleep(_POLL_S)


def _gave_up(folder: Path, rank: int, code: int | None, extent: Extent) -> None:
    """Name what went wrong. `code` None: time ran out."""
    done = _updates(folder, rank)
    log = last_words(folder / f"rank-{rank}.log")
    if code:
        raise ScriptFailed(
            f"rank {rank} failed in update {done + 1} ({how_ended(code)}):\n{log}", fix="mend the script"
        )
    how = "ended" if code == 0 else f"had run for {extent.timeout_s:g} s"
    if done == 0:
        raise NeverStepped(
            f"rank {rank} {how} without a step of a torch optimizer:\n{log}",
            fix="is this a training script, started by `python` without -I or -S? More time: --timeout",
        )
    wanted = extent.warm_up + extent.updates
    raise TooFewUpdates(
        f"rank {rank} {how} after {done} of {wanted} updates", fix="fewer --steps, more epochs, or more --timeout"
    )


def _let_end(ranks: LocalRanks) -> None:
    until = time.monotonic() + GRACE_S
    while ranks.are_running and time.monotonic() < until:
        time.sleep(_POLL_S)


def _told(folder: Path, rank: int) -> RankTold:
    try:
        return RankTold.parse(json.loads((folder / f"rank-{rank}.json").read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise ScriptFailed(f"rank {rank} left a result that cannot be read ({error})") from None


def _updates(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"rank-{rank}.updates").read_bytes() or b"0")
    except (OSError, ValueError):
        return 0
