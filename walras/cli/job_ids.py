"""Job numbers on the command line: `12`, `12-20`, `12,14`, `last`, several of them."""

import re
from collections.abc import Callable, Iterable

from walras.errors import UserError

_MOST_JOBS = 10_000
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def parse_job_ids(words: Iterable[str], last: Callable[[], int]) -> list[int]:
    """The numbers in the order given, each once. `last` is asked only if the word is there. Raises UserError."""
    found: dict[int, None] = {}
    for word in (part for given in words for part in given.split(",")):
        if word == "last":
            found[last()] = None
            continue
        match = _RANGE.fullmatch(word)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high < 2**63:
            raise UserError(
                f"{word[:40]!r} is no job", field="JOB", fix="write a number, a range such as 12-20, or last"
            )
        if high - low >= _MOST_JOBS or len(found) + high - low >= _MOST_JOBS:
            raise UserError(f"{word} is more than {_MOST_JOBS:,} jobs", field="JOB", fix="give a smaller range")
        found.update(dict.fromkeys(range(low, high + 1)))
    return list(found)


def one_job_id(word: str, last: Callable[[], int]) -> int:
    """A single job. Raises UserError for several."""
    found = parse_job_ids([word], last)
    if len(found) != 1:
        raise UserError(f"{word!r} is several jobs, and one is expected", field="JOB", fix="give one number")
    return found[0]
