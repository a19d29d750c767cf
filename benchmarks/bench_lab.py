"""Decisions a second of `walras.lab.Env`, on three types of accelerators and sixty jobs.

The agent takes the first choice that the mask permits: its own time is next to none. Each seed is an episode, `reset`
included. Seconds are of this process, so that other work on the machine does not count.
"""

from time import process_time

import numpy as np

from benchmarks.tables import Measured

JOBS, RATE_PER_H, SEEDS = 60, 30.0, 50
TARGET_PER_S = 2_000.0


def measure(scale: float) -> list[Measured]:
    """Decisions a second, both ways to act, mean over all episodes and the slowest of them."""
    from walras.lab import Env

    seeds = max(2, round(SEEDS * scale))
    setting = f"three types x 12, {JOBS} jobs of generate:gavel, seeds 0-{seeds - 1}"
    measured = Measured("Learning environment", setting)
    for crowd, rate_per_h in ((f"{RATE_PER_H:g} an hour", RATE_PER_H), ("all at once", 0.0)):
        env = Env(on="generate:gavel", cluster="gavel-12-12-12", jobs=JOBS, rate_per_h=rate_per_h)
        speeds, decided, spent_s = [], 0, 0.0
        for seed in range(-1, seeds):  # the first loads what is loaded once
            decisions, took_s = _episode(env, max(seed, 0))
            if seed >= 0:
                speeds.append(decisions / took_s)
                decided, spent_s = decided + decisions, spent_s + took_s
        measured.add(f"{crowd}: decisions a second", decided / spent_s, "/s", at_least=TARGET_PER_S)
        measured.add(f"{crowd}: slowest episode", float(np.min(speeds)), "/s")
        measured.add(f"{crowd}: decisions an episode", decided / seeds, "")
    return [measured]


def _episode(env: object, seed: int) -> tuple[int, float]:
    """Decisions, and seconds of this process."""
    from walras.lab import Env

    assert isinstance(env, Env)
    began_s, decisions, over = process_time(), 0, False
    _, info = env.reset(seed=seed)
    while not over:
        _, _, over, _, info = env.step(int(info["action_mask"].argmax()))
        decisions += 1
    return decisions, process_time() - began_s
