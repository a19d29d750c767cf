"""Lost and written time of jobs on spot machines against the least possible, under three laws of revocation.

    python -m benchmarks checkpoint_interval

Twenty jobs at a time on machines that are taken without a word; writing a checkpoint takes a minute. The scheduler
plans the intervals in the simulator: told the law by the cluster file, or with nothing but what happens, which it
learns. The same jobs every 300 s, as every job was saved before, are the third row (three seeds). Twenty seeds, the
worst beside the mean; the optimum is computed apart (`checkpoint_runs`). Half an hour.
"""

from dataclasses import replace
from statistics import mean

from benchmarks.checkpoint_runs import CheckpointScene, run_checkpoints
from benchmarks.tables import Measured

LAWS = {
    "exponential": "exponential 8h",
    "bathtub": "bathtub 0.4137,54m,45m36s,24h",
    "uniform": "uniform 24h",
}
SEEDS, JOBS, WORK_H, WRITE_S = 20, 20, 150.0, 60.0
#: Of the row that is there to compare with.
_FIXED_SEEDS = 3
ROWS = tuple(LAWS)
#: Within this of the optimum, and the worst seed within that, percent.
_TARGET, _WORST = 5.0, 10.0


def measure(scale: float, row: str) -> list[Measured]:
    """The table of one law."""
    seeds = max(2, round(SEEDS * scale))
    scene = CheckpointScene(JOBS, WORK_H, LAWS[row], WRITE_S, is_stated=True)
    measured = Measured(f"lost and written time, {LAWS[row]}", f"{seeds} seeds, {JOBS} jobs of {WORK_H:g} h")
    for name, tried in (
        ("law stated", scene),
        ("law learnt", replace(scene, is_stated=False)),
        ("every 300 s", replace(scene, every_s=300.0)),
    ):
        is_judged = tried.every_s is None
        found = [run_checkpoints(tried, seed) for seed in range(seeds if is_judged else min(seeds, _FIXED_SEEDS))]
        excess = [100 * each.excess for each in found]
        measured.add(f"{name}: over the optimum, mean", mean(excess), "%", at_most=_TARGET if is_judged else None)
        measured.add(f"{name}: worst seed", max(excess), "%", at_most=_WORST if is_judged else None)
        part = sum(each.wasted_h for each in found) / sum(each.lived_h for each in found)
        measured.add(f"{name}: of machine time", 100 * part, "%")
        measured.add(f"{name}: machines taken in a run", mean(each.lives for each in found), "")
    return [measured]
