"""How long machines of a pool live before the market takes them back, as people state it.

A law is a name and its numbers, in one line: `exponential 8h`, `uniform 24h`, `weibull 0.6,6h` (shape, scale) or
`bathtub 0.4137,54m,45m36s,24h` (fraction of early deaths, then the times early, late and cap). The same line stands in
cluster files, in files of conditions and in `walras cloud spot`; what follows from a law is computed in
`optimizer.renting.lifetime_laws`.
"""

from dataclasses import dataclass

from walras.contract import SECONDS_PER_HOUR
from walras.units import parse_length

#: For each law by name: how many plain numbers it has, and how many lengths after them.
_PARAMETERS = {"exponential": (0, 1), "uniform": (0, 1), "weibull": (1, 1), "bathtub": (1, 3)}
_EXAMPLES = "'exponential 8h', 'uniform 24h', 'weibull 0.6,6h', 'bathtub 0.4137,54m,45m36s,24h'"
#: The longest text that is parsed, and the largest shape of a Weibull law.
_LONGEST_TEXT, _STEEPEST = 100, 50.0


@dataclass(frozen=True, slots=True)
class StatedLifetime:
    """A law of lifetimes, as it was stated."""

    #: `exponential`, `uniform`, `weibull` or `bathtub`.
    law: str
    #: The parameters in the order of writing, with times in hours: the mean; the cap; shape and scale; or fraction of
    #: early deaths, early, late and cap.
    numbers: tuple[float, ...]


def parse_lifetime(text: str) -> StatedLifetime:
    """Returns the law. Raises ValueError, with examples, for a text that names none or has impossible numbers."""
    shown = repr(text[:60])
    name, _, rest = text.strip().partition(" ")
    if len(text) > _LONGEST_TEXT or name not in _PARAMETERS:
        raise ValueError(f"{shown} names no law of lifetimes; write {_EXAMPLES}")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    plain, lengths = _PARAMETERS[name]
    if len(parts) != plain + lengths:
        raise ValueError(f"{shown}: {name} takes {plain + lengths} values, not {len(parts)}; write {_EXAMPLES}")
    try:
        numbers = [float(part) for part in parts[:plain]]
        times_h = [parse_length(part) / SECONDS_PER_HOUR for part in parts[plain:]]
    except ValueError:
        raise ValueError(f"{shown}: its values are numbers and lengths of time; write {_EXAMPLES}") from None
    if min(times_h) <= 0:
        raise ValueError(f"{shown}: its times are above 0; write {_EXAMPLES}")
    if any(not 0 < number <= _STEEPEST for number in numbers):
        raise ValueError(f"{shown}: its number is above 0 and at most {_STEEPEST:g}; write {_EXAMPLES}")
    if name == "bathtub" and numbers[0] >= 1:
        raise ValueError(f"{shown}: the fraction of early deaths is below 1; write {_EXAMPLES}")
    return StatedLifetime(name, (*numbers, *times_h))


def checked_lifetime(text: str) -> str:
    """Returns the text of a law without spaces around it; an empty one states none. Raises ValueError."""
    if text.strip():
        parse_lifetime(text)
    return text.strip()
