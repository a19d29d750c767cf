"""`walras recommend --launch`: a recommendation from the catalog becomes a pool of the server, and the job runs there.

For operators: only administrators add pools. The pool is added with a quota of as many machines as the job takes, or
the quota of one that is there is raised; then the job is submitted with a plan that is limited to that pool.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from walras.cli.session import with_client
from walras.cli.submit_commands import submit_command
from walras.cli.terminal_output import show_line
from walras.cluster import Market
from walras.errors import UserError

if TYPE_CHECKING:
    from optimizer.planning.machine_choice import RunGoal
    from optimizer.planning.machine_recommendation import MachineRecommendation
    from walras.api import PoolView
    from walras.client import Client
    from walras.spec.catalog import Catalog, CatalogInstance

_OPTION = "--launch"
#: The provider whose machines are processes of this one: they have no accelerator, and pace their steps.
_LOCAL = "local"


@dataclass(frozen=True, slots=True)
class PoolLaunch:
    """What the server must add before the job can run there."""

    pool_id: str
    machines: int
    #: The fields of a new pool; None: the pool exists.
    added: Mapping[str, Any] | None
    #: The quota to which an existing pool must be raised; None: its quota suffices.
    quota: int | None


def pool_launch(found: "MachineRecommendation", known: "Catalog", pools: "Sequence[PoolView]") -> PoolLaunch:
    """Returns the pool of a recommendation. Raises UserError for a gang of several types."""
    assert found.recommendation is not None, "a launch is of something to take"
    used = [
        (machine.offer, count)
        for machine, count in zip(found.machines, found.recommendation.setup.counts, strict=True)
        if count
    ]
    if len(used) > 1:
        raise UserError("a gang of several types is of several pools", field=_OPTION, fix="leave --mixed out")
    ((offer, machines),) = used
    name = offer.name.removesuffix(" spot")
    sold = next(each for each in known.offers() if f"{each.cloud} {each.instance} {each.region}" == name)
    market = Market.SPOT if name != offer.name else Market.ON_DEMAND
    provider = _provider_of(sold, pools)
    zone = _zone_of(sold, provider, pools)
    pool_id = f"{sold.instance}/{market}/{zone}"
    there = next((each for each in pools if each.pool_id == pool_id), None)
    if there is not None:
        wanted = machines + (there.machines + there.coming if there.jobs else 0)
        return PoolLaunch(pool_id, machines, None, wanted if there.quota < wanted else None)
    added = {
        "shape": sold.instance,
        "accelerator": sold.accelerator,
        "accelerators": sold.accelerators,
        "cpus": sold.cpus,
        "memory": sold.memory,
        "market": str(market),
        "zone": zone,
        "provider": provider,
        "usd_per_h": offer.usd_per_h,
        "quota": machines,
        "emulated": provider == _LOCAL,
    }
    return PoolLaunch(pool_id, machines, added, None)


def _provider_of(sold: "CatalogInstance", pools: "Sequence[PoolView]") -> str:
    """Returns the provider named as the cloud is; on a server that only rehearses, the one that emulates clouds."""
    named = {each.provider for each in pools if each.provider}
    return _LOCAL if named == {_LOCAL} else sold.cloud


def _zone_of(sold: "CatalogInstance", provider: str, pools: "Sequence[PoolView]") -> str:
    """Returns a zone of the region in which the provider has a pool already, else the region itself."""
    zones = sorted(each.zone for each in pools if each.provider == provider and each.zone.startswith(sold.region))
    return zones[0] if zones else sold.region


def launch_command(
    found: "MachineRecommendation",
    known: "Catalog",
    job: Path,
    goal: "RunGoal",
    profiles: list[Path],
    network_gbit: float | None,
    *,
    yes: bool,
) -> None:
    """Asks, adds the pool or raises its quota, and submits the job with a plan that is limited to it.

    Raises UserError without a goal, where nobody can be asked, and what the server refuses.
    """
    goals = [] if goal.deadline_s is None else [f"deadline={goal.deadline_s:.0f}s"]
    goals += [] if goal.budget_usd is None else [f"budget={goal.budget_usd:g}"]
    if not goals:
        raise UserError("a job is launched for a goal", field=_OPTION, fix="add --deadline or --budget")

    async def look(client: "Client") -> "list[PoolView]":
        return await client.pools()

    step = pool_launch(found, known, with_client(look))
    words = f"add pool {step.pool_id} with quota {step.machines}" if step.added is not None else f"use {step.pool_id}"
    words += f" with quota {step.quota}" if step.quota is not None else ""
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"nobody can be asked whether to {words}", field=_OPTION, fix="add --yes")
        typer.confirm(f"{words} and submit the job?", abort=True)

    async def prepare(client: "Client") -> None:
        if step.added is not None:
            await client.add_pool(step.added)
        elif step.quota is not None:
            await client.change_pool(step.pool_id, quota=step.quota)

    with_client(prepare)
    show_line(f"{words}: done" if step.added is not None or step.quota is not None else words)
    limit = [f'resources.pools=["{step.pool_id}"]']
    submit_command(str(job), setting=limit, recommend=",".join(goals), profile=profiles, network=network_gbit, yes=True)
