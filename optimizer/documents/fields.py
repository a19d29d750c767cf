"""Types of the fields of documents: every number finite and within what arithmetic bears, every list bounded."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from walras.job_parts import Number, WholeNumber
from walras.names import ShownName

MAX_JOBS = 1_000_000
MAX_CONFIGURATIONS = 1024
MAX_POOLS = 10_000
MAX_ENTITIES = 100_000
MAX_PAIRS = 1_000_000
MAX_STAGES = 10_000
_LARGEST = 1e15


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("is text where a number is expected; write it without quotes")
    return value


#: Any finite number that arithmetic bears.
Plain = Annotated[Number, Field(ge=-_LARGEST, le=_LARGEST), BeforeValidator(_no_text)]
#: A number that was computed: finite, of any size.
Result = Annotated[Number, BeforeValidator(_no_text)]
#: The same, not negative.
Amount = Annotated[Number, Field(ge=0, le=_LARGEST), BeforeValidator(_no_text)]
#: Accelerators that one job holds.
Count = Annotated[Number, Field(gt=0, le=1e9), BeforeValidator(_no_text)]
#: Part of a whole.
Part = Annotated[Number, Field(ge=0, le=1), BeforeValidator(_no_text)]
#: A job's number.
JobNumber = Annotated[WholeNumber, Field(ge=0, le=2**53), BeforeValidator(_no_text)]
#: Place in a list of the other document, from 0.
Place = Annotated[WholeNumber, Field(ge=0, le=MAX_CONFIGURATIONS - 1), BeforeValidator(_no_text)]
Name = ShownName
Prose = Annotated[str, Field(max_length=2000)]
