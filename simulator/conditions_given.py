"""The parts of a file of conditions: what may be written in each, with units and bounds."""

from dataclasses import replace
from math import inf
from typing import Annotated

from pydantic import Field, model_validator

from simulator.faults import Death, Incident, MarketChange, Revocation, Slowness
from simulator.machines import PoolModel
from simulator.truth import Costs
from walras.checking import FieldMistake, FileModel
from walras.ids import PoolId
from walras.job_parts import Length, Number, PositiveLength, WholeNumber
from walras.names import ShownName

_Noise = Annotated[Number, Field(ge=0, le=3)]
_Every = PositiveLength | None
_Part = Annotated[Number, Field(ge=0, le=1)]
_Pace = Annotated[Number, Field(gt=0, le=1)]
_Count = Annotated[WholeNumber, Field(ge=0, le=100_000)]


class CostsGiven(FileModel):
    """What the life of an attempt costs besides its steps; of every kind that has no costs of its own."""

    start: Length = 0.0
    warm_up: Length = 0.0
    #: None: jobs cannot checkpoint.
    checkpoint: Length | None = 0.0
    checkpoint_every: Length = 0.0
    exit: Length = 0.0
    migrate: Length = 0.0

    def costs(self) -> Costs:
        """As the world has them."""
        return Costs(self.start, self.checkpoint, self.checkpoint_every, self.warm_up, self.exit, self.migrate)


class StartsGiven(FileModel):
    """How machines answer when a gang is to start on them."""

    #: From the command to prepare to the answer.
    prepare: Length = 0.0
    #: Part of preparations and starts that a machine refuses.
    refused: Annotated[Number, Field(ge=0, lt=1)] = 0.0


class NoiseGiven(FileModel):
    """Standard deviations of logarithms (of reports: relative)."""

    speeds: _Noise = 0.0
    costs: _Noise = 0.0
    reports: _Noise = 0.0


class FaultsGiven(FileModel):
    """Mean times between what goes wrong with one owned machine; what is not named never happens."""

    death_every: _Every = None
    lease: PositiveLength = 600.0
    repair: PositiveLength = 3600.0
    cut_off_every: _Every = None
    cut_off: PositiveLength = 60.0
    slow_every: _Every = None
    slow: PositiveLength = 600.0
    #: Part of its speed at which a slow machine works.
    slow_pace: _Pace = 0.5
    #: The same of one attempt, on whatever machine.
    attempt_slow_every: _Every = None
    attempt_slow: PositiveLength = 600.0
    attempt_slow_pace: _Pace = 0.5
    #: A machine taken out of use because jobs failed on it is put back after this; None: never.
    uncordon: _Every = None
    until: _Every = None


class MarketGiven(FileModel):
    """How machines of a pool are to be had, in place of what the cluster file says."""

    #: From the request to a machine that takes jobs; None: as the cluster says.
    boot: Length | None = None
    boot_noise: _Noise = 0.0
    #: Warning before a revocation; None: as the cluster says.
    notice: Length | None = None
    #: Mean life of a spot machine before the market takes it back; None: it does not.
    life: _Every = None
    #: Machines that the market has, below the quota; None: the quota alone counts.
    capacity: _Count | None = None
    #: Price of a machine; None: as the cluster says.
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    #: Another price around that one after every so long; None: it stays.
    reprice_every: _Every = None
    price_noise: _Noise = 0.0

    def applied_to(self, model: PoolModel) -> PoolModel:
        """The pool under these terms."""
        pool, terms = model.pool, model.terms
        boot_s = terms.boot_s if self.boot is None else self.boot
        return replace(
            model,
            pool=replace(
                pool,
                boot_s=boot_s,
                notice_s=pool.notice_s if self.notice is None else self.notice,
                usd_per_h=pool.usd_per_h if self.usd_per_h is None else self.usd_per_h,
            ),
            terms=replace(terms, boot_s=boot_s, capacity=terms.capacity if self.capacity is None else self.capacity),
            boot_noise=self.boot_noise,
            mean_life_s=self.life or inf,
            reprice_every_s=self.reprice_every or inf,
            price_noise=self.price_noise,
        )


class IncidentGiven(FileModel):
    """Something that happens to machines of a pool at an instant: exactly one of `revoke`, `kill`, `slow`, `market`."""

    at: Length
    #: The market takes machines back, with the pool's notice: `machines` of them, or all.
    revoke: ShownName | None = None
    machines: Annotated[WholeNumber, Field(ge=1, le=100_000)] | None = None
    #: A machine dies, or works at `pace` for a while: the n-th of the pool in order of joining.
    kill: ShownName | None = None
    slow: ShownName | None = None
    machine: _Count = 0
    pace: _Pace = 0.5
    #: None: to the end.
    lasts: _Every = None
    #: Another price of a machine, another number of machines that the market has.
    market: ShownName | None = None
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    capacity: _Count | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> "IncidentGiven":
        named = [word for word in ("revoke", "kill", "slow", "market") if getattr(self, word) is not None]
        if len(named) != 1:
            what = " and ".join(named) + " at once" if named else "nothing happens"
            raise FieldMistake("revoke", f"{what}; name one of revoke, kill, slow, market")
        if named == ["market"] and self.usd_per_h is None and self.capacity is None:
            raise FieldMistake("market", "changes nothing; add usd_per_h or capacity")
        belongs = {
            "machines": "revoke", "machine": "kill or slow", "pace": "slow", "lasts": "slow", "usd_per_h": "market",
            "capacity": "market",
        }  # fmt: skip
        for field in self.model_fields_set & belongs.keys():
            if named[0] not in belongs[field].split(" or "):
                raise FieldMistake(field, f"says nothing of {named[0]}; it belongs to {belongs[field]}")
        return self

    @property
    def what(self) -> str:
        """The field that names the pool."""
        return next(word for word in ("revoke", "kill", "slow", "market") if getattr(self, word) is not None)

    @property
    def pool(self) -> str:
        """The pool that it happens to."""
        return str(getattr(self, self.what))

    def incidents(self, pool_id: PoolId) -> list[Incident]:
        """As the world has them."""
        match self.what:
            case "revoke":
                return [Revocation(self.at, pool_id, self.machines)]
            case "kill":
                return [Death(self.at, pool_id, self.machine)]
            case "market":
                return [MarketChange(self.at, pool_id, self.usd_per_h, self.capacity)]
        spell: list[Incident] = [Slowness(self.at, pool_id, self.machine, self.pace)]
        well = [] if self.lasts is None else [Slowness(self.at + self.lasts, pool_id, self.machine, 1.0)]
        return [*spell, *well]


class CancellationsGiven(FileModel):
    """Users who change their minds: a part of the jobs, and the mean time from submission to that."""

    part: _Part = 0.0
    after: PositiveLength = 3600.0


class CrashesGiven(FileModel):
    """Jobs that fail by themselves, anywhere in their work."""

    part: _Part = 0.0
    exit_code: Annotated[WholeNumber, Field(ge=1, le=255)] = 1
    #: How often a job crashes; None: every time.
    times: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = 1


class LengthsGiven(FileModel):
    """What the scheduler is told of lengths: nothing, or what the workload states times factor and noise."""

    told: bool = True
    spread: _Noise = 0.0
    factor: Annotated[Number, Field(gt=0, le=1000)] = 1.0
