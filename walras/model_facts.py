"""What is known of one kind of job besides its speed: how much a sample costs, and what workers exchange.

People state such facts in a job file or a profile, jobs count them at their first update; predictors of speed work out
from them what nobody measured. This file says what a fact may be; `scheduler.core.ledger.kind_facts` says who is
believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Annotated, Literal

from pydantic import Field

from walras.checking import FieldMistake, FileModel
from walras.job_parts import Number, WholeNumber
from walras.sample_facts import SampleFacts

#: Largest values that are believed: far beyond anything that runs, so that a wrong unit is found out.
MOST_FLOPS, MOST_BYTES, MOST_LAYERS, MOST_SAMPLES = 1e18, 1e15, 1_000_000, 2**31
_Flops = Annotated[Number, Field(gt=0, le=MOST_FLOPS)]
_Bytes = Annotated[Number, Field(ge=0, le=MOST_BYTES)]
_Samples = Annotated[Number, Field(gt=0, le=MOST_SAMPLES)]

#: Arithmetic in which training is done, as catalogs write it.
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
#: By its bits, and those of its exponent.
_PRECISIONS: dict[tuple[float, float], Precision] = {
    (64, 11): "fp64",
    (32, 8): "fp32",
    (19, 8): "tf32",
    (16, 8): "bf16",
    (16, 5): "fp16",
}


def precision_of(bits: float, exponent_bits: float) -> Precision | None:
    """The arithmetic that has them: jobs count in numbers. None: no such is known."""
    return _PRECISIONS.get((bits, exponent_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(SampleFacts):
    """One kind of job. Where no batch is known, a sample is what one accelerator does in a step."""

    #: Samples of one step over the whole gang, whatever its size; else of each of its accelerators.
    batch: float | None = None
    batch_per_accelerator: float | None = None
    #: Of most operations. Where nobody knows it, machines are compared by fp32.
    precision: Precision | None = None

    @property
    def unit(self) -> tuple[float | None, float | None]:
        """What a sample is taken to be; facts by sample of two units cannot be mixed."""
        return self.batch, self.batch_per_accelerator

    def samples(self, accelerators: int) -> float:
        """Of one step of a gang."""
        return self.batch if self.batch is not None else accelerators * (self.batch_per_accelerator or 1.0)


class StatedFacts(FileModel):
    """`facts:` of a job file. A fact that is left out is not known."""

    flops_per_sample: _Flops | None = None
    memory_bytes_per_sample: _Bytes | None = None
    gradient_bytes: _Bytes | None = None
    layers: Annotated[WholeNumber, Field(ge=1, le=MOST_LAYERS)] | None = None
    resident_bytes: _Bytes | None = None
    activation_bytes: _Bytes | None = None
    input_bytes: _Bytes | None = None
    precision: Precision | None = None
    #: Samples of one step on each accelerator; a job that states `batch` does not need it.
    batch_per_accelerator: _Samples | None = None

    def facts(self, batch: float | None) -> ModelFacts:
        """For a job whose steps take so many samples over the whole gang; None: as many as are stated for each.

        Raises FieldMistake where neither is known.
        """
        if self.flops_per_sample is not None and batch is None and self.batch_per_accelerator is None:
            raise FieldMistake(
                "facts.batch_per_accelerator",
                "the samples of a step are unknown, so FLOPs of a sample say nothing of a step; "
                "write `batch_per_accelerator: 64`, or `batch: {global: 256}` of the job",
            )
        own = {name: getattr(self, name) for name in type(self).model_fields if name != "batch_per_accelerator"}
        return ModelFacts(**own, batch=batch, batch_per_accelerator=None if batch else self.batch_per_accelerator)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a job counted of itself: facts, and why some of what it said is not believed."""

    facts: ModelFacts | None
    ignored: tuple[str, ...] = ()


#: What the in-job client reports, and the largest value of each that is believed.
_REPORTED = {
    "flops": MOST_FLOPS * 1e6,
    "samples": MOST_SAMPLES,
    "gradient_bytes": MOST_BYTES,
    "resident_bytes": MOST_BYTES,
    "layers": MOST_LAYERS,
}


def counted(told: Mapping[str, float], ranks: int, batch: float | None) -> Counted:
    """Facts from what rank 0 counted in a step; `batch`: samples of a step over the gang, if the job states it.

    Nothing of it is trusted: a value that is no number above 0 (bytes: or 0), or absurd, is left out and told.
    """
    kept, ignored = dict[str, float](), list[str]()
    for name, most in _REPORTED.items():
        value = told.get(name)
        if value is None:
            continue
        least = 0.0 if name.endswith("bytes") else 1e-9
        if isfinite(value) and least <= value <= most:
            kept[name] = value
        else:
            ignored.append(f"{name} is {value:g}; believed is {least:g} to {most:g}")
    samples = batch / ranks if batch is not None else kept.get("samples")
    flops = kept.get("flops")
    if flops is not None and flops / (samples or 1.0) > MOST_FLOPS:
        ignored.append(f"flops is {flops:g} for {samples or 1.0:g} samples; believed is {MOST_FLOPS:g} for one at most")
        flops = None
    if flops is None and "gradient_bytes" not in kept:
        return Counted(None, tuple(ignored))
    facts = ModelFacts(
        flops_per_sample=None if flops is None else flops / (samples or 1.0),
        gradient_bytes=kept.get("gradient_bytes"),
        layers=int(kept["layers"]) if "layers" in kept else None,
        resident_bytes=kept.get("resident_bytes"),
        precision=precision_of(told.get("bits", 0.0), told.get("exponent_bits", 0.0)),
        batch=batch,
        batch_per_accelerator=None if batch is not None else samples,
    )
    return Counted(facts, tuple(ignored))


def filled(first: ModelFacts, second: ModelFacts | None) -> ModelFacts:
    """What the first does not know is taken from the second, where both mean the same by a sample."""
    if second is None or first.unit != second.unit:
        return first
    missing = [field.name for field in fields(ModelFacts) if getattr(first, field.name) is None]
    return replace(first, **{name: getattr(second, name) for name in missing})
