"""Facts of one kind of job besides its speed: operations and bytes per sample, and what workers exchange.

People state such facts in a job file or a profile, and jobs count them at their first update. Predictors of speed
derive from them the throughputs that were never measured. This module says what a fact may be and which counted values
are believed; `scheduler.core.ledger.kind_facts` says whose facts take precedence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    """None: nobody knows."""

    #: Floating-point operations of forward and backward pass, and bytes that they move to and from memory.
    flops_per_sample: float | None = None
    memory_bytes_per_sample: float | None = None
    #: What workers exchange at each update.
    gradient_bytes: float | None = None
    layers: int | None = None
    #: On an accelerator whatever the batch (weights, optimizer state), and more for each sample of it.
    resident_bytes: float | None = None
    activation_bytes: float | None = None
    #: What the host hands over for one sample.
    input_bytes: float | None = None


#: Largest values that are believed: far beyond anything that runs, so that a wrong unit is found out.
MOST_FLOPS, MOST_BYTES, MOST_LAYERS, MOST_SAMPLES = 1e18, 1e15, 1_000_000, 2**31

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


@dataclass(frozen=True, slots=True)
class BelievedFacts:
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


def believed_facts(counted: Mapping[str, float], ranks: int, batch: float | None) -> BelievedFacts:
    """Facts from what rank 0 counted in a step; `batch`: samples of a step over the gang, if the job states it.

    Nothing of it is trusted: a value that is no number above 0 (bytes: or 0), or absurd, is left out and told.
    """
    kept, ignored = dict[str, float](), list[str]()
    for name, most in _REPORTED.items():
        value = counted.get(name)
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
        return BelievedFacts(None, tuple(ignored))
    facts = ModelFacts(
        flops_per_sample=None if flops is None else flops / (samples or 1.0),
        gradient_bytes=kept.get("gradient_bytes"),
        layers=int(kept["layers"]) if "layers" in kept else None,
        resident_bytes=kept.get("resident_bytes"),
        precision=precision_of(counted.get("bits", 0.0), counted.get("exponent_bits", 0.0)),
        batch=batch,
        batch_per_accelerator=None if batch is not None else samples,
    )
    return BelievedFacts(facts, tuple(ignored))


def merge_facts(first: ModelFacts, second: ModelFacts | None) -> ModelFacts:
    """What the first does not know is taken from the second, where both mean the same by a sample."""
    if second is None or first.unit != second.unit:
        return first
    missing = [field.name for field in fields(ModelFacts) if getattr(first, field.name) is None]
    return replace(first, **{name: getattr(second, name) for name in missing})
