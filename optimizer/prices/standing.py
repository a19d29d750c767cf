"""Where a solve ended: enough to start the next from, or to correct it when one class changes. Decides nothing."""

from dataclasses import dataclass

from optimizer.prices.newton import Point
from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """What all classes together did at some prices. A change of one class changes it by that class's own response."""

    prices: FloatArray
    #: Level asked for; means nothing unless the objective is a Level.
    z: float
    #: Prices whose mean cost over a class's columns is its softness (r,).
    softness: FloatArray
    #: Of all members (r,).
    demand: FloatArray
    #: What they earned: values, or weighted logarithms.
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The point whose softened responses are the shares, and the responses that led there, the last one last."""

    at: Point
    responses: tuple[Response, ...]
