"""What is measured of a model's layers on types of accelerator, and what a stage of a pipeline costs by it.

A plan cuts the layers into stages of a pipeline. Each stage is held by as many replicas as the batch is divided among;
a replica is one tensor-parallel group on one machine. Seconds are of one micro-batch (some samples) on one group.
Memory counts the parameters six times (weights, gradients, two moments of Adam, buckets for the exchange, a spare copy)
in single precision, the activations of the micro-batches in flight, and what the frameworks hold themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray

#: Copies of the parameters that a device keeps, and what frameworks hold beside them with one group or several (bytes).
PARAMETER_COPIES = 6
_FRAMEWORK_BYTES, _FRAMEWORK_BYTES_IN_PARALLEL = 2e9, 3e9
#: Gradients are exchanged in buckets of this many bytes.
_BUCKET_BYTES = 500_000_000

#: (name of the sender's type, its accelerators on a machine, the receiver's name, the receiver's accelerators).
LinkEnds = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth between two machines: GB/s of a message of x bytes is a polynomial in log2(x / 1e6)."""

    #: Highest power first.
    polynomial: tuple[float, ...]
    #: What is counted on where links are compared.
    most_bytes_per_s: float

    def seconds(self, message_bytes: FloatArray) -> FloatArray:
        """Time of one message of each size (any shape), above 0."""
        size = np.log2(message_bytes / 1e6)
        gb_per_s = np.zeros_like(size)
        for coefficient in self.polynomial:
            gb_per_s = gb_per_s * size + coefficient
        return message_bytes / 1e9 / gb_per_s


@dataclass(frozen=True, slots=True, eq=False)
class TypeProfile:
    """What is measured on one type of accelerator. Keys are (micro-batch, tensor-parallel degree)."""

    name: str
    memory_bytes: float
    #: Forward and backward pass of each layer, seconds (l,).
    pass_s: Mapping[tuple[int, int], FloatArray]
    #: The optimizer's update of all layers, seconds.
    update_s: Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True, eq=False)
class LayerSizes:
    """Bytes of each layer on one accelerator of a tensor-parallel group, for a micro-batch of one sample (l,)."""

    parameters: FloatArray
    #: Kept for the backward pass.
    activations: FloatArray
    #: Sent to the next stage.
    output: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ModelProfile:
    """A model, its batch, and all that is measured of it."""

    #: Samples of one step over the whole gang.
    batch: int
    #: By tensor-parallel degree; degree 1 is there.
    sizes: Mapping[int, LayerSizes]
    types: tuple[TypeProfile, ...]
    links: Mapping[LinkEnds, Link]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.sizes[1].parameters)

    def degrees(self, name: str) -> list[int]:
        """Degrees of tensor parallelism whose layers and links are known for the type, ascending."""
        return sorted(degree for degree in self.sizes if (name, degree, name, degree) in self.links)


def cut_layers(layers: int, stages: int) -> IntArray:
    """First layer of each stage, and the end (s + 1,): stages as equal as can be, the longer ones last."""
    lengths = np.full(stages, layers // stages)
    lengths[stages - layers % stages :] += 1
    return np.concatenate([[0], np.cumsum(lengths)])


def stage_sums(values: FloatArray, cuts: IntArray) -> FloatArray:
    """Sum over the layers of each stage (s,)."""
    return np.array([values[first:end].sum() for first, end in pairwise(cuts.tolist())])


def fits(profile: ModelProfile, kind: TypeProfile, degree: int, micro_batch: int, cuts: IntArray) -> BoolArray:
    """Whether an accelerator of the type holds its part of each stage (s,): earlier ones have more in flight."""
    sizes, stages = profile.sizes[degree], len(cuts) - 1
    in_flight = micro_batch * (stages - np.arange(stages))
    held = PARAMETER_COPIES * stage_sums(sizes.parameters, cuts) + in_flight * stage_sums(sizes.activations, cuts)
    return held + (_FRAMEWORK_BYTES if degree == 1 else _FRAMEWORK_BYTES_IN_PARALLEL) <= kind.memory_bytes


def exchange_s(link: Link, stage_bytes: float, replicas: FloatArray) -> FloatArray:
    """A ring's sum of one stage's gradients over so many replicas, bucket by bucket; 0 of a single one (any shape)."""
    whole, rest = divmod(stage_bytes, _BUCKET_BYTES)
    total = np.zeros_like(replicas)
    for times, size in ((whole, float(_BUCKET_BYTES)), (1.0, rest)):
        if times and size:
            part = np.floor(size / replicas)
            total += times * 2.0 * (replicas - 1.0) * link.seconds(part)
    return total
