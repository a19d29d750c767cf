"""Finds jobs that start a launcher of ranks of their own (torchrun, accelerate, deepspeed) wrongly.

A launcher that is started once for each accelerator makes as many complete trainings on the same devices. All of them
may succeed, so nothing but a warning at submission would tell.
"""

import re
from pathlib import PurePosixPath

from walras.spec.job_spec import JobSpec

#: Programs that start ranks themselves, and those that do so with a certain first argument.
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "horovodrun", "mpirun", "mpiexec", "bagua-launch"})
_LAUNCHING_COMMANDS = {"accelerate": "launch", "colossalai": "run", "lightning": "run"}
_LAUNCHING_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
#: What separates the commands of a line. Quotes do as well, since `bash -c 'torchrun ...'` starts it.
_BETWEEN_COMMANDS = re.compile(r"[;&|()`'\"]+")
#: Commands whose arguments may name a launcher without starting it.
_SPEAKING = frozenset({"echo", "printf", "which", "command", "type", "grep", "cat", "export", "cd", "ls"})


def launcher_in(run: str | tuple[str, ...]) -> str | None:
    """Returns the launcher that a command starts, as it is written there; None if none is known in it."""
    text = run if isinstance(run, str) else " ".join(run)
    for line in text.replace("\\\n", " ").splitlines():
        for command in _BETWEEN_COMMANDS.split(re.sub(r"(^|\s)#.*", "", line)):
            words = command.split()
            if words and words[0] not in _SPEAKING and "install" not in words and (found := _launcher_among(words)):
                return found
    return None


def _launcher_among(words: list[str]) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        program = PurePosixPath(word).name
        if program in _LAUNCHERS:
            return program
        if _LAUNCHING_COMMANDS.get(program) == following:
            return f"{program} {following}"
        if word == "-m" and following in _LAUNCHING_MODULES:
            return following
    return None


def _largest_gang(spec: JobSpec) -> int:
    """Returns the accelerators that the job takes at most, but for what an elastic one grows to."""
    planned = (sum(use.count for use in plan.uses) for plan in spec.plans)
    return max(*(demand.count for demand in spec.resources.accelerators), *planned, 1)


def is_launcher(spec: JobSpec) -> bool:
    """Returns whether the command is started once on each machine although the gang may have more devices there."""
    has_many = _largest_gang(spec) > spec.num_nodes
    return spec.nproc_per_node == 1 and (has_many or spec.elastic is not None)


def launcher_note(spec: JobSpec) -> str:
    """Returns what the submitter of a launcher should know, as the rest of a sentence; empty if nothing is wrong."""
    if is_launcher(spec) and isinstance(spec.run, tuple) and PurePosixPath(spec.run[0]).name == "deepspeed":
        return (
            "starts deepspeed without a shell, which alone tells it its devices, machines and port: "
            "write `run` as one line, `deepspeed train.py`"
        )
    launcher = None if is_launcher(spec) else launcher_in(spec.run)
    most = _largest_gang(spec)
    if spec.elastic is not None:
        most = max(most, spec.elastic.max)
    if launcher is None or most <= spec.num_nodes:
        return ""
    return (
        f"starts {launcher} once for each of its {most} accelerators, and each time it trains on all of them: "
        f"write `nproc_per_node: 1`, and {launcher} is started once on each machine"
    )
