"""How long decisions with space sharing take, problem to shares, pairs, prices and certificate.

    python -m benchmarks packing

200 jobs on three pools of 50 accelerators: near the limit of pairs (`PAIR_COLUMNS_MOST`).
Kinds: 60 models times gangs of 1/2/4/8 (.7/.1/.15/.05 of the jobs). A
model demands part of an accelerator; two that demand more than one in sum share it in proportion, and three in ten
pairs do not fit into its memory together. In classes: all jobs of a kind are equal. Distinct: every job has its own
speed on every pool. Solvers run on one thread; processor seconds stand beside seconds because machines are shared.
"""

from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np

from benchmarks.tables import Measured
from optimizer.decision import Shares
from optimizer.policy import OrderPolicy, PolicySpec
from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pairs, Pools, Problem
from optimizer.registry import make

JOBS, POOLS, ACCELERATORS = 200, 3, 50
_MODELS = 60
_GANGS = np.array([1.0, 2.0, 4.0, 8.0])
_OF_GANGS = (0.7, 0.1, 0.15, 0.05)
#: Part of the pairs that do not fit together.
_TOO_LARGE = 0.3
_POLICIES = (
    PolicySpec("max_min_fairness", {"packed": True}),
    PolicySpec("finish_time_fairness", {"packed": True}),
    PolicySpec("makespan", {"packed": True}),
    PolicySpec("throughput", {"packed": True}),
)


@dataclass(frozen=True)
class Case:
    """`spread`: deviation of the logarithm of a job's speeds from its kind's; 0: all jobs of a kind are equal."""

    name: str
    jobs: int
    spread: float


def problem_of(case: Case, seed: int = 0) -> Problem:
    """A problem of the case's size, with capacity in proportion."""
    rng = np.random.default_rng(seed)
    n, kinds = case.jobs, _MODELS * len(_GANGS)
    speed = rng.lognormal(0, 0.4, (kinds, POOLS)) * np.array([4.0, 2.0, 1.0])
    gang_of = np.repeat(np.arange(len(_GANGS)), _MODELS)
    kind = rng.choice(len(_GANGS), n, p=_OF_GANGS) * _MODELS + rng.integers(0, _MODELS, n)
    gang = _GANGS[gang_of[kind]]
    speeds = speed[kind] * rng.lognormal(0, case.spread, (n, POOLS))
    return Problem(
        at=0.0,
        jobs=_jobs(rng, gang, speeds),
        columns=Columns(
            job=np.repeat(np.arange(n), POOLS),
            steps_per_s=speeds.ravel(),
            use_column=np.arange(n * POOLS),
            use_pool=np.tile(np.arange(POOLS), n),
            use_count=np.repeat(gang, POOLS),
            running=np.zeros(n * POOLS, dtype=bool),
        ),
        pools=Pools(
            pool_id=("a", "b", "c"),
            accelerator=("a", "b", "c"),
            capacity=np.full(POOLS, max(8.0, np.round(ACCELERATORS * n / JOBS))),
            rentable=np.zeros(POOLS),
            machine_size=np.ones(POOLS),
            usd_per_h=np.zeros(POOLS),
        ),
        entities=Entities(),
        pairs=_pairs(rng, kind),
    )


def _jobs(rng: np.random.Generator, gang: FloatArray, speeds: FloatArray) -> Jobs:
    n = len(gang)
    return Jobs(
        job_id=np.arange(n),
        weight=np.ones(n),
        gang=gang,
        remaining_steps=speeds.mean(axis=1) * rng.integers(2, 9, n) * 3600.0,
        submitted_at=-3600.0 * rng.integers(0, 5, n).astype(np.float64),
        attained_s=np.zeros(n),
        deadline_at=np.full(n, np.inf),
        value_usd_per_h=np.full(n, np.nan),
        priority_class=np.ones(n, dtype=np.int64),
        entity=np.zeros(n, dtype=np.int64),
    )


def _pairs(rng: np.random.Generator, kind: IntArray) -> Pairs:
    demand = rng.uniform(0.3, 1.0, (_MODELS, POOLS))
    first, second = np.triu_indices(_MODELS)
    listed: list[list[np.ndarray]] = [[], [], [], []]
    for gang in range(len(_GANGS)):
        for pool in range(POOLS):
            fits = rng.random(len(first)) >= _TOO_LARGE
            a, b = first[fits], second[fits]
            keeps = 1 / np.maximum(demand[a, pool] + demand[b, pool], 1.0)
            parts = (a + gang * _MODELS, b + gang * _MODELS, np.full(len(a), pool), keeps)
            for column, part in zip(listed, parts, strict=True):
                column.append(part)
    one, other, where, kept = (np.concatenate(column) for column in listed)
    return Pairs(kind, one, other, where, kept, kept)


def measure(scale: float) -> list[Measured]:
    """Seconds and gap of every policy and case; the cases have at most `scale` of their jobs."""
    jobs = max(32, int(JOBS * min(1.0, scale)))
    cases = [Case("in classes", jobs, 0.0), Case("all different", jobs, 0.1)]
    _decide(problem_of(Case("warm", 32, 0.0)), _POLICIES[0])  # imports the solvers
    results = []
    for spec in _POLICIES:
        measured = Measured(f"{spec.name} with space sharing", f"{jobs:,} jobs, {POOLS} pools; one thread")
        for case in cases:
            problem = problem_of(case)
            began, busy = perf_counter(), process_time()
            shares = _decide(problem, spec)
            measured.add(case.name, perf_counter() - began, "s")
            measured.add("   processor seconds", process_time() - busy, "s", at_most=10.0)
            measured.add("   gap", shares.certificate.gap, "", at_most=1e-9)
            measured.add("   violation", shares.certificate.violation, "", at_most=1e-9)
            measured.add("   pairs of jobs", float(len(shares.packed)), "")
        results.append(measured)
    return results


def _decide(problem: Problem, spec: PolicySpec) -> Shares:
    policy = make(spec)
    assert not isinstance(policy, OrderPolicy)
    decision, _ = policy.decide(problem, None)
    assert isinstance(decision, Shares)
    return decision
