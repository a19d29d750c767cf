"""Facts of one kind of job besides its speed: operations and bytes per sample, and what workers exchange.

People state such facts in a job file or a profile, and jobs count them at their first update. Predictors of speed
derive from them the throughputs that were never measured. This module says what a fact may be and which counted values
are believed; the scheduler's core decides whose facts take precedence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal

#: What most operations belong to: fused attention and the layers about it, or convolutions.
Family = Literal["transformer", "convolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    """The cost of one sample on any machine. None: unknown."""

    #: Floating-point operations of forward and backward pass, and bytes that they move to and from memory.
    flops_per_sample: float | None = None
    memory_bytes_per_sample: float | None = None
    #: Bytes that workers exchange at each update.
    gradient_bytes: float | None = None
    layers: int | None = None
    #: Bytes on an accelerator independent of the batch (weights, optimizer state), and per sample of the batch.
    resident_bytes: float | None = None
    activation_bytes: float | None = None
    #: Bytes that the host transfers for one sample.
    input_bytes: float | None = None
    family: Family | None = None


#: Largest values that are accepted: far beyond any model, so that a wrong unit is detected.
MOST_FLOPS, MOST_BYTES, MOST_LAYERS, MOST_SAMPLES = 1e18, 1e15, 1_000_000, 2**31

#: Arithmetic of training, as catalogs name it.
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
#: (bits, exponent bits) -> name of the arithmetic.
_PRECISIONS: dict[tuple[float, float], Precision] = {
    (64, 11): "fp64",
    (32, 8): "fp32",
    (19, 8): "tf32",
    (16, 8): "bf16",
    (16, 5): "fp16",
}


def family_of_counts(counted: Mapping[str, float]) -> Family | None:
    """Returns the family that the counted operations (`flops`, of which convolutions and fused attention) tell."""
    if 2.0 * counted.get("convolution_flops", 0.0) > counted.get("flops", 0.0):
        return "convolution"
    return "transformer" if counted.get("attention_flops", 0.0) > 0.0 else None


def precision_of(bits: float, exponent_bits: float) -> Precision | None:
    """Returns the arithmetic with these numbers of bits; None if there is none."""
    return _PRECISIONS.get((bits, exponent_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(SampleFacts):
    """Facts of one kind of job. If no batch is known, a sample is what one accelerator processes in a step."""

    #: Samples of one step over the whole gang, whatever its size; else of each of its accelerators.
    batch: float | None = None
    batch_per_accelerator: float | None = None
    #: Arithmetic of most operations. If unknown, machines are compared by fp32.
    precision: Precision | None = None

    @property
    def unit(self) -> tuple[float | None, float | None]:
        """The definition of a sample; facts per sample with different units cannot be merged."""
        return self.batch, self.batch_per_accelerator

    def samples(self, accelerators: int) -> float:
        """Returns the samples of one step of a gang."""
        return self.batch if self.batch is not None else accelerators * (self.batch_per_accelerator or 1.0)


@dataclass(frozen=True, slots=True)
class BelievedFacts:
    """Facts that a job counted, and why some of its values were rejected."""

    facts: ModelFacts | None
    ignored: tuple[str, ...] = ()


#: Facts that the in-job client reports, and the largest value of each that is accepted.
_REPORTED = {
    "flops": MOST_FLOPS * 1e6,
    "convolution_flops": MOST_FLOPS * 1e6,
    "attention_flops": MOST_FLOPS * 1e6,
    "samples": MOST_SAMPLES,
    "gradient_bytes": MOST_BYTES,
    "resident_bytes": MOST_BYTES,
    "layers": MOST_LAYERS,
}


def believed_facts(counted: Mapping[str, float], ranks: int, batch: float | None) -> BelievedFacts:
    """Returns facts from the counts of rank 0 in a step; `batch`: samples of a step over the gang, if stated.

    Nothing of it is trusted: a value that is no number above 0 (bytes: or 0), or absurd, is left out and told.
    """
    kept, ignored = dict[str, float](), list[str]()
    for name, most in _REPORTED.items():
        value = counted.get(name)
        if value is None:
            continue
        least = 0.0 if name.endswith(("_bytes", "_flops")) else 1e-9
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
        family=family_of_counts(kept),
        batch=batch,
        batch_per_accelerator=None if batch is not None else samples,
    )
    return BelievedFacts(facts, tuple(ignored))


def merge_facts(first: ModelFacts, second: ModelFacts | None) -> ModelFacts:
    """Returns the first facts, with unknown ones taken from the second if both have the same unit of a sample."""
    if second is None or first.unit != second.unit:
        return first
    missing = [field.name for field in fields(ModelFacts) if getattr(first, field.name) is None]
    return replace(first, **{name: getattr(second, name) for name in missing})
