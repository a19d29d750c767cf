"""Accelerator types have one name for agents, jobs, the catalog and importers."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from walras.cli.machine_commands import _listed_nodes
from walras.cli.main import app
from walras.cli.terminal_output import Listing
from walras.cli.top_screens import MachinesScreen, _machine_text
from walras.cluster import (
    MOST_OF_TYPE,
    MOST_TYPES,
    TypeCount,
    agent_of_part,
    is_same_machine_agent,
    parse_type_counts,
    part_name,
    part_shape,
)
from walras.job_request import ANY_ACCELERATOR, Demand, GangPlan, GangRequest
from walras.resources.fleet import NodeView
from walras.resources.overview import MachineCells
from walras.spec.accelerator_names import canonical_accelerator, covers, detected_accelerator, family_of, named_type
from walras.wire import ShapeFacts
from workers.agent.startup import AgentOptions

_GIB = 2**30

#: What NVML reports of the commonest products, their memory in GiB, the canonical name, and what others call them.
PRODUCTS = [
    ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb", ("A100-40GB", "nvidia_a100-sxm4-40gb", "a100_40gb", "A100 40 GB")),
    ("NVIDIA A100-PCIE-40GB", 40, "a100-40gb", ("A100-PCIE-40GB", "NVIDIA-A100-PCIE-40GB", "a100_40")),
    ("NVIDIA A100-PG509-200", 40, "a100-40gb", ("a100_pg509-200_40g", "A100-40G")),
    ("NVIDIA A800 40GB Active", 40, "a800-40gb", ("a800_40g",)),
    ("Tesla V100-SXM3-32GB-H", 32, "v100-32gb", ("v100_32g",)),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20, "rtx-4000-sff-ada", ("4000_sff_ada",)),
    ("Quadro P6000", 24, "p6000", ("quadro_p6000", "P6000")),
    ("NVIDIA A100-SXM4-80GB", 80, "a100-80gb", ("A100-80GB", "nvidia_a100-sxm4-80gb", "A100-80GB-SXM", "a100_80")),
    ("NVIDIA A100 80GB PCIe", 80, "a100-80gb", ("nvidia_a100_80gb_pcie", "nvidia-a100-80gb")),
    ("NVIDIA H100 80GB HBM3", 80, "h100-80gb", ("nvidia_h100_80gb_hbm3", "nvidia-h100-80gb", "H100-SXM-80GB",
                                                 "h100sxm5-80gb", "nvidia-h100-mega-80gb")),
    ("NVIDIA H100 PCIe", 79, "h100-80gb", ("h100-pcie-80gb",)),
    ("NVIDIA H100 NVL", 94, "h100-94gb", ("H100-NVL", "nvidia_h100_nvl", "h100nvl")),
    ("NVIDIA H200", 141, "h200", ("H200", "H200-141GB", "nvidia_h200", "h200_141g", "NVIDIA H200 NVL")),
    ("NVIDIA B200", 180, "b200", ("B200",)),
    ("NVIDIA GH200 480GB", 96, "gh200", ("GH200", "nvidia_gh200_480gb")),
    ("Tesla V100-SXM2-16GB", 16, "v100-16gb", ("tesla_v100-sxm2-16gb", "V100-16GB", "TeslaV100-16GB")),
    ("Tesla V100-SXM2-32GB", 32, "v100-32gb", ("tesla_v100-sxm2-32gb", "V100-32GB", "v100_32")),
    ("Tesla V100-SXM2-32GB-LS", 32, "v100-32gb", ()),
    ("Tesla T4", 15, "t4", ("T4", "nvidia-tesla-t4", "tesla_t4", "t4-16gb")),
    ("Tesla P100-PCIE-16GB", 16, "p100", ("P100", "nvidia-tesla-p100")),
    ("Tesla K80", 11, "k80", ("K80", "nvidia-tesla-k80")),
    ("NVIDIA A10", 22, "a10", ("A10", "nvidia_a10", "A10-24GB")),
    ("NVIDIA A10G", 22, "a10g", ("A10G",)),
    ("NVIDIA A30", 24, "a30", ("A30",)),
    ("NVIDIA A40", 45, "a40", ("A40", "nvidia_a40")),
    ("NVIDIA L4", 23, "l4", ("L4", "nvidia-l4")),
    ("NVIDIA L40S", 45, "l40s", ("L40S", "nvidia_l40s", "l40s_48g")),
    ("NVIDIA RTX A6000", 48, "rtx-a6000", ("A6000", "RTXA6000", "rtx_a6000", "nvidia_rtx_a6000")),
    ("NVIDIA RTX 6000 Ada Generation", 48, "rtx-6000-ada", ("RTX6000-Ada", "nvidia_rtx_6000_ada_generation",
                                                                "6000_ada", "ada6000", "rtx_ada_6000",
                                                                "rtx6000ada_48g")),
    ("Quadro RTX 6000", 24, "rtx-6000", ("QuadroRTX6000", "quadro_rtx_6000", "rtx6000")),
    ("Quadro RTX 8000", 48, "rtx-8000", ("rtx8000",)),
    ("NVIDIA GeForce RTX 3090", 24, "rtx-3090", ("rtx3090", "rtx-3090", "rtx3090_24g", "RTX 3090", "rtx_3090", "3090",
                                                 "GeForceRTX3090", "nvidia_geforce_rtx_3090",
                                                 "NVIDIA-GeForce-RTX-3090")),
    ("NVIDIA GeForce RTX 4090", 24, "rtx-4090", ("RTX4090", "4090", "geforce_rtx_4090", "RTX-4090-24GB")),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "rtx-4090-laptop", ("nvidia_geforce_rtx_4090_laptop_gpu",)),
    ("NVIDIA GeForce RTX 4090 D", 24, "rtx-4090-d", ("rtx4090d",)),
    ("NVIDIA GeForce RTX 5090", 32, "rtx-5090", ("RTX5090",)),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16, "rtx-4070-ti-super", ("rtx4070tisuper",)),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, "rtx-pro-6000", ("RTXPRO6000", "pro_6000", "rtx_pro6000_96g")),
    ("NVIDIA GeForce RTX 2080 Ti", 11, "rtx-2080-ti", ("rtx2080ti", "2080ti", "RTX-2080Ti", "geforce_rtx_2080_ti")),
    ("NVIDIA GeForce GTX 1080 Ti", 11, "gtx-1080-ti", ("gtx1080ti", "1080ti")),
    ("NVIDIA GeForce GTX 1660 Ti", 6, "gtx-1660-ti", ("gtx1660ti", "1660ti")),
    ("NVIDIA GeForce GTX 970", 4, "gtx-970", ("gtx970", "970")),
    ("NVIDIA TITAN RTX", 24, "titan-rtx", ("titan_rtx", "titanrtx")),
    ("TITAN X (Pascal)", 12, "titan-x-pascal", ("titan_x_pascal", "TITAN-X-Pascal")),
    ("Orin (nvgpu)", 30, "orin-nvgpu", ("orin_(nvgpu)",)),
    ("NVIDIA GeForce GTX TITAN X", 12, "titan-x", ("titanx", "gtx_titan_x", "TITAN X")),
    ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 64, "mi250", ("MI250", "AMD-Instinct-MI250")),
]  # fmt: skip


@pytest.mark.parametrize(("product", "gib", "name", "others"), PRODUCTS)
def test_a_product_has_one_name_whoever_writes_it(product: str, gib: int, name: str, others: tuple[str, ...]) -> None:
    """What a driver reports, Slurm's gres, Kubernetes' labels, clouds and people write becomes the same name."""
    assert detected_accelerator(product, gib * _GIB) == name
    for text in (name, *others):
        assert canonical_accelerator(text) == name, text
    # A person who copies the driver's words may leave the size to it: then they mean the family.
    assert covers(canonical_accelerator(product), name)


@pytest.mark.parametrize(
    ("wanted", "meant", "not_meant"),
    [
        ("H100-MEGA", ("h100", "h100-80gb"), ("h200",)),
        ("h100sxm", ("h100", "h100-80gb"), ("gh200",)),
        ("h100", ("h100", "h100-80gb", "h100-94gb"), ("h200", "h100-80gb-1g.10gb", "gh200")),
        ("a100", ("a100-40gb", "a100-80gb"), ("a100-40gb-1g.5gb", "a10", "a100x")),
        ("v100", ("v100-16gb", "v100-32gb"), ("v100s",)),
        ("a100-80gb", ("a100-80gb",), ("a100", "a100-40gb")),
        ("a100-1g.5gb", ("a100-40gb-1g.5gb",), ("a100-40gb",)),
        ("rtx-4090", ("rtx-4090", "rtx4090"), ("rtx-4090-laptop", "rtx-4090-d")),
        ("rtx-2080", ("rtx-2080",), ("rtx-2080-ti",)),
    ],
)
def test_a_name_without_memory_means_every_size(
    wanted: str, meant: tuple[str, ...], not_meant: tuple[str, ...]
) -> None:
    """A family covers all sizes of its product, never a slice, another board or another product."""
    assert [name for name in (*meant, *not_meant) if covers(wanted, name)] == list(meant)


def test_the_most_specific_demand_holds() -> None:
    """A count for `a100-80gb` is that of this type; others of the family have the family's, the rest that of any."""
    gang = GangRequest(demands=(Demand(ANY_ACCELERATOR, 8), Demand("a100", 4), Demand("a100-80gb", 2)))
    found = [gang.demand_on(name) for name in ("a100-80gb", "a100-40gb", "t4")]
    assert [each.count for each in found if each is not None] == [2, 4, 8]
    assert GangRequest(demands=(Demand("a100", 4),)).demand_on("t4") is None
    assert named_type(["a100", "a100-80gb"], "a100-80gb") == "a100-80gb"
    assert named_type(["a100", "a100-80gb"], "a100-40gb") == "a100"
    assert named_type(["a100"], "t4") is None


def test_a_plan_may_name_families() -> None:
    """A mix of `h100:2` and `v100:4` is the one that holds two H100s of one size and four V100s of one size."""
    mix, alone = GangPlan((Demand("h100", 2), Demand("v100", 4)), 3.0), GangPlan((Demand("h100", 2),), 2.0)
    gang = GangRequest(demands=(Demand("h100", 2),), plans=(mix, alone))
    assert gang.plan_of({"h100-80gb": 2, "v100-16gb": 4}) is mix
    assert gang.plan_of({"h100-94gb": 2}) is alone
    assert gang.plan_of({"h100-80gb": 2, "v100-16gb": 2}) is None
    assert gang.plan_of({"h100-80gb": 2, "h100-94gb": 4}) is None


@pytest.mark.parametrize("text", ["", "any", "*", "a" * 60, "é100", "a100;rm", 7, "nvidia", "-"])
def test_what_cannot_be_a_type_is_refused(text: object) -> None:
    """A name that no machine could have is refused where it is written; a driver's odd name still gives a type."""
    with pytest.raises(ValueError, match="accelerator type"):
        canonical_accelerator(text)
    if isinstance(text, str):
        assert canonical_accelerator(detected_accelerator(text, 0))


@pytest.mark.parametrize("name", [name for _, _, name, _ in PRODUCTS] + ["dgx-ext", "rx-7900-xtx", "cpu", "tpu-v4"])
def test_a_canonical_name_is_its_own(name: str) -> None:
    """So that what is stored, sent and read again stays what it was."""
    assert canonical_accelerator(name) == name
    assert canonical_accelerator(family_of(name)) == family_of(name)


MIXED = (TypeCount("a100-40gb", 2), TypeCount("t4", 1))


def test_types_are_read_with_their_counts() -> None:
    """Types have their canonical names, and slices those of their profile."""
    assert parse_type_counts("A100-SXM4-40GB:2, t4:1") == MIXED
    assert parse_type_counts("h100-80gb-1g.10gb:7") == (TypeCount("h100-80gb-1g.10gb", 7),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no type with a count"),
        ("a100:2,", "no type with a count"),
        ("a100:2,t4", "no type with a count"),
        ("a100:0", "no number of accelerators"),
        ("a100:-1", "no number of accelerators"),
        (f"a100:{MOST_OF_TYPE + 1}", "no number of accelerators"),
        (f"a100:{10**9}", "no number of accelerators"),
        ("a100:" + "9" * 5000, "1 to 16 types"),
        ("a100:٣", "no number of accelerators"),
        ("a100:1e3", "no number of accelerators"),
        ("a100:1,t4:1,A100:2", "a100 is named twice"),
        ("a100/../etc:1", "not an accelerator type"),
        ("*:1", "not an accelerator type"),
        (":1", "not an accelerator type"),
        (",".join(f"x{number}:1" for number in range(MOST_TYPES + 1)), "1 to 16 types"),
    ],
)
def test_what_names_no_accelerators_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_type_counts(text)


@pytest.mark.parametrize("text", ["0", "1025", "10" * 3000, "two", "a100:2,t4:0", "a100:2,a100:2", "²"])
def test_the_command_names_what_is_wrong_and_how_to_write_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.agent.startup.run_agent", lambda options: pytest.fail("an agent was started"))
    result = CliRunner().invoke(app, ["agent", "--server", "http://x", "--accelerators", text])
    assert result.exit_code != 0
    told = " ".join(result.output.split())
    assert any(words in told for words in ("a100:2,t4:1", "1 to 1024", "each type once")), told


@pytest.mark.parametrize(
    ("text", "count", "types"), [("2", 2, ()), ("a100-40gb:2,t4:1", None, MIXED), (None, None, ())]
)
def test_the_command_takes_a_number_or_types(
    text: str | None, count: int | None, types: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[AgentOptions] = []
    monkeypatch.setattr("workers.agent.startup.run_agent", lambda options: seen.append(options) or 0)
    stated = [] if text is None else ["--accelerators", text]
    arguments = ["agent", "--server", "http://x", "--emulated", "--accelerator", "a", "--state", str(tmp_path), *stated]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (seen[0].accelerators, seen[0].types) == (count, types)


def test_a_part_is_named_after_its_machine_and_type() -> None:
    """The name is one that machines may have, whatever a driver calls the type."""
    facts = {"shape": "s", "accelerator": "a", "accelerators": 1, "cpus": 1, "memory_bytes": 1}
    assert part_name("gpu-1", "t4") == "gpu-1.t4"
    for odd in ("quadro/k 620", "..", "größe"):
        assert ShapeFacts.model_validate(facts | {"machine": part_name("gpu-1", odd)}).machine.startswith("gpu-1.")
    with pytest.raises(ValueError, match="shorter --node"):
        part_name("n" * 98, "t4")


def test_parts_share_pools_with_machines_of_the_same_kinds_alone() -> None:
    """A part has fewer processors than a whole machine of its type has, so it is of another shape."""
    assert part_shape(MIXED, 0, "") == "a100-40gbx2-beside-t4x1"
    assert part_shape(MIXED, 1, "") == "t4x1-beside-a100-40gbx2"
    assert part_shape(MIXED, 1, "dgx") == "dgx-t4"
    many = tuple(TypeCount(f"type-number-{number}", 1) for number in range(MOST_TYPES))
    assert len(part_shape(many, 3, "")) <= 100
    with pytest.raises(ValueError, match="shorter --shape"):
        part_shape(MIXED, 0, "s" * 95)


def test_agents_of_parts_tell_the_machine_and_the_part() -> None:
    """Who lost the folder of a part, or that of the machine, is another agent; parts of a machine know each other."""
    whole, other, one, two = ("a" * 32, "b" * 32, "1" * 32, "2" * 32)
    assert len({agent_of_part(each, part) for each in (whole, other) for part in (one, two)}) == 4
    assert is_same_machine_agent(agent_of_part(whole, one), agent_of_part(whole, two))
    assert not is_same_machine_agent(agent_of_part(whole, one), agent_of_part(other, one))
    assert not is_same_machine_agent("", "")


NODE = {
    "accelerator": "a", "emulated": True, "market": "owned", "zone": "z", "state": "up", "accelerators": 2, "free": 1,
}  # fmt: skip


def test_parts_are_shown_with_their_machine() -> None:
    """`walras nodes` has a column for it as soon as there is one; `walras top` writes the machine's name."""
    whole = NodeView.model_validate(NODE | {"node_id": "n9", "pool": "p", "jobs": []})
    part = NodeView.model_validate(NODE | {"node_id": "gpu-1.a", "machine": "gpu-1", "pool": "p", "jobs": [7]})

    async def listed(*nodes: NodeView) -> Listing:
        return await _listed_nodes(AsyncMock(nodes=AsyncMock(return_value=list(nodes))), verbose=False)

    assert asyncio.run(listed(whole)).columns[0].title == "NODE"
    found = asyncio.run(listed(part, whole))
    assert [column.title for column in found.columns][:2] == ["MACHINE", "NODE"]
    assert [list(row)[:2] for row in found.rows] == [["gpu-1", "gpu-1.a"], ["n9", "n9"]]
    assert MachinesScreen._row(part)[0].plain == "gpu-1"
    cells = MachineCells(node_id="gpu-1.a", machine="gpu-1", pool="p", accelerator="a", state="up", cells=[0, 7])
    assert _machine_text(cells, is_named=True).plain.startswith("gpu-1\u00a0")


def test_a_board_that_is_all_there_is_keeps_its_number() -> None:
    """Two such products are not one."""
    assert {detected_accelerator(f"Tesla PG{board}", 0) for board in ("503-216", "506-232")} == {
        "pg503-216",
        "pg506-232",
    }
