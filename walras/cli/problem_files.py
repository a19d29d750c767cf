"""Reading the files of `walras solve` and `walras check`: problems, answers, memories; and naming a policy."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from walras.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optimizer.policy import PolicySpec
    from walras.checking import FileModel

ModelT = TypeVar("ModelT", bound="FileModel")

_YAML_ENDINGS = (".yaml", ".yml")
#: Names of policies are short words; anything else is a file.
_LOOKS_LIKE_A_FILE = ("/", ".yaml", ".yml", ".json")


def read_document(path: Path, model: type[ModelT]) -> ModelT:
    """The checked document in a JSON file (or YAML, by its ending). Raises ConfigError naming field and fix."""
    from walras.checking import check

    return check(model, _data(path), source=str(path))


def read_memory(path: Path) -> Any:
    """What a policy left the last time: plain JSON, or the `memory` of an answer."""
    data = _data(path)
    return data["memory"] if isinstance(data, dict) and {"policy", "memory"} <= data.keys() else data


def policy_named(text: str, settings: "Sequence[str]") -> "PolicySpec":
    """The spec of a policy given by name or policy file, parameters replaced by `name=value` settings.

    Raises ConfigError or UnknownPolicyError.
    """
    from optimizer.policy import PolicySpec

    spec = PolicySpec(text)
    if any(part in text for part in _LOOKS_LIKE_A_FILE):
        from scheduler.core.policy_file import parse_policy
        from walras.config import load_mapping

        spec, _ = parse_policy(load_mapping(text))
    if settings:
        from walras.overrides import with_settings

        spec = PolicySpec(spec.name, with_settings(spec.parameters, settings, source="--parameter"))
    return spec


def _data(path: Path) -> Any:
    from walras.config import MAX_FILE_BYTES, load_mapping

    if path.suffix in _YAML_ENDINGS:
        return load_mapping(path)
    from walras.json_text import parse_json

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path and its permissions") from None
    return parse_json(content, source=str(path), max_bytes=MAX_FILE_BYTES)
