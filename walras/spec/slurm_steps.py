"""What the commands of a Slurm script ask of Slurm, found by reading its text before it runs.

A script that submits, cancels or starts on all machines by itself would do something else here, so it is refused by
line. The reading is a shell's in outline: comments, quotes, here-documents, and words where a command may stand. What
only shows when the script runs (`srun $OPTIONS`) is judged then, by `slurm_job.sh`.
"""

import re
import shlex
from collections.abc import Iterator

from walras.spec.shell_scripts import ForeignReading
from walras.spec.slurm_options import Answer, leading_options

#: Words after which a command may begin.
_BEFORE = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "exec", "command", "eval"})
#: Commands that run the command behind their own options.
_AROUND = frozenset({"env", "nice", "nohup", "timeout", "stdbuf", "numactl", "taskset", "ionice", "setsid", "xargs"})
_SEPARATORS = frozenset({";", ";;", "&", "&&", "|", "||", "|&", "(", ")", "\n", "`", "$("})
_REFUSED = {
    "sbatch": "a job cannot submit another one here; --dependency=afterok:JOB of a second submission orders them",
    "salloc": "a job cannot ask for more machines here",
    "scancel": "a job cannot cancel one here; end with an exit code",
    "sattach": "no job is attached to another one here",
    "sbcast": "files travel with the working folder (`workdir`), data with `inputs`",
    "strigger": "no triggers are set here",
}
_NOTED = {
    "squeue": "there is no such command on the machines; `walras queue` asks where you are",
    "sacct": "there is no such command on the machines; `walras show` asks where you are",
    "sstat": "there is no such command on the machines",
    "sinfo": "there is no such command on the machines; `walras nodes` asks where you are",
}
_ON_ALL_MACHINES = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "pdsh", "clush", "horovodrun"})


def judge_commands(text: str, nodes: int, reading: ForeignReading) -> None:
    """Tells `reading` of the commands of a script that ask for what is not here. `nodes`: machines of the job."""
    for number, words in commands_of(text):
        name, place = words[0].rpartition("/")[2], f"line {number}"
        if name in _REFUSED:
            reading.refused.append(f"{place}: {name}: {_REFUSED[name]}")
        elif name in _NOTED:
            reading.notes.append(f"{place}: {name}: {_NOTED[name]}")
        elif name in _ON_ALL_MACHINES and nodes > 1:
            reading.refused.append(
                f"{place}: {name}: it would start on each of the {nodes} machines by itself; use srun, or torchrun"
            )
        elif name == "scontrol" and words[1:2] and words[1] not in ("show", "requeue") and words[1][0] not in "-$":
            reading.refused.append(f"{place}: scontrol {words[1][:40]}: only `show` and `requeue` are here")
        elif name == "srun":
            _judge_step(words[1:], place, reading)


def _judge_step(words: list[str], place: str, reading: ForeignReading) -> None:
    """Refuses what a step cannot have. What stands in variables is judged when the script runs."""
    variable = next((number for number, word in enumerate(words) if re.match(r"[$\"']*\$", word)), len(words))
    found = ForeignReading()
    options, rest = leading_options("srun", [(place, word) for word in words[:variable]], found)
    # An option whose value is the variable lacks it here.
    refused = [each for each in found.refused if rest or variable == len(words) or "has no value" not in each]
    reading.refused += [each.replace(": ", ": srun ", 1) for each in refused]
    for option in options:
        if option.option.answer is Answer.REFUSED:
            reading.refused.append(f"{place}: srun --{option.option.name}: {option.option.why}")
    if ":" in words:
        reading.refused.append(f"{place}: srun ... : a step of several parts")


def commands_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its line, words) of each simple command that stands in a script as it is written."""
    for number, line in _logical_lines(text):
        words: list[str] = []
        for token in _tokens(line):
            if token in _SEPARATORS or set(token) <= set(";&|()\n"):
                yield from _command(number, words)
                words = []
            else:
                words.append(token)
        yield from _command(number, words)


def _command(number: int, words: list[str]) -> Iterator[tuple[int, list[str]]]:
    rest = list(words)
    while rest:
        if rest[0] in _BEFORE or re.match(r"[A-Za-z_]\w*=", rest[0], re.ASCII):
            rest.pop(0)
            if rest and rest[0] == "-p":  # time -p
                rest.pop(0)
        elif rest[0].rpartition("/")[2] in _AROUND:
            rest.pop(0)
            while rest and (rest[0].startswith("-") or re.match(r"[A-Za-z_]\w*=|[0-9.]+[smhd]?$", rest[0])):
                rest.pop(0)
        else:
            yield number, rest
            return


def _tokens(line: str) -> list[str]:
    opened = line.replace("$(", " ( ").replace("`", " ; ")
    lexer = shlex.shlex(opened, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:  # a quotation mark that another line closes
        return re.findall(r"[;&|()]+|[^\s;&|()]+", opened)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines with their continuations, without here-documents and without lines that are in quotes only."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        number, line = at + 1, lines[at]
        while line.endswith("\\") and at + 1 < len(lines):
            at += 1
            line = line[:-1] + " " + lines[at]
        at += 1
        if line.lstrip().startswith("#"):
            continue
        yield number, line
        for end in re.findall(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?", line):
            while at < len(lines) and lines[at].strip() != end:
                at += 1
            at += 1
