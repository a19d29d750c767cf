"""Jobs with roles among others on clusters whose machines fail: all at once or nothing, and every one ends."""

import json
from math import inf
from pathlib import Path
from random import Random

import pytest

from scheduler.core.commands import Command, Start
from scheduler.core.events import Event
from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome
from simulator.reports.run_spec import RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Scenario, Simulation
from tests.simulation.random_scenarios import FAULTS_UNTIL_AT, drawn_roles, in_racks, jobs_of
from tests.simulation.test_random_runs import CheckedCore, scenario_under
from walras.errors import ConfigError
from walras.job_request import GangRequest, JobId, JobRequest, Kind, RoleUse, group_fields, place_roles, roles_of
from walras.spec.roles import gang_of_roles
from walras.states import JobState

#: Seconds for which a waiting job may hold a part of its place: those on the rest are asked to leave, or it is dropped.
_HELD_MOST_S = 300.0


class RolesCore(CheckedCore):
    """The core, and since when each waiting job with roles has held a part of its place, once no machine fails."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[JobId, float] = {}
        self.longest_s = 0.0

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        jobs = self.ledger.jobs
        held = [
            job_id
            for job_id, kept in self.cycle.reservations.items()
            if jobs[job_id].request.has_roles and jobs[job_id].waits and kept.needs != kept.wanted
        ]
        self._since = {job_id: self._since.get(job_id, event.at) for job_id in held}
        if event.at > FAULTS_UNTIL_AT:
            self.longest_s = max([self.longest_s, *(event.at - since for since in self._since.values())])
        return commands


def _roles_job(chance: Random, number: int, scenario: Scenario) -> SimulatedJob:
    """Two roles that the cluster holds, each process whole on a machine, the second one elastic or not."""
    roles = drawn_roles(chance, scenario.pools)
    steps = chance.uniform(10.0, 400.0)
    gang = gang_of_roles(GangRequest(demands=()), roles, chance.choice((1.0, 4.0)))
    request = JobRequest(
        JobId(number), Kind(f"rl-{number}"), steps=steps, priority=chance.choice((20, 50, 80)), grace_s=30.0,
        **group_fields(gang, GangRequest),
    )  # fmt: skip
    return SimulatedJob(chance.uniform(0.0, 100.0), request, steps)


def _run(seed: int) -> tuple[set[JobState], set[tuple[str, int]], float]:
    """How the jobs with roles ended, what led their attempts on the first machine, and how long one held a part."""
    scenario, chance, core = scenario_under("walras", seed), Random(f"{seed}/roles"), RolesCore()
    scenario = in_racks(scenario) if seed % 3 == 1 else scenario
    some = [job for job in jobs_of(seed, scenario) if job.cancel_at == inf and not job.request.depends_on]
    roles = {number: _roles_job(chance, number, scenario) for number in (101, 102, 103)}
    types = {model.pool.pool_id: model.pool.shape.accelerator for model in scenario.pools}
    begun: list[tuple[RoleUse, int]] = []

    def hear(_: Event, commands: list[Command]) -> None:
        for start in (each for each in commands if isinstance(each, Start) and each.job_id in roles):
            parts = start.placement.parts
            machines = [(types[part.pool_id or start.placement.pool_id], len(part.devices)) for part in parts]
            uses = roles_of(roles[start.job_id].request, machines)
            begun.append(place_roles(uses, machines)[0][0])

    jobs = sorted([*some, *roles.values()], key=lambda job: job.at)
    result = Simulation(scenario, core=core).run(jobs, hear)
    assert result.outcome is RunOutcome.COMPLETE, f"{result.outcome}: {result.unfinished}"
    ends = {measure.state for measure in result.jobs if measure.job_id in roles}
    return ends, {(role.name, index) for role, index in begun}, core.longest_s


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in (0, 10, 20)])
def test_jobs_with_roles_hold_all_places_or_none_and_end_whatever_fails(seeds: range) -> None:
    """Each start has the accelerators of one plan, its processes whole, the leading role on the first machine; none
    keeps a part of its place while others hold the rest."""
    for seed in seeds:
        ends, leading, longest_s = _run(seed)
        assert ends == {JobState.SUCCEEDED}, f"seed {seed}"
        assert leading == {("trainer", 0)}, f"seed {seed}"
        assert longest_s <= _HELD_MOST_S, f"seed {seed}"


@pytest.mark.parametrize(("policy", "is_placed"), [("walras", True), ("fifo", False), ("hadar", False)])
def test_a_policy_that_would_leave_roles_waiting_for_ever_is_refused(
    tmp_path: Path, policy: str, *, is_placed: bool
) -> None:
    """As a server refuses the job, with the same fix."""
    roles = {"trainer": {"run": "t", "accelerators": "a100:1"}, "rollout": {"run": "r", "accelerators": "k80:1"}}
    work = tmp_path / "work.yaml"
    work.write_text(json.dumps({"jobs": [{"at": "0s", "job": {"name": "post", "roles": roles, "steps": 100}}]}))
    run = RunSpec(source=WorkloadSource(name=str(work)), cluster="demo", policy=policy)
    if is_placed:
        assert prepare_run(run).count == 1
        return
    with pytest.raises(ConfigError) as refused:
        prepare_run(run)
    assert "such as `walras`" in refused.value.fix
