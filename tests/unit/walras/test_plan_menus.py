"""`plans:` of a job file: what a menu may say, what contradicts it, and what the scheduler makes of it."""

import pytest

from walras.errors import JobSpecError
from walras.job_request import Demand, GangPlan, JobId, JobRequest
from walras.spec.job_spec import dump_spec, parse_spec
from walras.spec.plan_menus import PLANS_MOST
from walras.spec.spec_request import kind_of, to_request

MENU = """
run: python train.py
plans:
- {accelerators: {V100: 96, A100: 32}, steps_per_s: .19}
- {accelerators: "a100:32", steps_per_s: .11}
- {accelerators: {a100: 16}, steps_per_s: .06}
- {accelerators: [v100:64], steps_per_s: 0.05}
"""


def request_of(text: str) -> JobRequest:
    return to_request(parse_spec(text), JobId(1), user="a", project="p", at=0.0)


def test_a_menu_becomes_the_ways_of_the_gang() -> None:
    """Types are canonical and in order; as one gang the job is the first plan of each single type."""
    request = request_of(MENU)
    assert request.plans[0] == GangPlan((Demand("a100", 32), Demand("v100", 96)), 0.19)
    assert request.demands == (Demand("a100", 32), Demand("v100", 64))
    assert request.declared == (("a100", 0.11), ("v100", 0.05))
    assert request.spreads
    assert request.plan_of({"v100": 96, "a100": 32}) == request.plans[0]
    assert request.plan_of({"a100": 31}) is None
    assert request.text == "32 x a100 + 96 x v100 or 32 x a100 or 16 x a100 or 64 x v100"


def test_a_long_menu_is_told_in_short() -> None:
    """People read the first few plans, and how many more there are."""
    menu = "".join(f"\n- {{accelerators: 'a100:{count}', steps_per_s: {count}}}" for count in range(1, 8))
    assert request_of(f"run: x\nplans:{menu}").text.endswith("4 x a100 or 3 plans more")


def test_a_menu_survives_its_file() -> None:
    """Written and read again it is the same; jobs with other mixes are of other kinds, with other speeds of one."""
    spec = parse_spec(MENU)
    assert parse_spec(dump_spec(spec)) == spec
    assert kind_of(parse_spec(MENU.replace(".19", ".2"))) == kind_of(spec)
    assert kind_of(parse_spec(MENU.replace("96", "88"))) != kind_of(spec)


A100 = "plans: [{accelerators: 'a100:2', steps_per_s: 2}"


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("plans: {a100: 2}", "plans", "no list"),
        ("plans: a100", "plans", "no list"),
        ("plans: [7]", "plans[0]", ""),
        ("plan: [{accelerators: 'a100:2', steps_per_s: 2}]", "plan", "recommend"),
        ("plans: [{accelerators: 'a100:2'}]", "plans[0].steps_per_s", "missing"),
        ("plans: [{steps_per_s: 2}]", "plans[0].accelerators", "missing"),
        *(
            (f"plans: [{{accelerators: 'a100:2', steps_per_s: {rate}}}]", "plans[0].steps_per_s", "")
            for rate in ("0", "-1", ".nan", ".inf", "1e300", "true", "fast")
        ),
        *(
            (f"plans: [{{accelerators: {uses}, steps_per_s: 1}}]", "plans[0].accelerators", "")
            for uses in ("{}", "[]", "any:2", "{a100: 0}", "{a100: -3}", "{a100: 1e9}", "{a100: 5000}", "{a100: true}")
        ),
        (
            f"plans: [{{accelerators: {{{', '.join(f't{row}: 1' for row in range(9))}}}, steps_per_s: 1}}]",
            "plans[0].accelerators",
            "mixes 9 types",
        ),
        (f"{A100}, {{accelerators: {{a100: 2}}, steps_per_s: 3}}]", "plans[1].accelerators", "plans[0] again"),
        ("plans: [{accelerators: {a100: 2, v100: 2}, steps_per_s: 3}]", "plans", "several types"),
        (f"{A100}]\nresources: {{accelerators: 'a100:2'}}", "resources.accelerators", "beside `plans`"),
        (f"{A100}]\nelastic: {{min: 1, max: 2}}", "elastic", ""),
        (f"{A100}]\nfork: {{max: 2}}", "fork", "beside `plans`"),
        (f"{A100}]\nmixed: true", "mixed", "beside `plans`"),
        (f"{A100}]\nthroughput: {{a100: 3}}", "throughput", "beside `plans`"),
        (f"{A100}]\nnproc_per_node: 2", "nproc_per_node", ""),
        (f"{A100}]\nbatch: {{global: 8, max: 64}}", "batch", "hold for one"),
        ("plans: [{accelerators: 'a100:2', speed: 2}]", "plans[0].speed", ""),
    ],
)
def test_a_menu_that_means_nothing_is_refused_by_its_field(text: str, field: str, says: str) -> None:
    """Empty, endless, unbounded, doubled or contradicted: the refusal names the field."""
    with pytest.raises(JobSpecError) as refusal:
        parse_spec(f"run: x\n{text}")
    assert refusal.value.field == field
    assert says in str(refusal.value)


def test_a_menu_is_bounded() -> None:
    """A menu of as many plans as may be is read, one more is refused."""
    plans = [{"accelerators": {"a100": count + 1}, "steps_per_s": 1.0} for count in range(PLANS_MOST + 1)]
    assert len(parse_spec({"run": "x", "plans": plans[:-1]}).plans) == PLANS_MOST
    with pytest.raises(JobSpecError) as refusal:
        parse_spec({"run": "x", "plans": plans})
    assert refusal.value.field == "plans"
