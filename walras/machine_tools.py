"""What machines have beside their accelerators, by name, and what of it a job cannot do without.

Agents say what they found with their first call; one of an older release says nothing, and is taken to have everything.
A job that no machine of any pool it fits could prepare is refused when it is submitted, with what would help.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from walras.job_needs import JobNeeds

#: Programs that run images, in the order in which a machine prefers them.
RUNTIMES = ("apptainer", "podman", "docker")
#: Other programs, and packages of Python, that jobs may need.
PROGRAMS, PACKAGES = ("uv", "git"), ("s3fs", "gcsfs", "adlfs")
#: Names that a machine may say, and the characters of one.
TOOLS_MOST, TOOL_NAME_MOST = 32, 40
_OF_SCHEME = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_FIX = {
    "uv": "pip install 'walras[environments]' on the machines",
    "git": "install git on the machines",
    "s3fs": "pip install 'walras[stores]' on the machines",
    "gcsfs": "pip install gcsfs on the machines",
    "adlfs": "pip install adlfs on the machines",
}


@dataclass(frozen=True)
class ToolNeed:
    """A field of a job for which a machine has to have one of these."""

    field: str
    any_of: tuple[str, ...]

    def is_met(self, tools: Collection[str]) -> bool:
        return not set(self.any_of).isdisjoint(tools)

    @property
    def fix(self) -> str:
        return _FIX.get(self.any_of[0], f"install {' or '.join(self.any_of)} on the machines")


def tools_needed(needs: JobNeeds) -> list[ToolNeed]:
    """What a machine has to have to prepare the job."""
    found = []
    if needs.git is not None:
        found.append(ToolNeed("workdir", ("git",)))
    if needs.python is not None:
        found.append(ToolNeed("python", ("uv",)))
    if needs.image:
        is_file = needs.image.startswith(("/", "./")) or needs.image.endswith(".sif")
        found.append(ToolNeed("image", RUNTIMES[:1] if is_file else RUNTIMES))
    for name, each in needs.inputs.items():
        if package := _OF_SCHEME.get(urlsplit(each.url).scheme if each.url else ""):
            found.append(ToolNeed(f"inputs.{name}", (package,)))
    return found


def unmet_need(needs: JobNeeds, machines: Iterable[Collection[str] | None]) -> ToolNeed | None:
    """A need for which no single machine has all that the job asks for; None where one has, or may have (None), or
    where there are no machines.

    It is one that no machine meets at all, if there is such a one.
    """
    wanted, known = tools_needed(needs), list(machines)
    if not wanted or not known or any(tools is None or all(each.is_met(tools) for each in wanted) for tools in known):
        return None
    nowhere = [each for each in wanted if not any(each.is_met(tools or ()) for tools in known)]
    return (nowhere or wanted)[0]
