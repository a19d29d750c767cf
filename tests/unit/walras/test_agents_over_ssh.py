"""What `walras admin agents` has hosts do, by a client that runs it here; and pools that others launch meanwhile."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from walras.cli.machine_commands import _take_up, ask_agent_over_ssh, start_agent_over_ssh, stop_agent_over_ssh
from walras.errors import Conflict
from walras.spec.cluster_file import HostEntry, PoolEntry

#: The token comes once every command has had the time to look for an agent.
_SSH = """#!/bin/sh
for script; do :; done
(sleep 1; cat) | /bin/sh -c "$script"
"""
#: One of its kind in a folder, as the agent's lock has it.
_AGENT = """#!/bin/sh
for word; do [ "${before:-}" = --state ] && state=$word; before=$word; done
mkdir "$state" 2>/dev/null || { echo "another agent is here"; exit 1; }
trap 'rm -r "$state"; exit 0' TERM
echo known >"$state/credential.json"
while :; do sleep 0.1; done
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEntry]:
    for name, script in {"ssh": _SSH, "agent": _AGENT}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = {"host": "here", "node": "one", "walras": str(tmp_path / "agent"), "shape": "tower"}
    yield HostEntry.model_validate({**facts, "state": str(tmp_path / "state")})
    for process in _agents(tmp_path):
        process.kill()


def _agents(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(folder / "agent") in (each.info["cmdline"] or ())]


def test_two_launches_at_once_start_one_agent_that_can_be_stopped(host: HostEntry, tmp_path: Path) -> None:
    """Each tells the truth, and the agent is found afterwards; what holds the turn does not outlive the launch."""
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(lambda _: start_agent_over_ssh(host, ["http://server"], "secret"), range(2)))
    assert sorted(each.detail.split()[0] for each in answers) == ["running", "started"]
    (agent,) = _agents(tmp_path)
    assert {each.detail.split()[1] for each in answers} == {str(agent.pid)}
    assert ask_agent_over_ssh(host).detail == f"running {agent.pid}"
    assert stop_agent_over_ssh(host).detail == f"stopped {agent.pid}"
    assert not _agents(tmp_path)


async def test_a_pool_that_another_launch_added_meanwhile_gets_its_terms() -> None:
    fields = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 1, "memory": "1GB", "provider": "slurm"}
    entry = PoolEntry.model_validate({**fields, "market": "spot", "quota": 3})
    added: list[SimpleNamespace] = []
    changed = {}

    async def pools() -> list[SimpleNamespace]:
        return [*added]

    async def add_pool(_: object) -> None:
        if not added:
            added.append(SimpleNamespace(pool_id=str(entry.pool_id)))
        raise Conflict("there is such a pool already")

    async def change_pool(pool_id: str, **terms: object) -> None:
        changed[pool_id] = terms["quota"]

    client: Any = SimpleNamespace(pools=pools, add_pool=add_pool, change_pool=change_pool)
    await _take_up(client, [entry])
    assert changed == {str(entry.pool_id): 3}
