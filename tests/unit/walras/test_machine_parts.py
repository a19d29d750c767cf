"""What `walras agent --accelerators` may say, and the names that parts of a machine have."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from walras.api import NodeView
from walras.cli.machine_commands import _listed_nodes
from walras.cli.main import app
from walras.cli.terminal_output import Listing
from walras.cli.top_screens import MachinesScreen
from walras.cli.top_text import _machine_text
from walras.machine_parts import (
    MOST_OF_TYPE,
    MOST_TYPES,
    TypeCount,
    agent_of_part,
    is_same_machine_agent,
    parse_type_counts,
    part_name,
    part_shape,
)
from walras.overview import MachineCells
from walras.wire import ShapeFacts
from workers.agent.startup import AgentOptions

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
    "accelerator": "a",
    "emulated": True,
    "market": "owned",
    "zone": "z",
    "state": "up",
    "accelerators": 2,
    "free": 1,
}


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
