"""Roles of a job: what a spec may say, and what the scheduler and the machines are told."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walras.errors import JobSpecError
from walras.job_request import GangPlan, JobId, JobRequest, RoleUse, fill_machines, place_roles
from walras.spec.job_spec import parse_spec, spec_mapping
from walras.spec.spec_request import env_of, is_launcher, kind_of, to_request
from walras.spec.text_formats import dump_yaml

ROLES: dict[str, Any] = {
    "trainer": {"run": "python train.py", "accelerators": "a100:2"},
    "rollout": {"run": ["python", "roll.py"], "accelerators": "v100:1", "count": 2},
}


def requested(**fields: Any) -> JobRequest:
    return to_request(parse_spec({"roles": ROLES} | fields), JobId(1), user="u", project="p", at=0.0)


def with_role(name: str, **fields: Any) -> dict[str, Any]:
    return {"roles": ROLES | {name: ROLES.get(name, {"run": "x"}) | fields}}


def test_roles_are_one_plan_of_a_gang_over_several_pools() -> None:
    """With what each process has; no pool alone holds it; a spec that was stored is read back to the same one."""
    request = requested(**with_role("head"))
    (plan,) = request.plans
    assert plan.text == "trainer 2 x a100 + rollout 2 x v100 + head"
    assert {use.accelerator: use.count for use in plan.uses} == {"a100": 2, "v100": 2}
    assert [role.each for role in plan.roles] == [2, 1, 0]
    assert not any(demand.types_of(["a100", "v100"]) for demand in request.demands)
    spec = parse_spec(with_role("head"))
    assert parse_spec(dump_yaml(spec_mapping(spec))) == parse_spec(json.dumps(spec_mapping(spec))) == spec
    assert is_launcher(spec)
    assert list(json.loads(env_of(spec)["WALRAS_ROLES"])) == ["trainer", "rollout", "head"]
    for role, other in (("rollout", {"run": "python other.py"}), ("head", {"count": 2})):
        roles = spec_mapping(spec)["roles"]
        assert kind_of(spec) != kind_of(parse_spec({"roles": roles | {role: roles[role] | other}}))
    elastic = [kind_of(parse_spec(with_role("rollout", max_count=most))) for most in (3, 4)]
    assert elastic[0] == elastic[1], "of an elastic role what it holds tells"


def test_an_elastic_role_is_a_menu_whose_speeds_follow_the_accelerators() -> None:
    """Scaled to the duration that its owner states for the largest."""
    request = requested(**with_role("rollout", max_count=4), steps=1200, estimated_duration="10m")
    assert [plan.uses[1].count for plan in request.plans] == [2, 3, 4]
    assert [plan.steps_per_s for plan in request.plans] == pytest.approx([2 * 4 / 6, 2 * 5 / 6, 2.0])


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"roles": ROLES, "run": "x"}, "run", "remove it"),
        ({"roles": ROLES, "run": 7}, "run", "remove it"),
        ({"roles": ROLES, "nproc_per_node": 2}, "nproc_per_node", "remove it"),
        ({"roles": ROLES, "num_nodes": 2}, "num_nodes", "remove it"),
        ({"roles": ROLES, "mixed": True}, "mixed", "remove it"),
        ({"roles": ROLES, "resources": {"accelerators": "a100:1"}}, "resources.accelerators", "remove it"),
        ({"roles": ROLES, "throughput": {"a100": 1}}, "throughput", "remove it"),
        ({"roles": ROLES, "plans": [{"accelerators": {"a100": 1}, "steps_per_s": 1}]}, "plans", "remove it"),
        ({"roles": ROLES, "batch": {"global": 8, "max": 64}}, "batch.adaptive", "remove it"),
        ({"roles": {}}, "run", "add"),
        ({"roles": 3}, "roles", "NAME: value"),
        ({"roles": {"a": 3}}, "roles.a", "write its fields"),
        ({"roles": {"A b": ROLES["trainer"]}}, "roles.A b", "documentation"),
        ({"roles": {"trainer": {"accelerators": "a100:1"}}}, "roles.trainer.run", "add"),
        (with_role("trainer", gpus=2), "roles.trainer.gpus", "accelerators"),
        (with_role("trainer", accelerators={"a100": 1, "v100": 1}), "roles.trainer.accelerators", "name one"),
        (with_role("trainer", accelerators="any:1"), "roles.trainer.accelerators", "name one"),
        (with_role("trainer", accelerators=None), "roles.trainer.accelerators", "leads"),
        (with_role("trainer", restarts=1), "roles.trainer.restarts", "retry.max_restarts"),
        (with_role("rollout", count=0), "roles.rollout.count", "give 1"),
        (with_role("rollout", count=257), "roles.rollout.count", "256 or less"),
        (with_role("rollout", count=3, max_count=2), "roles.rollout.max_count", "larger"),
        (with_role("rollout", count=256), "roles", "at most 256"),
        (with_role("head", max_count=2), "roles.head.max_count", "count"),
        (with_role("rollout", accelerators="a100-80gb:1"), "roles", "one name"),
        (with_role("rollout", after="rollout"), "roles.rollout.after", "start first"),
        (with_role("rollout", after="judge"), "roles.rollout.after", "trainer"),
        (with_role("rollout", run="x" * 70_000), "roles", "into files"),
        (with_role("trainer", accelerators="v100:1", max_count=2)
         | {"roles": {name: role | {"accelerators": "v100:1", "max_count": 3} for name, role in ROLES.items()}},
         "roles", "max_count"),
    ],
)  # fmt: skip
def test_roles_that_cannot_be_are_refused_by_field_and_fix(given: dict[str, Any], field: str, says: str) -> None:
    """Beside what they stand in for, unnamed, of no type, too many, in a circle."""
    with pytest.raises(JobSpecError) as refused:
        parse_spec(given)
    assert refused.value.field == field
    assert says in refused.value.fix + str(refused.value)


@given(st.data())
def test_processes_find_the_machines_that_were_searched_for_them(data: st.DataObject) -> None:
    """Whatever room the search found on machines of each type, each process is whole on one, each accelerator taken."""
    roles, machines = [], list[tuple[str, int]]()
    for row in range(data.draw(st.integers(1, 5))):
        name, each = data.draw(st.sampled_from(["a", "b"])), data.draw(st.integers(1, 4))
        roles.append(RoleUse(f"r{row}", name, each, data.draw(st.integers(1, 5))))
    plan = GangPlan((), 1.0, tuple(roles))
    for name in sorted({role.accelerator for role in roles}):
        pieces = plan.pieces_on(name)
        rooms = [pieces[0], *data.draw(st.lists(st.integers(0, 9), max_size=9)), *pieces]
        machines += [(name, sum(taken)) for taken in fill_machines(pieces, rooms) if taken]
    roles.append(RoleUse("head", "", 0, 2))
    found = place_roles(roles, machines)
    for (name, count), here in zip(machines, found, strict=True):
        assert sum(role.each for role, _ in here) == count
        assert all(role.accelerator in ("", name) for role, _ in here)
    indices = sorted((role.name, index) for here in found for role, index in here)
    assert indices == sorted((role.name, index) for role in roles for index in range(role.count))


def test_many_roles_of_many_processes_are_placed_at_once() -> None:
    """Where each machine has two sizes in one way only: nothing is tried and taken back."""
    roles = [RoleUse("lead", "a", 1, 64), *(RoleUse(f"r{row}", "a", 3, 8) for row in range(8))]
    found = place_roles(roles, [("a", 8)] * 32)
    assert found[0][0] == (roles[0], 0)
    assert [sorted(role.each for role, _ in here) for here in found] == [[1, 1, 3, 3]] * 32


def test_what_fills_no_machine_is_an_error() -> None:
    """Two processes of two accelerators are not on four machines of one."""
    with pytest.raises(ValueError, match="roll 4 x b"):
        place_roles([RoleUse("roll", "b", 2, 2)], [("b", 1)] * 4)
