"""A cluster worth looking at: several pools, jobs that run and wait, attempts behind them, logs, hostile names."""

import asyncio
import io
from typing import Any

from tests.support.http_face import Face
from tests.support.live_world import FakeAgent

#: Text that would be markup or a script, were it not shown as text.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
GIB = 1 << 30


def pools() -> dict[str, Any]:
    """A cluster file with three types of accelerators, one of them rented."""
    owned = [
        {"shape": "h100x8", "accelerator": "h100", "accelerators": 8, "cpus": 96, "memory": "1024GiB", "machines": 3,
         "nominal_speed": 4, "usd_per_h": 24},
        {"shape": "a100x4", "accelerator": "a100", "accelerators": 4, "cpus": 48, "memory": "512GiB", "machines": 5,
         "nominal_speed": 2, "usd_per_h": 8},
        {"shape": "v100x4", "accelerator": "v100", "accelerators": 4, "cpus": 32, "memory": "256GiB", "machines": 4,
         "nominal_speed": 1, "usd_per_h": 3},
    ]  # fmt: skip
    return {"pools": owned}


async def machines(face: Face, counts: dict[str, int] | None = None) -> list[FakeAgent]:
    """Agents of those pools."""
    found = []
    for entry in pools()["pools"]:
        for number in range((counts or {}).get(entry["accelerator"], entry["machines"])):
            name = f"{entry['accelerator']}-{number + 1:02}"
            memory = int(entry["memory"].removesuffix("GiB")) * GIB
            facts = {key: entry[key] for key in ("shape", "accelerator", "accelerators", "cpus", "nominal_speed")}
            found.append(await FakeAgent(face.world, name, memory_bytes=memory, **facts).register())
    return found


async def scene(face: Face, jobs: int = 40) -> list[FakeAgent]:
    """Machines of all pools, jobs of several users on them and behind them, progress, a log, one job that failed."""
    agents = await machines(face)
    names = ("llama-sft", "vit-large", "digits", "whisper", "diffusion", "rnn-table", HOSTILE)
    people = (("ada", "vision"), ("bob", "language"), ("eve", "speech"))
    for number in range(jobs):
        user, project = people[number % 3]
        wanted = ("h100:4", "a100:2", "any:1", "v100:4", "any:2", "a100:4")[number % 6]
        spec = {
            "name": f"{names[number % len(names)]}-{number + 1}", "project": project,
            "profile": names[number % len(names)] if number % len(names) < 6 else "other", "steps": 20_000,
            "resources": {"accelerators": wanted}, "retry": {"max_restarts": 0},
        }  # fmt: skip
        await face.world.submit(spec, user=user)
    await settle(agents)
    return agents


async def settle(agents: list[FakeAgent]) -> None:
    """All that was granted starts, and reports progress."""
    for agent in agents:
        await agent.start_all()
    await tell_progress(agents)


async def tell_progress(agents: list[FakeAgent], steps: float = 4000.0) -> None:
    """Each attempt reports steps, a speed that fits its machine, and a loss."""
    for agent in agents:
        speed = {"h100": 40.0, "a100": 22.0, "v100": 9.0}.get(agent.facts.accelerator, 5.0)
        for job_id, attempt in list(agent.here):
            told = agent.progress(
                job_id, attempt, steps + 37 * job_id, steps_per_s=speed, samples=50, values={"loss": 1.9 / (1 + job_id)}
            )
            await agent.beat(told, devices=device_samples(agent))


def device_samples(agent: FakeAgent) -> list[dict[str, float]]:
    """What a machine with busy devices would tell of each."""
    return [
        {"device": device, "utilization": 91.0 + device, "memory_used_bytes": 30 * GIB, "memory_bytes": 80 * GIB,
         "temperature_c": 61.0 + device, "power_w": 410.0}
        for device in range(agent.facts.accelerators)
    ]  # fmt: skip


async def write_log(face: Face, agent: FakeAgent, job_id: int, text: bytes, offset: int = 0) -> None:
    """Bytes of rank 0 of the job's first attempt."""
    path = f"/agent/v1/logs?job_id={job_id}&attempt=1&rank=0&offset={offset}"
    headers = {"Authorization": f"Bearer {agent.credential}"}
    response = await face.client.post(path, data=io.BytesIO(text), headers=headers)
    assert response.status == 200, await response.text()


async def until_solved(face: Face, agents: list[FakeAgent], tries: int = 400) -> None:
    """Until the policy has answered, and what it granted has started."""
    for _ in range(tries):
        if face.world.live_state.proposal is not None:
            await settle(agents)
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no solve was answered")
