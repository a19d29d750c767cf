"""Calendar instants at the edges: `deadline` and `not_before` of a job file, `*_at` texts of the API.

Inside Walras an instant is seconds since the cluster's epoch. Only here does text such as `2026-11-05T18:00:00Z` or
`+12h` turn into seconds (since 1970), and back.
"""

import re

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from walras.units import parse_length

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EXAMPLES = "'2026-11-05T18:00:00Z', '2026-11-05T18:00:00+01:00', '+12h'"
# pydantic's own parser: modules that share this file with the pure core must not reach for the clock's library.
_instant: TypeAdapter[AwareDatetime] = TypeAdapter(AwareDatetime)


def parse_instant(text: str, *, now: float) -> float:
    """Seconds since 1970 of an RFC 3339 instant, or of a length after `now` written `+12h`.

    Raises ValueError with examples: no time zone, an impossible date, anything else.
    """
    stripped = text.strip()
    if stripped.startswith("+"):
        return now + parse_length(stripped[1:])
    if len(stripped) <= 40 and _RFC_3339.fullmatch(stripped):
        try:
            return _instant.validate_python(stripped.replace(" ", "T")).timestamp()
        except (ValidationError, OverflowError):
            pass
    raise ValueError(f"{text[:40]!r} is not an instant; write {_EXAMPLES}")
