"""What accelerators are and what clouds sell: facts with a date and a source, from our files and from users' own.

A later file adds rows and overrides fields of rows with the same key (`name` of an accelerator; `cloud`, `region` and
`instance` of a machine). A row that does not check is reported and left out: one bad row never takes the others with
it. Prices here are typical ones to plan with; what was paid is recorded where it is spent.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from walras.errors import ConfigError
from walras.spec.accelerator_names import canonical_accelerator, covers, family_of, sheet_names
from walras.spec.field_types import (
    AcceleratorName,
    Memory,
    Number,
    PoolWord,
    ShownName,
    WholeNumber,
)
from walras.spec.file_model import FileModel, check_model, load_mapping
from walras.spec.shipped_files import SHIPPED_CONFIGS

SHIPPED_CATALOG = SHIPPED_CONFIGS / "catalog"
_ENDINGS = (".yaml", ".yml")
_LISTS = {"accelerators": ("name",), "instances": ("cloud", "region", "instance")}
_LARGEST_USD = 1e6

PrecisionName = Annotated[str, Field(pattern=r"^(fp|bf|tf|int)\d{1,2}$")]
#: A rate in operations or bytes per second.
PerSecond = Annotated[Number, Field(gt=0, le=1e21)]
Usd = Annotated[Number, Field(ge=0, le=_LARGEST_USD)]


class CatalogAccelerator(FileModel):
    """What is known of one accelerator type. None: unknown."""

    name: AcceleratorName
    memory: Annotated[Memory, Field(gt=0)]
    #: Dense peak, floating point (or integer) operations per second, by precision.
    peak_flops: dict[PrecisionName, PerSecond] = Field(default_factory=dict)
    memory_bytes_per_s: PerSecond | None = None
    #: The link to the other accelerators of the machine; bytes per second are the sum of both directions.
    link: PoolWord | None = None
    link_bytes_per_s: PerSecond | None = None
    #: Part of its data-sheet speed that typical training reaches, relative to a V100 (published measurements).
    achieves: Annotated[Number, Field(gt=0, le=10)] = 1
    as_of: date
    source: ShownName


class CatalogInstance(FileModel):
    """A machine that a cloud rents out. Prices are of the whole machine."""

    cloud: PoolWord
    region: PoolWord
    instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]
    accelerator: AcceleratorName
    accelerators: WholeNumber = Field(ge=1, le=1024)
    cpus: Annotated[Number, Field(gt=0, le=4096)]
    memory: Annotated[Memory, Field(gt=0)]
    on_demand_usd_per_h: Usd | None = None
    #: A typical price; None: not sold as spot, or unknown.
    spot_usd_per_h: Usd | None = None
    as_of: date
    source: ShownName

    @property
    def usd_per_accelerator_h(self) -> float:
        """The lowest price of an hour of one accelerator; infinite where no price is known."""
        known = [price for price in (self.on_demand_usd_per_h, self.spot_usd_per_h) if price is not None]
        return min(known, default=float("inf")) / self.accelerators


@dataclass(frozen=True, slots=True)
class Catalog:
    """The rows that were read, and the problems of those that were left out."""

    accelerators: Mapping[str, CatalogAccelerator]
    instances: tuple[CatalogInstance, ...]
    #: One line for each row or file that was left out: where it is, and why.
    problems: tuple[str, ...] = ()

    def sheet(self, accelerator: str) -> CatalogAccelerator | None:
        """Returns the data sheet of a type, also under the name by which a driver's report has it; None without one."""
        return next((self.accelerators[name] for name in sheet_names(accelerator) if name in self.accelerators), None)

    def means(self, names: Iterable[str], accelerator: str) -> bool:
        """Returns whether one of the names means this type, which may be listed without its memory."""
        sheet = self.sheet(accelerator)
        size = "" if sheet is None else f"-{round(sheet.memory / 10**9)}gb"
        whole = (accelerator, accelerator + size if family_of(accelerator) == accelerator else accelerator)
        return any(covers(name, each) for name in names for each in whole)

    def offers(self, cloud: str | None = None, accelerator: str | None = None) -> list[CatalogInstance]:
        """Returns the machines of a cloud with an accelerator (None: any), cheapest hour of an accelerator first."""
        found = (
            entry
            for entry in self.instances
            if cloud in (None, entry.cloud) and (accelerator is None or self.means((accelerator,), entry.accelerator))
        )
        return sorted(found, key=lambda entry: (entry.usd_per_accelerator_h, entry.cloud, entry.instance, entry.region))


@dataclass(slots=True)
class _Rows:
    """The rows of files by list and key; a later file overrides fields of an earlier one."""

    accelerators: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    instances: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def take(self, name: str, content: Mapping[str, Any]) -> None:
        """Add the rows of one file; its top-level fields are defaults of its rows."""
        common = {key: value for key, value in content.items() if key not in _LISTS}
        for kind, keys in _LISTS.items():
            listed = content.get(kind) or []
            if not isinstance(listed, list):
                self.problems.append(f"{name}: {kind}: a list is expected")
                continue
            # Fields that a file states for all its machines (cloud, region) do not apply to accelerators.
            dated = {key: value for key, value in common.items() if key in ("as_of", "source")}
            shared = dated if kind == "accelerators" else common
            for position, row in enumerate(listed):
                self._add(kind, keys, shared, row, f"{name}: {kind}[{position}]")

    def _add(self, kind: str, keys: tuple[str, ...], shared: Mapping[str, Any], row: object, place: str) -> None:
        if not isinstance(row, dict):
            self.problems.append(f"{place}: fields are expected")
            return
        whole = {**shared, **row}
        if not all(isinstance(whole.get(key), str) for key in keys):
            self.problems.append(f"{place}: {' and '.join(keys)} must be given, as text")
            return
        key = tuple(_key_word(str(whole[part])) for part in keys)
        rows = self.accelerators if kind == "accelerators" else self.instances
        candidate = {**rows.get(key, {}), **whole}
        try:
            check_model(CatalogAccelerator if kind == "accelerators" else CatalogInstance, candidate, source=place)
        except ConfigError as error:
            # An earlier row with that key, if any, stays.
            self.problems.append(str(error))
        else:
            rows[key] = candidate


def _key_word(text: str) -> str:
    """Returns the canonical spelling of a word of a key: `NVIDIA A100-40GB` overrides `a100-40gb`."""
    try:
        return canonical_accelerator(text)
    except ValueError:
        return text.lower()


def load_catalog(paths: Iterable[Path] = ()) -> Catalog:
    """Our own catalog, then the given files and folders in order, each overriding what came before.

    Raises ConfigError only for a given path that does not exist.
    """
    rows = _Rows()
    for path in (SHIPPED_CATALOG, *paths):
        for file in _files(path):
            try:
                rows.take(str(file.name), load_mapping(file))
            except ConfigError as error:
                rows.problems.append(str(error))
    accelerators = (check_model(CatalogAccelerator, row, source="catalog") for row in rows.accelerators.values())
    return Catalog(
        accelerators={entry.name: entry for entry in accelerators},
        instances=tuple(check_model(CatalogInstance, row, source="catalog") for row in rows.instances.values()),
        problems=tuple(rows.problems),
    )


@cache
def _shipped_sheets() -> Catalog:
    """Returns the accelerators of our own catalog, without machines."""
    facts = load_mapping(SHIPPED_CATALOG / "accelerators.yaml")
    dated = {name: facts[name] for name in ("as_of", "source")}
    rows = [CatalogAccelerator.model_validate(row | dated) for row in facts["accelerators"]]
    return Catalog({row.name: row for row in rows}, ())


def catalog_memory_bytes(accelerator: str) -> int:
    """Returns the memory of one accelerator of a type: as its name says (`a100-40gb`), else our catalog; 0: unknown."""
    if named := re.search(r"[-.](\d{1,4})gb$", accelerator):
        return int(named[1]) * 10**9
    sheet = _shipped_sheets().sheet(accelerator)
    return 0 if sheet is None else sheet.memory


@cache
def catalog_speeds() -> Mapping[str, float]:
    """Relative speeds of accelerator types by our catalog, a V100 being 1: where its facts are known."""
    raw = {
        row.name: row.achieves * sqrt(row.peak_flops["fp32"] * row.memory_bytes_per_s)
        for row in _shipped_sheets().accelerators.values()
        if "fp32" in row.peak_flops and row.memory_bytes_per_s is not None
    }
    return {name: speed / raw["v100"] for name, speed in raw.items()}


def catalog_speed(accelerator: str) -> float | None:
    """Returns the relative speed of a type, also under a driver's name (`sheet_names`); None if it is unknown."""
    speeds = catalog_speeds()
    return next((speeds[name] for name in sheet_names(accelerator) if name in speeds), None)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix in _ENDINGS)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder", fix="name a catalog file, or a folder of them")
    return [path]
