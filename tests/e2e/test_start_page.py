"""docs/start.md as a newcomer follows it: every block, in order, with the built wheel, on a laptop and four machines.

The machines are homes on loopback. They have the test's dependencies, so that what `pip install` would bring is there.
"""

import json
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.installed import ROOT
from tests.support.newcomer import NewcomersMachines, unused_port, wait_for_text
from walras import __version__

PAGE = (ROOT / "docs/start.md").read_text()
AGENTS = ("A", "B", "C")


@dataclass(frozen=True)
class Block:
    """One block of the page: who types it, whether it is left running, and its lines."""

    machines: tuple[str, ...]
    keeps_running: bool
    lines: tuple[str, ...]


def blocks() -> list[Block]:
    """The page's shell blocks; the first line of each, a comment, says where it is typed."""
    found = []
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        lines = text.strip().splitlines()
        where = lines.pop(0) if lines[0].startswith("# on ") else "# on the laptop"
        names = re.findall(r"\b[SABC]\b", where) or ["laptop"]
        found.append(Block(tuple(names), where.endswith("leave it running"), tuple(lines)))
    return found


def test_what_the_page_installs_is_what_there_is() -> None:
    """Each line of `pip install` names the wheel of this version, with extras that it has, or a dependency of ours."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    words = [word.strip("'`") for line in re.findall(r"pip install ([^\n`]+)", PAGE) for word in line.split()]
    wheels = [word for word in words if ".whl" in word]
    assert len(wheels) >= 2
    for wheel in wheels:
        name, asked = re.fullmatch(r"(.+\.whl)(?:\[([\w,]+)\])?", wheel).groups()  # type: ignore[union-attr]
        assert name == f"walras-{__version__}-py3-none-any.whl"
        assert set((asked or "").split(",")) <= {"", *extras}
    others = {word for word in words if re.fullmatch(r"[a-z]+", word)}
    assert others <= {Requirement(each).name for each in extras["torch"]}


def test_each_block_says_where_it_is_typed() -> None:
    """All machines are typed on, and nothing but servers and agents is left running."""
    assert {machine for block in blocks() for machine in block.machines} == {"laptop", "S", *AGENTS}
    kept = [block.lines for block in blocks() if block.keeps_running]
    assert [re.match(r"walras (server|agent)\b", line) is not None for (line,) in kept] == [True] * 4


@dataclass
class Reader:
    """Types the page's blocks, each in a shell that has what the machine's earlier blocks exported."""

    machines: NewcomersMachines
    exports: dict[str, list[str]]

    def type_block(self, block: Block, rename: Callable[[str], str] = str) -> str:
        (machine,) = block.machines
        known = self.exports.setdefault(machine, [])
        printed = self.machines.run(machine, *known, *map(rename, block.lines), timeout_s=400)
        known += [line for line in block.lines if line.startswith("export ")]
        return printed

    def job(self, number: int) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.machines.run("S", *self.exports["S"], f"walras show {number} -o json"))
        return shown

    def wait_for_attempt(self, job: int, attempt: int) -> dict[str, Any]:
        """The attempt of the job, once it runs, or has run to its end between two looks."""
        until = time.monotonic() + 600
        while True:
            shown = self.job(job)
            attempts = shown["attempt_list"]
            found: dict[str, Any] = attempts[attempt - 1] if len(attempts) >= attempt else {"state": ""}
            if found["state"] in ("RUNNING", "SUCCEEDED") and shown["steps"] > 0:
                return found
            assert time.monotonic() < until, shown
            time.sleep(0.2)


@pytest.fixture
def machines(program: Path, tmp_path: Path) -> Iterator[NewcomersMachines]:
    port = str(unused_port())
    several = NewcomersMachines(
        tmp_path, program, lambda line: line.replace("https://S:", "https://localhost:").replace("8080", port)
    )
    yield several
    several.close()


def follow_alone(machines: NewcomersMachines) -> None:
    """The first part, on the laptop."""
    without_a_cluster, server, agent, use = [block for block in blocks() if block.machines == ("laptop",)]
    reader = Reader(machines, {})
    commands = tuple(line for line in without_a_cluster.lines if line.startswith("walras "))
    assert {line.split()[1] for line in commands} == {"policy", "simulate"}
    reader.type_block(Block(("laptop",), False, commands))
    wait_for_text(machines.start("laptop", server.lines[0]), "ready at")
    wait_for_text(machines.start("laptop", agent.lines[0]), "has joined")
    printed = reader.type_block(use)
    assert "hello from a job" in printed
    assert "cpux1/owned/default" in printed


def follow_three_machines(machines: NewcomersMachines) -> None:
    """The second part: S with A, B and C."""
    server, agent, look, drain, give_back, others = [block for block in blocks() if block.machines != ("laptop",)]
    wait_for_text(machines.start("S", server.lines[0]), "ready at")
    assert agent.machines == AGENTS
    for name in AGENTS:
        # All agents are on one host here, whose name each would take for its machine's.
        wait_for_text(machines.start(name, f"{agent.lines[0]} --node {name}"), "has joined")
    reader = Reader(machines, {})
    printed = reader.type_block(look)
    assert [name for name in AGENTS if not re.search(rf"^{name} +cpu ", printed, re.MULTILINE)] == []
    before = reader.wait_for_attempt(2, 1)["placement"][0].split(":")[0]

    def where_it_is(line: str) -> str:
        return re.sub(r"(drain|resume) A$", rf"\1 {before}", line)

    reader.type_block(drain, where_it_is)
    after = reader.wait_for_attempt(2, 2)["placement"][0].split(":")[0]
    assert after in set(AGENTS) - {before}
    reader.type_block(give_back, where_it_is)
    attempts = reader.job(2)["attempt_list"]
    assert [attempt["state"] for attempt in attempts] == ["PREEMPTED", "SUCCEEDED"]
    assert attempts[0]["checkpoint_step"] > 0
    assert "wlr_u_" in reader.type_block(others)


@pytest.mark.slow
def test_the_page_leads_from_nothing_to_three_machines(machines: NewcomersMachines) -> None:
    """Every command of the page does what the page says: jobs run alone, a gang runs on two machines, and a job on a
    drained machine goes on from where it was on another."""
    follow_alone(machines)
    machines.close()
    follow_three_machines(machines)
