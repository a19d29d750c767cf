"""The speed table of emulated accelerators: a YAML file, `kind: {accelerator: steps_per_s}`."""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from walras.errors import ConfigError

Pace = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Speeds = dict[str, dict[str, Pace]]

_SPEEDS = TypeAdapter(Speeds)


def load_speeds(path: Path) -> Speeds:
    try:
        return _SPEEDS.validate_python(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {error}", fix="give a YAML file of the form kind: {accelerator: steps_per_s}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}", field=where) from None


def pace_of(speeds: Speeds, kind: str, accelerator: str) -> float | None:
    """Steps/s of a gang of this kind; None lets it run as fast as it can."""
    return speeds.get(kind, {}).get(accelerator)
