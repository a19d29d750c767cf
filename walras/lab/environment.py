"""A learning environment: an agent decides in the simulator which waiting job starts on which accelerators.

    from walras.lab import Env

    env = Env(on="generate:gavel", cluster="gavel-12-12-12", jobs=60, rate_per_h=20)
    observation, info = env.reset(seed=0)
    done = False
    while not done:
        action = env.action_space.sample(info["action_mask"])
        observation, reward, done, _, info = env.step(action)

It follows the interface of gymnasium (`pip install walras[lab]`). The core, the machines and the costs are those of
`walras simulate run`; what is learned here is measured there.
"""

from dataclasses import replace
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from optimizer.problem import FloatArray
from simulator.decided_run import DecidedRun, WaitingJob
from simulator.reports.run_spec import GeneratorOptions, PreparedRun, RunSpec, WorkloadSource, prepare_run
from walras.errors import ConfigError

#: The arrays of an observation, by name (`Env`).
Observation = dict[str, np.ndarray[Any, Any]]
#: The number of a choice, or scores (slots, pools).
Action = int | np.integer[Any] | np.ndarray[Any, Any]

#: The agent replaces this policy: only a run without an agent would use it.
_NOBODYS_POLICY = "fifo"
_SLOTS_MAX = 10_000
_SEED_MAX = 2**31


class Env(gymnasium.Env[Observation, Action]):
    """One episode is one workload, from its first arrival to its last end. Started jobs run to their end.

    Observation, arrays of numbers in [0, 1]. A time t is shown as t / (t + the mean time that a job takes alone):
        jobs      (slots, 3)      of every waiting job: 1, its gang as a part of the fleet, how long it has waited
        seconds   (slots, pools)  its time left on each pool; 1 where it cannot run
        free      (pools,)        free part of each pool
        crowd     (1,)            w / (w + slots) for w waiting jobs
        time      (1,)            time since the beginning

    Jobs stand in the order of their submission. If more wait than there are slots, those that could start come first.

    Action, `actions="choice"`: `slot * pools + pool` starts that job there, `slots * pools` waits. More decisions of
    the same instant may follow. `actions="scores"`: an array (slots, pools) in [-1, 1]; the largest starts first, then
    the next that still fits; what is not above 0 waits. `info["action_mask"]` marks what is possible with 1. What is
    not is taken as waiting; where nothing else would ever happen, the first (the highest scored) possible start is
    made.

    Reward: minus the seconds that all jobs spent in the system since the last decision, divided by the seconds that
    they take alone: an episode's rewards add up to minus (mean completion time / mean time alone), at most -1.

    Info: `time_s`; `ended`, jobs that have ended; `mean_jct_s`, their mean completion time, from the first on;
    `spent_s`, the mean time in the system so far over all jobs, `bound_s`, the least that it could be under any
    scheduler, and `regret_s`, the difference. When the episode ends, `spent_s` is the mean completion time.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own declaration)

    def __init__(
        self,
        *,
        on: str,
        cluster: str,
        jobs: int | None = None,
        rate_per_h: float | None = None,
        conditions: str | None = None,
        slots: int = 64,
        round_s: float = 0.0,
        actions: Literal["choice", "scores"] = "choice",
    ) -> None:
        """The workload, the cluster and the conditions are named as in `compare`.

        Args:
            on: with `generate:NAME` each episode has jobs of its own, drawn from its seed.
            cluster: owned machines; no pool that is rented.
            slots: waiting jobs that the agent sees at once.
            round_s: seconds between two decisions; 0: at every event.
            actions: whether an action is one choice, or a score for each job and pool.

        Raises ConfigError for what cannot be read or run.
        """
        if not 1 <= slots <= _SLOTS_MAX:
            raise ConfigError(f"{slots} slots", field="slots", fix=f"1 to {_SLOTS_MAX}")
        if not 0 <= round_s < np.inf:
            raise ConfigError(f"rounds of {round_s} s", field="round_s", fix="0 or more")
        if actions not in ("choice", "scores"):
            raise ConfigError(f"no actions {actions!r}", field="actions", fix="choice or scores")
        made = GeneratorOptions(jobs=jobs, rate_per_h=rate_per_h)
        self._spec = RunSpec(WorkloadSource(on, made=made), cluster, _NOBODYS_POLICY, conditions=conditions)
        models = self._prepare(0).scenario.pools
        #: Names of the pools, in the order of the arrays.
        self.pools = tuple(str(model.pool.pool_id) for model in models)
        self.slots = slots
        self._fleet = sum(model.machines * model.pool.shape.accelerators for model in models)
        self._round_s = round_s
        self._scores = actions == "scores"
        shape = (slots, len(self.pools))
        seen = {
            "jobs": (slots, 3), "seconds": shape, "free": (len(self.pools),), "crowd": (1,), "time": (1,),
        }  # fmt: skip
        boxes: dict[str, spaces.Space[Any]]
        boxes = {name: spaces.Box(0.0, 1.0, each, np.float32) for name, each in seen.items()}
        self.observation_space = cast("spaces.Space[Observation]", spaces.Dict(boxes))
        self.action_space = (
            spaces.Box(-1.0, 1.0, shape, np.float32) if self._scores else spaces.Discrete(slots * len(self.pools) + 1)
        )
        self._run: DecidedRun | None = None
        self._seen: list[WaitingJob] = []
        #: Whether the job of a slot could start on a pool now (slots, pools), as 1 or 0.
        self._possible = np.zeros(shape, np.int8)
        self._scale_s = 1.0
        self._spent_s = 0.0

    def _prepare(self, seed: int) -> PreparedRun:
        return prepare_run(replace(self._spec, seed=seed))

    # -- episodes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode: with a seed, that of `--seed` of the same run; without, one that follows from the last."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(_SEED_MAX)) if seed is None else seed
        run = self._run = DecidedRun(self._prepare(drawn), self._round_s)
        self._scale_s = float(run.alone_s.mean())
        self._spent_s = 0.0
        run.advance()
        self._look()
        return self._observation(), self._info()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carries out the action. Time passes only when nobody is started any more at this instant."""
        run = self._run
        assert run is not None, "reset() comes before step()"
        assert run.result is None, "the episode has ended: reset()"
        if self._scores:
            self._start_by_score(run, np.asarray(action, dtype=np.float64))
            is_due = False
        else:
            is_due = self._start_choice(run, int(action))
        if not is_due:
            run.advance()
        self._look()
        before_s, self._spent_s = self._spent_s, run.job_seconds()[0]
        reward = -(self._spent_s - before_s) / float(run.alone_s.sum())
        return self._observation(), reward, run.result is not None, False, self._info()

    def _start_choice(self, run: DecidedRun, choice: int) -> bool:
        """Returns whether another decision is due at this instant."""
        possible = self._possible
        slot, pool = divmod(choice, len(self.pools))
        if not (0 <= slot < self.slots and possible[slot, pool]):
            if run.may_wait:
                run.start_nobody()
                return False
            slot, pool = np.argwhere(possible)[0].tolist()
        return run.start(self._seen[slot], pool)

    def _start_by_score(self, run: DecidedRun, scores: FloatArray) -> None:
        if scores.shape != (self.slots, len(self.pools)) or np.isnan(scores).any():
            raise ConfigError(f"scores are numbers of shape {(self.slots, len(self.pools))}", field="action")
        order = np.argsort(-scores, axis=None, kind="stable").tolist()
        seen = [each.job.job_id for each in self._seen]
        fit = {each.job.job_id: each for each in self._seen}
        for cell in order:
            slot, pool = divmod(cell, len(self.pools))
            waiting = fit.get(seen[slot]) if slot < len(seen) else None
            if waiting is None or waiting.places[pool] is None:
                continue
            if scores[slot, pool] <= 0 and run.may_wait:
                break
            run.start(waiting, pool)
            fit = {each.job.job_id: each for each in run.waiting}
        run.start_nobody()

    # -- what the agent sees

    def _look(self) -> None:
        """Assigns slots to waiting jobs (if not all have one, those first that could start), and computes where each
        could start.
        """
        waiting = self._run.waiting if self._run is not None else []
        if len(waiting) > self.slots:
            chosen = sorted(range(len(waiting)), key=lambda row: not waiting[row].fits)[: self.slots]
            waiting = [waiting[row] for row in sorted(chosen)]
        self._seen = waiting
        possible = self._possible = np.zeros((self.slots, len(self.pools)), np.int8)
        if waiting:
            possible[: len(waiting)] = [[place is not None for place in each.places] for each in waiting]

    def _squashed(self, seconds: FloatArray | float) -> FloatArray:
        """Returns times as numbers in [0, 1]."""
        return 1.0 - self._scale_s / (self._scale_s + np.asarray(seconds, dtype=np.float64))

    def _observation(self) -> Observation:
        assert self._run is not None
        run, seen = self._run, self._seen
        jobs = np.zeros((self.slots, 3), np.float32)
        seconds = np.ones((self.slots, len(self.pools)), np.float32)
        if seen:
            jobs[: len(seen), 0] = 1.0
            jobs[: len(seen), 1] = [min(1.0, each.gang / self._fleet) for each in seen]
            jobs[: len(seen), 2] = self._squashed(run.now - np.array([each.submitted_at for each in seen]))
            seconds[: len(seen)] = self._squashed(np.array([each.left_s for each in seen]))
        crowd = len(run.waiting) / (len(run.waiting) + self.slots)
        return {
            "jobs": jobs,
            "seconds": seconds,
            "free": run.free.astype(np.float32),
            "crowd": np.array([crowd], np.float32),
            "time": self._squashed(np.array([run.now])).astype(np.float32),
        }

    def _info(self) -> dict[str, Any]:
        run = self._run
        assert run is not None
        spent_s, least_s = run.job_seconds()
        jobs = len(run.alone_s)
        over = run.ended_at < np.inf
        ended = int(over.sum())
        possible = self._possible.copy()
        mask = possible if self._scores else np.append(possible.ravel(), np.int8(run.may_wait))
        return {
            "action_mask": mask,
            "time_s": run.now,
            "ended": ended,
            **({"mean_jct_s": float((run.ended_at - run.arrival_at)[over].mean())} if ended else {}),
            "spent_s": spent_s / jobs,
            "bound_s": least_s / jobs,
            "regret_s": (spent_s - least_s) / jobs,
        }
