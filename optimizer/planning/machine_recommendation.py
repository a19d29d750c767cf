"""The recommendation of machines to rent for one job, from a catalog or from a cluster's own pools.

This module turns rows of a catalog or pools into facts of machines for `machine_choice`, states which machines are left
out and why, and chooses the predictors. Of a catalog the typical prices count; for spot machines the forecast includes
the work lost to revocations. A pool has besides a current price, a limit on further machines, a boot time and a minimum
that is billed. Data sheets of its accelerators come from the catalog, or from a profile that states them.

Speeds come from the predictors; where these know too little of a job, its latest observation answers instead. If the
job runs already, its measured speed corrects all of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from optimizer.planning.machine_choice import (
    CandidateMachine,
    MachineOffer,
    Recommendation,
    RemainingWork,
    RunGoal,
    Setup,
    SetupForecasts,
    recommend_setup,
)
from optimizer.prediction.affine_law import AffinePredictor
from optimizer.prediction.ensemble import Ensemble
from optimizer.prediction.predictor import (
    Z80,
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    SpeedModel,
    peak_of,
)
from optimizer.prediction.step_time import RooflinePredictor
from optimizer.renting.lifetime_laws import CheckpointCosts, useful_part
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, JobSpecError
from walras.job_request import ANY_ACCELERATOR
from walras.profiling.profiles import ProfileFile
from walras.spec.accelerator_names import named_type
from walras.spec.job_groups import global_batch_of
from walras.spec.job_spec import JobSpec
from walras.spec.spec_request import kind_of

#: Relative spread between machines of one type, however precisely one of them was measured.
_LEAST_SPREAD = 0.1


def fit_speed_model(observations: Sequence[Observation]) -> SpeedModel:
    """Returns the ensemble of predictors, each weighted by its accuracy on these observations."""
    # This import brings in SciPy, which takes half a second: only callers that predict pay for it.
    from optimizer.prediction.gaussian_process import GaussianProcess

    return Ensemble((RooflinePredictor(), AffinePredictor(), GaussianProcess())).fit(observations)


@dataclass(frozen=True, slots=True)
class ObservedCells:
    """A speed model that answers with an observation where the predictors know too little of the job."""

    model: SpeedModel
    #: By kind of job, accelerator and layout; the last of several observations counts.
    observed: Mapping[tuple[str, str, Layout], Observation]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "ObservedCells":
        found = {_place_of(each.cell): each for each in observations}
        return cls(fit_speed_model(observations), found)

    def predict(self, cell: SpeedCell) -> Prediction:
        """Predicts steps per second. Raises CannotPredict where neither the predictors nor an observation know the
        cell.
        """
        try:
            return self.model.predict(cell)
        except CannotPredict:
            known = self.observed.get(_place_of(cell))
            if known is None:
                raise
            return _as_measured(known.steps_per_s, Z80 * known.spread)


@dataclass(frozen=True, slots=True)
class MeasuredGang:
    """Speed of a running job, in updates of the whole gang per second, and the accelerators on which it runs."""

    accelerator: str
    accelerators: int
    machines: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class CorrectedModel:
    """A speed model in which one cell was measured by the running job itself.

    For the measured cell the model returns the measurement. For every other cell it multiplies its prediction by the
    ratio of the measured speed to the speed predicted for the measured cell: a job that has more work per step than
    expected has it on every machine. The ratio could also come from the machines instead of the job, so the returned
    interval contains the uncorrected prediction too.
    """

    model: SpeedModel
    gang: MeasuredGang
    #: Measured speed over predicted speed; 1 where the model cannot predict the measured gang.
    factor: float

    @classmethod
    def of(
        cls, model: SpeedModel, work: RemainingWork, machines: Sequence[CandidateMachine], gang: MeasuredGang
    ) -> "CorrectedModel":
        layout = Layout(float(work.batch), gang.accelerators, gang.machines)
        here = next((each.accelerator for each in machines if each.accelerator.name == gang.accelerator), None)
        try:
            said = None if here is None else model.predict(SpeedCell(work.kind, here, layout)).steps_per_s
        except CannotPredict:
            said = None
        return cls(model, gang, 1.0 if said is None else gang.steps_per_s / said)

    def predict(self, cell: SpeedCell) -> Prediction:
        """Predicts steps per second. Raises CannotPredict where the underlying model does."""
        gang, layout = self.gang, cell.layout
        place = (cell.accelerator.name, layout.accelerators, layout.machines)
        if place == (gang.accelerator, gang.accelerators, gang.machines):
            return _as_measured(gang.steps_per_s, 0.0)
        said = self.model.predict(cell)
        low, high = sorted((1.0, self.factor))
        return Prediction(said.steps_per_s * self.factor, said.low * low, said.high * high)


def _place_of(cell: SpeedCell) -> tuple[str, str, Layout]:
    return cell.kind.name, cell.accelerator.name, cell.layout


def _as_measured(steps_per_s: float, spread: float) -> Prediction:
    part = 1.0 + max(_LEAST_SPREAD, spread)
    return Prediction(steps_per_s, steps_per_s / part, steps_per_s * part)


#: One direction of a PCIe slot with sixteen lanes, bytes per second.
_SLOT = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9}
#: Precision of a job that states none.
_USUAL = "fp32"
#: A checkpoint takes a minute; five minutes pass from a revocation to the next step.
_COSTS = CheckpointCosts(checkpoint_h=60 / SECONDS_PER_HOUR, restart_h=300 / SECONDS_PER_HOUR)


class AcceleratorSheet(Protocol):
    """What a catalog knows of an accelerator; None where it is unknown."""

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> float:
        """Memory in bytes."""
        ...

    @property
    def peak_flops(self) -> Mapping[str, float]:
        """Dense peak performance by precision, operations per second."""
        ...

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Memory bandwidth, bytes per second."""
        ...

    @property
    def link(self) -> str | None:
        """Kind of link to the other accelerators of the machine, such as `pcie4`."""
        ...

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth of the link, both directions together, bytes per second."""
        ...

    @property
    def achieves(self) -> float:
        """Part of the data sheet's performance that average training jobs reach, relative to a V100."""
        ...


class SoldMachine(Protocol):
    """A machine that a cloud rents out. Prices are for the whole machine; None where it is not sold on such terms."""

    @property
    def cloud(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def instance(self) -> str: ...
    @property
    def accelerator(self) -> str: ...
    @property
    def accelerators(self) -> int: ...
    @property
    def on_demand_usd_per_h(self) -> float | None: ...
    @property
    def spot_usd_per_h(self) -> float | None: ...


class MachineCatalog(Protocol):
    """The part of a catalog that recommendations read; `walras.spec.catalog.Catalog` implements it.

    Rows of the catalog itself carry dates, and modules below `optimizer` import nothing that reads dates.
    """

    @property
    def accelerators(self) -> Mapping[str, AcceleratorSheet]:
        """Data sheets by canonical name."""
        ...

    def sheet(self, accelerator: str) -> AcceleratorSheet | None:
        """Returns the data sheet of a type, also under the name by which a driver's report has it; None without one."""
        ...

    def means(self, names: Iterable[str], accelerator: str) -> bool:
        """Returns whether one of the names means this type, which may be listed without its memory."""
        ...

    def offers(self, cloud: str | None = None) -> Sequence[SoldMachine]:
        """Returns the machines of a cloud (None: of all clouds), in ascending order of price per accelerator-hour."""
        ...


@dataclass(frozen=True, slots=True)
class RecommendationTerms:
    """What may be rented, and on which terms."""

    #: Precision of the job as catalogs write it; None: as the job's profile or facts say, else fp32.
    precision: str | None = None
    on_demand: bool = True
    spot: bool = False
    #: Network bandwidth per direction for machines whose catalog row has none; None: such machines are used singly.
    network_bytes_per_s: float | None = None
    #: Revocations per hour of one spot machine, and the times that each revocation costs.
    revocations_per_h: float = 0.0
    costs: CheckpointCosts = _COSTS
    #: Largest number of machines in the gang, and whether they may be of several types.
    most: int = 8
    mixed: bool = False
    #: Only machines of this cloud; None: of all clouds.
    cloud: str | None = None
    #: Measured speed of the job where it runs now, which corrects all predictions; None: the job is not running.
    measured: MeasuredGang | None = None

    def lasting(self, revocations_per_h: float) -> float:
        """Returns the part of the paid time that becomes lasting work at this rate of revocations."""
        return useful_part(self.costs, revocations_per_h)


@dataclass(frozen=True, slots=True)
class MachineRecommendation:
    """The machines to rent, the options considered, and the machines that could not be judged, each with the reason."""

    recommendation: Recommendation | None
    machines: tuple[CandidateMachine, ...]
    work: RemainingWork
    left_out: Mapping[str, str]


def recommend_machines(
    job: JobSpec,
    profiles: Sequence[ProfileFile],
    catalog: MachineCatalog,
    terms: RecommendationTerms,
    goal: RunGoal,
    batches: Sequence[int],
) -> MachineRecommendation:
    """Returns the best set of machines for a job. `profiles` are of its kind and of others, from which types are
    compared.

    Raises JobSpecError naming the field without which no forecast is possible.
    """
    terms = terms_for(job, profiles, catalog, terms)
    wanted = (demand.accelerator for demand in job.resources.accelerators)
    machines, left_out = candidate_machines(catalog, wanted, terms)
    return recommend_among(machines, left_out, job, profiles, catalog, terms, goal, batches)


def terms_for(
    job: JobSpec, profiles: Sequence[ProfileFile], catalog: MachineCatalog, terms: RecommendationTerms
) -> RecommendationTerms:
    """Returns the terms with the job's precision filled in. Raises ConfigError for an unknown precision."""
    terms = replace(terms, precision=terms.precision or _precision(job, _own(job, profiles)))
    _check_precision(terms.precision, catalog)
    return terms


def _own(job: JobSpec, profiles: Sequence[ProfileFile]) -> ProfileFile | None:
    return next((profile for profile in profiles if profile.kind == kind_of(job)), None)


def recommend_among(
    machines: Sequence[CandidateMachine],
    left_out: Mapping[str, str],
    job: JobSpec,
    profiles: Sequence[ProfileFile],
    catalog: MachineCatalog,
    terms: RecommendationTerms,
    goal: RunGoal,
    batches: Sequence[int],
) -> MachineRecommendation:
    """Returns the best set among these machines; `left_out` maps others to the reason. Raises JobSpecError as above."""
    left_out = dict(left_out)
    work = _remaining_work(job, _own(job, profiles), batches)
    observations: list[Observation] = list(_declared(job, work, catalog, terms))
    for profile in profiles:
        learned, unknown = observations_of(profile, catalog, terms)
        observations += learned
        left_out |= {f"{name} in the profile of {profile.kind}": why for name, why in unknown.items()}
    model: SpeedModel = ObservedCells.of(observations)
    if terms.measured is not None:
        model = CorrectedModel.of(model, work, machines, terms.measured)
    forecasts = SetupForecasts(work, machines, model, lasting=terms.lasting)
    setups = [setup for setup in forecasts.setups(terms.most, terms.mixed) if _allowed(job, setup.accelerators)]
    some = [any(counts) for counts in zip(*(setup.counts for setup in setups), strict=True)] or [False] * len(machines)
    unused = [machine.offer.name for machine, used in zip(machines, some, strict=True) if not used]
    never = {name: forecasts.refused.get(name, "none of its sizes suits the job") for name in unused}
    return MachineRecommendation(recommend_setup(setups, goal), tuple(machines), work, {**never, **left_out})


def _remaining_work(job: JobSpec, own: ProfileFile | None, batches: Sequence[int]) -> RemainingWork:
    batch = global_batch_of(job.batch) or (own.measured[0].batch if own is not None and own.measured else None)
    if job.steps is None:
        raise JobSpecError("the job's work is unknown", field="steps", fix="write `steps: 20000`: the updates to do")
    if batch is None:
        raise JobSpecError(
            "the samples of one update are unknown", field="batch.global", fix="write `batch: {global: 256}`"
        )
    kind = kind_facts(own) if own is not None else KindFacts(kind_of(job))
    noise = own.noise_scale if own is not None else None
    if batches and noise is None:
        raise JobSpecError(
            "this kind's gradient noise was not measured, so the effect of other batch sizes on convergence is unknown",
            field="profile",
            fix="profile the job, or leave batch out",
        )
    return RemainingWork(kind, job.steps * batch, batch, tuple(sorted({batch, *batches})), noise)


def _declared(
    job: JobSpec, work: RemainingWork, catalog: MachineCatalog, terms: RecommendationTerms
) -> Iterator[Observation]:
    """Generates the speeds that the job file states, each for the gang that it asks for there."""
    counts = {demand.accelerator: demand.count for demand in job.resources.accelerators}
    for name, steps_per_s in job.throughput.items():
        facts = accelerator_specs(catalog.sheet(name), terms.precision)
        if isinstance(facts, AcceleratorSpecs):
            asked = counts.get(named_type(counts, name) or ANY_ACCELERATOR, 1)
            layout = Layout(float(work.batch), asked, job.num_nodes)
            yield Observation(SpeedCell(work.kind, facts, layout), steps_per_s)


def _allowed(job: JobSpec, accelerators: int) -> bool:
    return job.elastic is None or job.elastic.min <= accelerators <= job.elastic.max


def candidate_machines(
    catalog: MachineCatalog, accelerators: Iterable[str], terms: RecommendationTerms
) -> tuple[list[CandidateMachine], dict[str, str]]:
    """Returns the machines with these accelerators (`*`: any), and those left out, with the reason."""
    wanted = set(accelerators)
    machines, left_out = [], {}
    for entry in catalog.offers(terms.cloud):
        if ANY_ACCELERATOR not in wanted and not catalog.means(wanted, entry.accelerator):
            continue
        facts = accelerator_specs(catalog.sheet(entry.accelerator), terms.precision)
        if isinstance(facts, str):
            left_out[entry.instance] = facts
            continue
        machines += list(_sold(entry, replace(facts, network_bytes_per_s=terms.network_bytes_per_s), terms))
    return machines, left_out


def _sold(entry: SoldMachine, facts: AcceleratorSpecs, terms: RecommendationTerms) -> Iterator[CandidateMachine]:
    name = f"{entry.cloud} {entry.instance} {entry.region}"
    if terms.on_demand and entry.on_demand_usd_per_h is not None:
        yield CandidateMachine(MachineOffer(name, entry.on_demand_usd_per_h, terms.most), facts, entry.accelerators)
    if terms.spot and entry.spot_usd_per_h is not None:
        offer = MachineOffer(f"{name} spot", entry.spot_usd_per_h, terms.most)
        yield CandidateMachine(offer, facts, entry.accelerators, terms.revocations_per_h)


def _precision(job: JobSpec, own: ProfileFile | None) -> str | None:
    stated = None if own is None else own.precision
    return stated or (None if job.facts is None else job.facts.precision)


def _check_precision(precision: str | None, catalog: MachineCatalog) -> None:
    """Raises ConfigError for a precision in which no accelerator's peak performance is known."""
    peaks = [tuple(sheet.peak_flops.items()) for sheet in catalog.accelerators.values()]
    if precision is not None and all(peak_of(each, precision) is None for each in peaks):
        known = sorted({name for each in peaks for name, _ in each})
        fix = f"choose from {', '.join(known)}"
        raise ConfigError(f"no accelerator's peak is known in {precision!r}", field="precision", fix=fix)


def accelerator_specs(sheet: AcceleratorSheet | None, precision: str | None) -> AcceleratorSpecs | str:
    """Returns an accelerator's specifications at this precision (None: the usual one), or why it cannot be judged."""
    precision = precision or _USUAL
    if sheet is None:
        return "no catalog knows its accelerator"
    peaks = tuple(sheet.peak_flops.items())
    peak = peak_of(peaks, precision)
    if peak is None:
        return (
            f"the peak of {sheet.name} in {precision} is unknown; the catalog has {', '.join(sheet.peak_flops) or '-'}"
        )
    if sheet.memory_bytes_per_s is None:
        return f"the memory bandwidth of {sheet.name} is unknown"
    # Data sheets add up both directions of a link.
    link = sheet.link_bytes_per_s / 2.0 if sheet.link_bytes_per_s is not None else _SLOT.get(sheet.link or "")
    return AcceleratorSpecs(
        name=sheet.name,
        flops_per_s=peak,
        memory_bytes_per_s=sheet.memory_bytes_per_s,
        memory_bytes=float(sheet.memory),
        link_bytes_per_s=link,
        host_bytes_per_s=_SLOT.get(sheet.link or ""),
        achieves=float(sheet.achieves),
        peaks=peaks,
    )


def specs_by_accelerator(catalog: MachineCatalog) -> dict[str, AcceleratorSpecs]:
    """Returns the specifications of the catalog's accelerators, at the precision that nearly every row has.

    A name such as `a100` that leaves the variant open means the variant with the least memory.
    """
    judged = ((name, accelerator_specs(sheet, _USUAL)) for name, sheet in catalog.accelerators.items())
    found = {name: facts for name, facts in judged if isinstance(facts, AcceleratorSpecs)}
    for name, facts in sorted(found.items(), key=lambda each: each[1].memory_bytes or 0.0):
        if (short := re.fullmatch(r"(.+)-\d+gb", name)) is not None:
            found.setdefault(short[1], replace(facts, name=short[1]))
    return found


def kind_facts(profile: ProfileFile) -> KindFacts:
    """Returns the facts of the kind of job that the profile measures."""
    return KindFacts(
        name=profile.kind,
        flops_per_sample=profile.flops_per_sample,
        memory_bytes_per_sample=profile.memory_bytes_per_sample,
        gradient_bytes=profile.gradient_bytes,
        layers=profile.layers,
        resident_bytes=profile.resident_bytes,
        activation_bytes=profile.activation_bytes,
        input_bytes=profile.input_bytes,
        family=profile.family,
    )


def observations_of(
    profile: ProfileFile, catalog: MachineCatalog, terms: RecommendationTerms
) -> tuple[list[Observation], dict[str, str]]:
    """Returns the measurements of a profile, and the accelerators whose rows are unusable because their facts are
    unknown.
    """
    kind = kind_facts(profile)
    precision = profile.precision or terms.precision
    known: Mapping[str, AcceleratorSpecs] = {
        stated.name: AcceleratorSpecs(**stated.model_dump()) for stated in profile.accelerators
    }
    found, unknown = [], {}
    for row in profile.measured:
        facts = known.get(row.accelerator) or accelerator_specs(catalog.sheet(row.accelerator), precision)
        if isinstance(facts, str):
            unknown[row.accelerator] = facts
            continue
        network = facts.network_bytes_per_s or terms.network_bytes_per_s
        layout = Layout(float(row.batch), row.accelerators, row.machines, row.accumulated)
        cell = SpeedCell(kind, replace(facts, network_bytes_per_s=network), layout)
        found.append(Observation(cell, row.steps_per_s, row.spread, row.samples))
    return found, unknown


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
