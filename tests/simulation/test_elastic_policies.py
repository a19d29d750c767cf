"""The elastic policies in the simulator: jobs grow, shrink, and all end."""

from dataclasses import replace

import pytest

from optimizer.policy import PolicySpec
from simulator.simulation import Scenario
from tests.simulation import random_scenarios, test_random_runs
from tests.simulation.test_elastic_runs import Story, a_job

POLICIES = ["elasticflow", "optimus", "pollux", "shockwave", "sia", "walras"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lone_job_grows_and_makes_room_for_others(policy: str) -> None:
    """It has the whole fleet in the end, and less while another is there."""
    story = Story(policy, [a_job(1, 8000.0), a_job(2, 1000.0, at=500.0)])
    story.run()
    sizes = [size for _, size in story.starts[1]]
    assert max(sizes) == sizes[-1] == 8
    assert story.starts[2]


@pytest.mark.parametrize("policy", POLICIES)
def test_elastic_jobs_end_sooner_than_the_same_jobs_when_rigid(policy: str) -> None:
    """On a load that comes and goes."""
    jobs = [a_job(number, 1500.0, at=400.0 * number) for number in range(1, 9)]
    rigid = [replace(job, request=replace(job.request, sizes=())) for job in jobs]
    jcts = [sum(job.jct_s for job in Story(policy, each).run().jobs) / len(jobs) for each in (jobs, rigid)]
    assert jcts[0] < jcts[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_run_twice(policy: str) -> None:
    """Nothing is left to chance."""
    jobs = [a_job(number, 700.0 * number, at=100.0 * number) for number in range(1, 6)]
    stories = [Story(policy, jobs) for _ in range(2)]
    for story in stories:
        story.run()
    assert stories[0].starts == stories[1].starts


@pytest.mark.parametrize("policy", POLICIES)
def test_on_a_failing_cluster_all_jobs_end_as_they_should(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails while they change their sizes: the core's invariants hold, and no step is lost or made up."""

    def scenario_of(seed: int) -> Scenario:
        return replace(random_scenarios.scenario_of(seed), policy=PolicySpec(policy))

    monkeypatch.setattr(test_random_runs, "scenario_of", scenario_of)
    for seed in range(600, 612):
        test_random_runs.run_seed(seed)
