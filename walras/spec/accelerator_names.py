"""The vocabulary of accelerator types: one canonical name for each product, whoever writes it.

Drivers, Slurm's gres, clouds, job files and catalogs spell one product in many ways: `NVIDIA GeForce RTX 3090`,
`rtx_3090`, `3090` and `RTX3090` are `rtx-3090`. A name has the memory where the product is sold with several sizes:
`a100-80gb`. Without it the name means the *family*, all sizes of the product: a job that asks for `a100` may run on
`a100-40gb` and on `a100-80gb`. A slice of a partitioned GPU is of another family than the GPU: `a100-40gb-1g.5gb`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,49}", re.ASCII)
#: Words for the vendor or the form factor, which do not make another type; and those of a graphics card's edition.
_NOISE = re.compile(
    r"nvidia|amd|tesla|geforce|instinct|radeon|sxm\d*|pcie|nvl|hbm\w*|oam|mxm|mig|dgxs|fhhl|ls|accelerator|mega|ac|mba"
    r"|mcm|active|h",
    re.ASCII,
)
#: The form factor, joined to the product: `h100sxm5`, `a100pcie`.
_JOINED = re.compile(r"(?<=^[ahv]\d00)(sxm\d*|pcie|nvl)(?=-|$)", re.ASCII)
#: The number of a board behind its product: `A100-PG509-200`. Drivers name some products by it alone.
_BOARD = re.compile(r"(?<=\d)[\s_-]pg\d{3}[_-]\d{3}(?![^\s_-])", re.ASCII)
_CARD_NOISE = frozenset(["generation", "gpu", "blackwell", "server", "workstation", "edition", "with", "design"])
#: A product with several sizes of memory in GB; what is detected is named with the nearest.
_SIZES = {"a100": (40, 64, 80), "a800": (40, 80), "v100": (16, 32), "h100": (64, 80, 94, 96), "p100": (12, 16)}
#: The size that a name need not tell: the only one of the product, or by far the commonest.
_USUAL_GB = {
    "k80": 12, "m60": 8, "p4": 8, "p40": 24, "p100": 16, "t4": 16, "v100s": 32, "a2": 16, "a10": 24, "a10g": 24,
    "a16": 16, "a30": 24, "a40": 48, "l4": 24, "l20": 48, "l40": 48, "l40s": 48, "h20": 96, "h200": 141, "h800": 80,
    "b200": 180, "b300": 288, "mi50": 32, "mi100": 32, "mi210": 64, "mi250": 128, "mi250x": 128, "mi300x": 192,
    "mi325x": 256, "titan-v": 12, "titan-rtx": 24, "gtx-1080-ti": 11, "rtx-2080-ti": 11, "rtx-3080-ti": 12,
    "rtx-3090": 24, "rtx-3090-ti": 24, "rtx-4080": 16, "rtx-4090": 24, "rtx-5080": 16, "rtx-5090": 32, "rtx-6000": 24,
    "rtx-8000": 48, "rtx-6000-ada": 48, "rtx-pro-6000": 96, "rtx-a4000": 16, "rtx-a5000": 24, "rtx-a6000": 48,
}  # fmt: skip
#: A graphics card: an optional series, the number, and what follows it.
_CARD = re.compile(r"(?:quadro-?)?(?:(rtx|gtx)-?)?(pro-?)?(a?\d{3,4})(?![\dg.])-?(.*)", re.ASCII)
#: Numbers by which people name a card without its series.
_RTX_ALONE = re.compile(r"[2-5]0[5-9]0|a[1-6][05]00", re.ASCII)
_GTX_ALONE = re.compile(r"(?:9|10|16)[5-9]0", re.ASCII)
_CARD_SUFFIX = re.compile(r"(?:ti|super|ada|sff|laptop|mobile|max-q|d|\d{1,3}gb)(?=-|ti|super|ada|laptop|mobile|$)-?")
_MEMORY = re.compile(r"-\d{1,4}gb(?=-|$)", re.ASCII)


def canonical_accelerator(text: object) -> str:
    """Returns the canonical name: `A100-SXM4-40GB`, `NVIDIA A100 40GB` and `a100_40gb` are `a100-40gb`.

    A canonical name is its own canonical name. Raises ValueError for what cannot be a type.
    """
    if not isinstance(text, str) or len(text) > 100:
        raise ValueError("an accelerator type is a name such as 'a100', 'v100', 'a100-40gb'")
    name = _canonical(text)
    if name == "any" or not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not an accelerator type; write a name such as 'a100', 'v100', 'a100-40gb'")
    return name


def detected_accelerator(product: str, memory_bytes: int) -> str:
    """Returns the canonical name of a product that a driver reports; it has the memory if there are several sizes.

    A name that a driver reports and that cannot be a type becomes `gpu`.
    """
    name = _canonical(product[:100])
    if sizes := _SIZES.get(name):
        gigabytes = memory_bytes / 2**30
        name = _without_usual_size(f"{name}-{min(sizes, key=lambda size: abs(size - gigabytes))}gb")
    name = re.sub(r"[^a-z0-9.-]+", "-", name).strip("-.")[:50]
    return name if name and name != "any" else "gpu"


def family_of(accelerator: str) -> str:
    """Returns the name without the memory: `a100-80gb` is of the family `a100`, as is `a100` itself."""
    return _MEMORY.sub("", accelerator)


def sheet_names(accelerator: str) -> tuple[str, ...]:
    """Returns the names under which the data sheet of a type may stand: its own, else its family's."""
    return tuple(dict.fromkeys((accelerator, family_of(accelerator))))


@lru_cache(maxsize=4096)
def covers(wanted: str, accelerator: str) -> bool:
    """Returns whether a name that somebody asks for means this type: its own name, or the family's."""
    wanted, accelerator = _canonical(wanted), _canonical(accelerator)
    return wanted in (accelerator, family_of(accelerator))


def named_type(names: Iterable[str], accelerator: str) -> str | None:
    """Returns the one of these names that means the type, its own before its family's; None if none does."""
    found = [name for name in names if covers(name, accelerator)]
    return max(found, key=len, default=None)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    lower = re.sub(r"(?<=\d) (?=gb\b)", "", text.strip().lower())
    lower = re.sub(r"(nvidia|geforce|tesla)(?=[a-z])", r"\1 ", lower)
    words = [word for word in re.split(r"[\s_()-]+", _BOARD.sub("", lower)) if word]
    words = [part for word in words for part in _JOINED.sub(r"-\1", word).split("-")]
    words = [f"{word}b" if re.fullmatch(r"\d{2,3}g", word, re.ASCII) else word for word in words]
    if "h100" in words and "nvl" in words and not any(word.endswith("gb") for word in words):
        words.append("94gb")
    name = re.sub(r"^quadro-(?=[a-z]+\d)", "", "-".join(word for word in words if not _NOISE.fullmatch(word)))
    if name.startswith("gh200-"):
        return "gh200"  # the size that its name tells is that of the processor's memory
    name = _card_name(name) or re.sub(r"^(?:gtx-?)?titan-?(?=v|xp?$|rtx)", "titan-", name)
    size = re.fullmatch(r"(\w+)-(\d{2})(-.*)?", name, re.ASCII)
    if size is not None and int(size[2]) in _SIZES.get(size[1], ()):
        name = f"{size[1]}-{size[2]}gb{size[3] or ''}"  # Slurm sites write `a100_80`
    return _without_usual_size(name)


def _card_name(name: str) -> str:
    """Returns the canonical name of a GeForce, Quadro or RTX card (`rtx-4070-ti-super`); empty if it is none."""
    card = _CARD.fullmatch(re.sub(r"^(rtx-?)?ada-?(\d{4})(?!\d)", r"\1\2-ada", name))
    if card is None:
        return ""
    series, professional, number = card[1], card[2], card[3]
    rest = "-".join(word for word in card[4].split("-") if word not in _CARD_NOISE)
    if not series:
        is_rtx = professional or re.search(r"\bada\b", rest) or _RTX_ALONE.fullmatch(number)
        series = "rtx" if is_rtx else "gtx" if _GTX_ALONE.fullmatch(number) else ""
    if not series:
        return ""
    words = [series, *(["pro"] if professional else []), number]
    while rest and (suffix := _CARD_SUFFIX.match(rest)):
        word = suffix[0].rstrip("-")
        words.append("laptop" if word == "mobile" else word)
        rest = rest[suffix.end() :]
    return "-".join([*words, *([rest] if rest else [])])


def _without_usual_size(name: str) -> str:
    usual = _USUAL_GB.get(family_of(name))
    return family_of(name) if usual is not None and name.endswith(f"-{usual}gb") else name
