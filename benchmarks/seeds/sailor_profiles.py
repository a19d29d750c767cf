"""Measured layers of a model on accelerator types, and what a pipeline stage made of these layers costs.

A parallel plan cuts the layers into pipeline stages. Each stage is held by data-parallel replicas, and a replica is one
tensor-parallel group on one machine. Times are seconds of one micro-batch on one group. Memory counts the parameters
six times in single precision (weights, gradients, the two moments of Adam, communication buckets and a spare copy), the
activations of the micro-batches in flight, and the frameworks' own memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from optimizer.problem import BoolArray, FloatArray, IntArray

_GIB = 2**30

#: Copies of the parameters that a device keeps; bytes that the frameworks hold with one group and with several.
PARAMETER_COPIES = 6
_FRAMEWORK_BYTES, _FRAMEWORK_BYTES_IN_PARALLEL = 2e9, 3e9
#: Gradients are all-reduced in buckets of this many bytes.
_BUCKET_BYTES = 500_000_000

#: (type name of the sender, its accelerators per machine, type name of the receiver, its accelerators per machine).
LinkEnds = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth between two machines: GB/s for a message of x bytes is a polynomial in log2(x / 1e6)."""

    #: Coefficients, the highest power first.
    polynomial: tuple[float, ...]
    #: Bandwidth that is used to compare links.
    most_bytes_per_s: float

    def seconds(self, message_bytes: FloatArray) -> FloatArray:
        """Returns the seconds that one message of each size takes (any shape), above 0."""
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
    #: Seconds of the forward and backward pass of each layer (l,).
    pass_s: Mapping[tuple[int, int], FloatArray]
    #: Seconds of the optimizer's update of all layers.
    update_s: Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True, eq=False)
class LayerSizes:
    """Bytes of each layer on one accelerator of a tensor-parallel group, for a micro-batch of one sample (l,)."""

    parameters: FloatArray
    #: Activations that are kept for the backward pass.
    activations: FloatArray
    #: Activations that are sent to the next stage.
    output: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ModelProfile:
    """A model, its batch, and its measurements on each accelerator type."""

    #: Samples of one step of the whole gang.
    batch: int
    #: By tensor-parallel degree; degree 1 is always present.
    sizes: Mapping[int, LayerSizes]
    types: tuple[TypeProfile, ...]
    links: Mapping[LinkEnds, Link]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.sizes[1].parameters)

    def degrees(self, name: str) -> list[int]:
        """Returns the tensor-parallel degrees whose layers and links are known for the type, ascending."""
        return sorted(degree for degree in self.sizes if (name, degree, name, degree) in self.links)


def cut_layers(layers: int, stages: int) -> IntArray:
    """Returns the first layer of each stage, and the end (s + 1,): stages as equal as possible, longer ones last."""
    lengths = np.full(stages, layers // stages)
    lengths[stages - layers % stages :] += 1
    return np.concatenate([[0], np.cumsum(lengths)])


def stage_sums(values: FloatArray, cuts: IntArray) -> FloatArray:
    """Sums a value per layer over the layers of each stage (s,)."""
    return np.array([values[first:end].sum() for first, end in pairwise(cuts.tolist())])


def fits(profile: ModelProfile, kind: TypeProfile, degree: int, micro_batch: int, cuts: IntArray) -> BoolArray:
    """Returns whether each stage fits into an accelerator's memory (s,): earlier stages have more micro-batches in
    flight.
    """
    sizes, stages = profile.sizes[degree], len(cuts) - 1
    in_flight = micro_batch * (stages - np.arange(stages))
    held = PARAMETER_COPIES * stage_sums(sizes.parameters, cuts) + in_flight * stage_sums(sizes.activations, cuts)
    return held + (_FRAMEWORK_BYTES if degree == 1 else _FRAMEWORK_BYTES_IN_PARALLEL) <= kind.memory_bytes


def exchange_s(link: Link, stage_bytes: float, replicas: FloatArray) -> FloatArray:
    """Seconds of the ring all-reduce of one stage's gradients, bucket by bucket; 0 for a single replica (any shape)."""
    whole, rest = divmod(stage_bytes, _BUCKET_BYTES)
    total = np.zeros_like(replicas)
    for times, size in ((whole, float(_BUCKET_BYTES)), (1.0, rest)):
        if times and size:
            part = np.floor(size / replicas)
            total += times * 2.0 * (replicas - 1.0) * link.seconds(part)
    return total


def read_profile(given: Mapping[str, Any], names: Sequence[str]) -> ModelProfile:
    """Returns what Sailor's profiler recorded of a model on these types of accelerator (its JSON, read)."""
    types = []
    for name in names:
        passes, updates = {}, {}
        for samples, by_degree in given["profiles"][name].items():
            for degree, rows in by_degree.items():
                forward, backward, update = np.array(rows).T
                passes[int(samples), int(degree)] = forward + backward
                updates[int(samples), int(degree)] = float(update.sum())
        types.append(TypeProfile(name, given["gpu_memory_gb"][name] * _GIB, passes, updates))
    fields = ("params_bytes", "act_mem_bytes", "act_output_bytes")
    sizes = {
        int(degree): LayerSizes(*(np.array([row[name] for row in rows]) for name in fields))
        for degree, rows in given["layer_sizes"].items()
    }
    links = {
        (sender, int(has), receiver, int(there)): Link(tuple(link["polynomial"]), link["max_bytes_per_s"])
        for sender, by_count in given["links"].items()
        for has, receivers in by_count.items()
        for receiver, by_there in receivers.items()
        for there, link in by_there.items()
    }
    return ModelProfile(given["model"]["global_batch_size"], sizes, tuple(types), links)
