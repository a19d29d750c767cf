"""The machines of a cluster's own pools to rent for one job: `recommend_machines` over pools instead of a catalog.

A pool has a current price, a limit on further machines, a boot time and a minimum that is billed; a catalog has none of
these. Data sheets of accelerators still come from the catalog, or from a profile that states them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optimizer.planning.machine_choice import MachineOffer, RunGoal
from optimizer.planning.machine_recommendation import (
    MachineCatalog,
    MachineRecommendation,
    RecommendationTerms,
    accelerator_specs,
    recommend_among,
    terms_for,
)
from optimizer.planning.machine_setups import CandidateMachine, Setup
from optimizer.prediction.predictor import AcceleratorSpecs
from walras.cluster import Market
from walras.job_request import ANY_ACCELERATOR
from walras.profiling.profile_documents import ProfileFile
from walras.spec.accelerator_names import named_type
from walras.spec.job_spec import JobSpec

#: Largest number of machines of one type that is tried, whatever the quota.
MACHINES_MOST = 64


@dataclass(frozen=True, slots=True)
class RentablePool:
    """A pool of a running cluster, as far as a plan reads it. Prices are per machine."""

    pool_id: str
    market: Market
    accelerator: str
    #: Accelerators per machine.
    accelerators: int
    usd_per_h: float
    #: Machines that may still be rented.
    available: int
    boot_s: float = 0.0
    minimum_billing_s: float = 0.0
    drained: bool = False


@dataclass(frozen=True, slots=True)
class PoolRecommendation:
    """The machines to rent, and the pool of each machine that was judged, by the name of its offer."""

    found: MachineRecommendation
    pools: Mapping[str, RentablePool]

    def pool_of(self, setup: Setup) -> tuple[RentablePool, int]:
        """Returns the pool of a setup of one type, and its number of machines."""
        for count, machine in zip(setup.counts, self.found.machines, strict=True):
            if count:
                return self.pools[machine.offer.name], count
        raise ValueError("a setup has a machine")


def recommend_pools(
    job: JobSpec,
    pools: Sequence[RentablePool],
    profiles: Sequence[ProfileFile],
    catalog: MachineCatalog,
    terms: RecommendationTerms,
    goal: RunGoal,
) -> PoolRecommendation:
    """Returns the best machines of one pool for a job, from what may be rented there now.

    Args:
        job: speeds in its `throughput` count as measured.
        pools: in any order; owned and drained ones are left out with the reason.
        profiles: of the job's own kind and of others.
        catalog: data sheets; its machines and prices are not read.
        terms: `most` bounds the machines; `revocations_per_h` applies to spot pools only.
        goal: a deadline counted from now, or a budget.

    Raises JobSpecError naming the field without which no forecast is possible.
    """
    terms = terms_for(job, profiles, catalog, terms)
    wanted = {demand.accelerator for demand in job.resources.accelerators}
    stated = {each.name: AcceleratorSpecs(**each.model_dump()) for profile in profiles for each in profile.accelerators}
    machines: list[CandidateMachine] = []
    left_out: dict[str, str] = {}
    for pool in sorted(pools, key=lambda each: each.pool_id):
        if not (ANY_ACCELERATOR in wanted or named_type(wanted, pool.accelerator)) or not _is_allowed(job, pool):
            continue
        facts = stated.get(pool.accelerator) or accelerator_specs(catalog.sheet(pool.accelerator), terms.precision)
        reason = _unavailable(pool) or (facts if isinstance(facts, str) else "")
        if reason or isinstance(facts, str):
            left_out[pool.pool_id] = reason
            continue
        network = facts.network_bytes_per_s or terms.network_bytes_per_s
        machines.append(
            CandidateMachine(
                MachineOffer(pool.pool_id, pool.usd_per_h, min(pool.available, MACHINES_MOST)),
                replace(facts, network_bytes_per_s=network),
                pool.accelerators,
                terms.revocations_per_h if pool.market is Market.SPOT else 0.0,
                pool.boot_s,
                pool.minimum_billing_s,
            )
        )
    found = recommend_among(machines, left_out, job, profiles, catalog, replace(terms, mixed=False), goal, ())
    return PoolRecommendation(found, {pool.pool_id: pool for pool in pools})


def _is_allowed(job: JobSpec, pool: RentablePool) -> bool:
    return not job.resources.pools or pool.pool_id in job.resources.pools


def _unavailable(pool: RentablePool) -> str:
    """Returns why no machine of the pool can be rented; empty if one can."""
    if pool.market is Market.OWNED:
        return "its machines are owned, not rented"
    if pool.drained:
        return "it is drained"
    if pool.available < 1:
        return "its quota is used up"
    return ""


def rescue_pools(planned: RentablePool, pools: Sequence[RentablePool]) -> tuple[RentablePool, ...]:
    """Returns the on-demand pools, of the planned spot pool's accelerators, that can still keep the job's deadline.

    The job rents nothing there while a spot machine is available at its price: these pools serve the last moment before
    the deadline would be lost. Empty for a job that is planned on demand.
    """
    if planned.market is not Market.SPOT:
        return ()
    same = (planned.accelerator, planned.accelerators)
    found = (each for each in pools if (each.accelerator, each.accelerators) == same)
    return tuple(each for each in found if each.market is Market.ON_DEMAND and not _unavailable(each))
