"""The file of `walras plan mixes`: what is measured of a model's layers on types of accelerator, and of their links.

It is read as profilers write it, so fields that are not named here are passed over.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from walras.spec.field_types import Number, ShownName, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel

_MOST_LAYERS = 1000
_MOST_TYPES = 50
_MOST_DEGREES = 16
_Seconds = Annotated[Number, Field(ge=0, le=1e6)]
_Bytes = Annotated[Number, Field(ge=0, le=1e15)]
_Degree = Annotated[int, Field(ge=1, le=1024)]
_Samples = Annotated[int, Field(ge=1, le=1_000_000)]
#: Forward pass, backward pass and optimizer update of one layer.
_Layer = tuple[_Seconds, _Seconds, _Seconds]
_Layers = Annotated[list[_Layer], Field(min_length=1, max_length=_MOST_LAYERS)]
_ByDegree = Annotated[dict[_Degree, _Layers], Field(max_length=_MOST_DEGREES)]


class _MeasuredModel(FileModel):
    """A part of the file; other fields than these are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class MeasuredModelEntry(_MeasuredModel):
    """What is known of the model as a whole."""

    name: ShownName
    #: Samples of one step over the whole gang.
    global_batch_size: WholeNumber = Field(ge=1, le=10_000_000)


class LayerSizeEntry(_MeasuredModel):
    """Bytes of a layer on one accelerator of its group, for a micro-batch of one sample."""

    params_bytes: _Bytes
    act_mem_bytes: _Bytes
    act_output_bytes: Annotated[Number, Field(gt=0, le=1e15)]


class LinkEntry(_MeasuredModel):
    """GB/s between two machines for a message of x bytes: a polynomial in log2(x / 1e6), highest power first."""

    polynomial: list[Annotated[Number, Field(ge=-1e6, le=1e6)]] = Field(min_length=1, max_length=8)
    max_bytes_per_s: Annotated[Number, Field(gt=0, le=1e15)]


_Receivers = Annotated[dict[ShownName, dict[_Degree, LinkEntry]], Field(max_length=_MOST_TYPES)]


class LayerProfileFile(_MeasuredModel):
    """Measured layers, their sizes and links. Tables by type, micro-batch (samples) and tensor-parallel degree."""

    model: MeasuredModelEntry
    gpu_memory_gb: dict[ShownName, Annotated[Number, Field(gt=0, le=1e5)]] = Field(max_length=_MOST_TYPES)
    usd_per_gpu_hour: Annotated[
        dict[ShownName, Annotated[Number, Field(ge=0, le=1e6)]], Field(max_length=_MOST_TYPES)
    ] = Field(default_factory=dict)
    profiles: dict[ShownName, Annotated[dict[_Samples, _ByDegree], Field(max_length=64)]] = Field(
        min_length=1, max_length=_MOST_TYPES
    )
    layer_sizes: dict[_Degree, list[LayerSizeEntry]] = Field(min_length=1, max_length=_MOST_DEGREES)
    #: By sender, its accelerators per machine, receiver, and accelerators per machine there.
    links: dict[ShownName, Annotated[dict[_Degree, _Receivers], Field(max_length=_MOST_DEGREES)]] = Field(
        max_length=_MOST_TYPES
    )

    @model_validator(mode="after")
    def _same_layers_everywhere(self) -> "LayerProfileFile":
        if 1 not in self.layer_sizes:
            raise FieldMistake("layer_sizes", "has no degree 1; add the sizes of whole layers")
        layers = len(self.layer_sizes[1])
        for degree, sizes in self.layer_sizes.items():
            if len(sizes) != layers:
                raise FieldMistake(f"layer_sizes.{degree}", f"has {len(sizes)} layers of {layers}; give all")
        for name, by_samples in self.profiles.items():
            for samples, by_degree in by_samples.items():
                for degree, rows in by_degree.items():
                    if len(rows) != layers:
                        place = f"profiles.{name}.{samples}.{degree}"
                        raise FieldMistake(place, f"has {len(rows)} layers of {layers}; give all")
        return self
