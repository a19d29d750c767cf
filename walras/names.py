"""Names that come from outside: what they may look like, and the canonical names of accelerators.

A name ends up in terminals, pages, file names and logs. Control and formatting characters (escape sequences, text that
runs backwards) are therefore refused where a name enters, not escaped in every place that shows one.
"""

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from walras.request import ANY_ACCELERATOR

_ACCELERATOR = re.compile(r"[a-z0-9][a-z0-9.-]{0,49}", re.ASCII)
#: Words that say who made it or how it is plugged in, not what it is.
_NOISE = re.compile(r"(?:nvidia|amd|tesla|geforce|instinct|sxm\d*|pcie|nvl|hbm\w*|oam|mxm|accelerator)", re.ASCII)


def shown_name(text: str) -> str:
    """The text itself; ValueError if a terminal or a page would not show it as it is."""
    if text != text.strip():
        raise ValueError("begins or ends with white space; remove it")
    for position, character in enumerate(text):
        if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp"):
            raise ValueError(
                f"has the character {character!a} at position {position}; "
                "control and formatting characters are not allowed"
            )
    return text


#: A name of a person, project, job, profile: one line of visible characters.
ShownName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(shown_name)]


def canonical_accelerator(text: object) -> str:
    """`A100-SXM4-40GB`, `NVIDIA A100 40GB` and `a100_40gb` are all `a100-40gb`. ValueError for what is no name."""
    if not isinstance(text, str) or len(text) > 100:
        raise ValueError("an accelerator type is a name such as 'a100', 'v100', 'a100-40gb'")
    words = re.split(r"[\s_-]+", text.strip().lower())
    name = "-".join(word for word in words if word and not _NOISE.fullmatch(word))
    if name in ("any", ANY_ACCELERATOR) or not _ACCELERATOR.fullmatch(name):
        raise ValueError(f"{text!r} is not an accelerator type; write a name such as 'a100', 'v100', 'a100-40gb'")
    return name


#: The canonical name of one accelerator type.
AcceleratorName = Annotated[str, BeforeValidator(canonical_accelerator)]
