"""The files that come with Walras: where they lie, and how a command line names them (`example:cnn`).

They lie beside the package `walras`, in a checkout and in an installation alike; nobody looks them up as a package
`configs`, because users have folders of that name. `example:cnn` is the file `cnn` of the folder that the command
reads (jobs, for `walras submit`); `example:jobs/cnn` names the folder too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import walras
from walras.errors import ConfigError, UserError
from walras.spec.file_model import load_mapping, nearest_word

SHIPPED_CONFIGS = Path(walras.__file__).resolve().parents[1] / "configs"
EXAMPLE_PREFIX = "example:"
#: Folders whose files a name may mean, with the endings of the files that commands read.
_ENDINGS = {
    "clusters": (".yaml",),
    "conditions": (".yaml",),
    "jobs": (".yaml", ".sh"),
    "markets": (".csv", ".yaml"),
    "policies": (".yaml",),
    "problems": (".json",),
    "profiles": (".yaml",),
    "workloads": (".yaml", ".csv", ".jsonl"),
}


def shipped_files(folder: str, *endings: str) -> dict[str, Path]:
    """Returns the files of a shipped folder by their names without the ending; the first ending wins."""
    endings = endings or _ENDINGS[folder]
    found: dict[str, Path] = {}
    for ending in endings:
        for path in sorted((SHIPPED_CONFIGS / folder).iterdir()):
            if path.suffix == ending:
                found.setdefault(path.stem, path)
    return found


def with_shipped_rules(policy_file: Any) -> Any:
    """Returns the content of a policy file; of one that only names a policy, the shipped file of that name."""
    policy = policy_file.get("policy") if isinstance(policy_file, Mapping) else None
    name = policy.get("name") if isinstance(policy, Mapping) else policy
    files = shipped_files("policies")
    if not isinstance(name, str) or "rules" in policy_file or name not in files:
        return policy_file
    shipped = load_mapping(files[name])
    if shipped["policy"]["name"] != name:
        return policy_file
    parameters = policy.get("parameters") if isinstance(policy, Mapping) else None
    return {**shipped, "policy": policy} if parameters else shipped


def is_example(word: str) -> bool:
    """Returns whether a word of a command line names a shipped file."""
    return word.startswith(EXAMPLE_PREFIX)


def find_example(word: str, folder: str) -> Path:
    """Returns the shipped file that `example:NAME` or `example:FOLDER/NAME` means to a command that reads `folder`.

    Raises UserError naming the nearest, or all, for a name that nothing has.
    """
    name = word.removeprefix(EXAMPLE_PREFIX)
    stated, slash, rest = name.partition("/")
    if slash:
        folder, name = stated, rest
    if folder not in _ENDINGS:
        raise UserError(
            f"no folder {folder[:40]!r} comes with Walras", field=EXAMPLE_PREFIX, fix=f"one of {', '.join(_ENDINGS)}"
        )
    known = shipped_files(folder)
    if name in known:
        return known[name]
    whole = SHIPPED_CONFIGS / folder / name
    if whole.name == name and whole.suffix in _ENDINGS[folder] and whole.is_file():
        return whole
    meant = nearest_word(name, known)
    raise UserError(
        f"none of the {folder} that come with Walras is called {name[:40]!r}",
        field=EXAMPLE_PREFIX,
        fix=f"did you mean {EXAMPLE_PREFIX}{meant}?" if meant else f"one of {', '.join(known)}",
    )


def folder_of_relative_paths(file: str | Path) -> Path:
    """Returns where a job file's relative `workdir` begins: the current folder.

    For a file that comes with Walras it is the folder that holds `configs`, so that it runs from everywhere.
    """
    is_shipped = SHIPPED_CONFIGS in Path(file).resolve().parents
    return SHIPPED_CONFIGS.parent if is_shipped else Path.cwd()


def copy_examples(to: Path) -> list[Path]:
    """Copies the shipped files into `to`/configs; returns those that were not there yet, in order.

    A file that is there with the same bytes stays. Raises ConfigError, before anything is written, for one that
    differs.
    """
    wanted = {
        to / "configs" / path.relative_to(SHIPPED_CONFIGS): path
        for path in sorted(SHIPPED_CONFIGS.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    new = []
    for target, source in wanted.items():
        if not target.exists() and not target.is_symlink():
            new.append(target)
        elif not target.is_file() or target.read_bytes() != source.read_bytes():
            raise ConfigError(
                f"{target} is there already, and differs", field="DIR", fix="move it away, or name another folder"
            )
    for target in new:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(wanted[target].read_bytes())
    return new
