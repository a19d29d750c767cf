"""The Pollux artifact's mechanism, policies and time model as one scenario: what `simulate` needs to be its simulator.

Its third policy, Pollux itself, searches by chance without a seed and is not among them.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.commands import Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.events import Proposal
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.pollux.applications import Workload
from simulator.compat.pollux.pace import SteppedTraining
from simulator.compat.pollux.policy import Optimus, PolluxPolicy, Tiresias
from simulator.compat.pollux.rounds import SteppedRounds
from simulator.compat.pollux.training import Training
from simulator.goodput.placement import packed
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Costs, SpeedKey, Truth
from walras.cluster import Pool, Shape
from walras.errors import UnknownPolicyError
from walras.ids import Kind, PoolId

#: The mechanism's name in `RoundRules`, and its numbers.
POLLUX = "pollux-osdi21"
POLLUX_RULES = RoundRules(mechanism=POLLUX, round_s=60.0, resolve_min_s=0.0, idle_to_round_end=True)
#: Every start costs this much, the first too.
RESTART_S = 30.0
#: The cluster of the recorded runs: 16 machines of 4 T4.
T4_POOL = PoolModel(Pool(PoolId("t4"), Shape("t4x4", "t4", 4, 48.0, 192 * 2**30)), machines=16)

_POLICIES: dict[str, Callable[[], PolluxPolicy]] = {"tiresias": Tiresias, "optimus": Optimus}


class PackedSpeeds(Mapping[SpeedKey, float]):
    """What the scheduler is told of a kind: its mean speed on as few machines as possible, worked out when asked.

    How fast a job is at a time and place is the time model's matter.
    """

    def __init__(self, trainings: Mapping[Kind, Training], pool: PoolModel) -> None:
        self._trainings = trainings
        self._shape = pool.pool.shape
        self._counts = range(1, pool.machines * self._shape.accelerators + 1)

    def __getitem__(self, key: SpeedKey) -> float:
        if key.accelerator != self._shape.accelerator or key.count not in self._counts:
            raise KeyError(key)
        return self._trainings[key.kind].mean_steps_per_s(packed(key.count, self._shape.accelerators))

    def __iter__(self) -> Iterator[SpeedKey]:
        accelerator = self._shape.accelerator
        return (SpeedKey(kind, accelerator, count) for kind in self._trainings for count in self._counts)

    def __len__(self) -> int:
        return len(self._trainings) * len(self._counts)


def policy_names() -> tuple[str, ...]:
    """The artifact's policies that can be reproduced."""
    return tuple(_POLICIES)


def pollux_scenario(workload: Workload, policy: str, *, pool: PoolModel = T4_POOL) -> Scenario:
    """A run of the artifact's simulator over these jobs, on the pool they were made for.

    Raises UnknownPolicyError.
    """
    if policy not in _POLICIES:
        raise UnknownPolicyError(
            f"'{policy}' of the Pollux artifact is not known; known: {', '.join(_POLICIES)}", field="policy.name"
        )
    trainings = dict(workload.trainings)

    def make(spec: PolicySpec) -> PolluxPolicy:
        return _POLICIES[spec.name]()

    def rounds(cycle: Cycle, chosen: Policy, rules: RoundRules) -> SteppedRounds:
        assert isinstance(chosen, PolluxPolicy), "the artifact's mechanism runs the artifact's policies"
        return SteppedRounds(rules, chosen, trainings)

    pace = partial(SteppedTraining, trainings=trainings, step_s=POLLUX_RULES.round_s)
    wiring = Wiring(partial(SchedulerCore, make, {**MECHANISMS, POLLUX: rounds}), _no_solve, pace)
    truth = Truth(PackedSpeeds(trainings, pool), default_costs=Costs(start_s=RESTART_S))
    return Scenario((pool,), truth, PolicySpec(policy), POLLUX_RULES, wiring=wiring)


def _no_solve(command: Solve) -> Proposal:
    raise AssertionError(f"{command.policy.name} asks for no solve")
