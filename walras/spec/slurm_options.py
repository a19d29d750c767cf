"""The options of `sbatch` and `srun`: their table, and the words of `#SBATCH` lines read as Slurm reads them.

Every option is obeyed, noted or refused. What decides whether, when, how often, on what and after what a job runs is
obeyed or refused; the rest is a note. An option that is in no table is refused, as Slurm refuses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from walras.spec.shell_scripts import ForeignReading


class Answer(StrEnum):
    """What becomes of an option."""

    OBEYED = "obeyed"
    #: It decides nothing that this scheduler decides; the submitter is told why.
    NOTED = "noted"
    REFUSED = "refused"


class Takes(StrEnum):
    """Whether an option has a value."""

    NOTHING = "!"
    VALUE = "="
    #: Only one that is joined to it: `--exclusive=user`, and never the next word.
    JOINED = "?"


@dataclass(frozen=True, slots=True)
class SlurmOption:
    """One option: its long name, the letter that stands for it (or ""), and what becomes of it."""

    name: str
    letter: str
    takes: Takes
    answer: Answer
    #: Why it is noted or refused.
    why: str = ""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option as it was found: where, the row of the table, and its value ("" where it has none)."""

    place: str
    option: SlurmOption
    value: str

    def __str__(self) -> str:
        shown = f"={self.value[:80]}" if self.value else ""
        return f"{self.place}: --{self.option.name}{shown}"


def _rows(answer: Answer, words: str, why: str = "") -> Iterator[SlurmOption]:
    """Yields the options of words such as `time:t`, `hold:H!` (takes nothing) and `nice?` (only a joined value)."""
    for word in words.split():
        takes = next((each for each in (Takes.NOTHING, Takes.JOINED) if word.endswith(each)), Takes.VALUE)
        name, _, letter = word.rstrip("!?").partition(":")
        yield SlurmOption(name, letter, takes, answer, why)


_INSIDE = "where threads run within a machine is left to its system"
_OUTPUT = "`walras logs JOB` shows the output; no file is written"
_ACCOUNTING = "it decides nothing here"
_WORDS = "the words of `walras submit` say it"
_MACHINE = "no machine is chosen by it here; name accelerator types, or pools in `resources.pools`"

_SBATCH = (
    *_rows(
        Answer.OBEYED,
        "account:A array:a begin:b chdir:D comment constraint:C cpus-per-gpu cpus-per-task:c dependency:d export "
        "gpus:G gpus-per-node gpus-per-task gres hold:H! ignore-pbs! input:i job-name:J mem mem-per-cpu mem-per-gpu "
        "nodes:N ntasks:n ntasks-per-gpu ntasks-per-node tasks-per-node partition:p qos:q signal time:t",
    ),
    *_rows(Answer.NOTED, "output:o error:e", _OUTPUT),
    *_rows(Answer.NOTED, "open-mode", "`walras logs JOB` shows the output of every attempt"),
    *_rows(Answer.NOTED, "mail-type mail-user", "`walras notify` tells you of your jobs' ends"),
    *_rows(Answer.NOTED, "requeue!", "a job that loses its machine is always queued again"),
    *_rows(Answer.NOTED, "no-kill:k?", "a job that loses a machine is always queued again"),
    *_rows(Answer.NOTED, "wait:W!", "`walras wait JOB` waits for its end"),
    *_rows(Answer.NOTED, "time-min", "the whole of --time is the limit"),
    *_rows(Answer.NOTED, "oversubscribe:s!", "accelerators are a job's own, machines are shared"),
    *_rows(Answer.NOTED, "prefer", "the scheduler chooses among the types that the job names"),
    *_rows(Answer.NOTED, "kill-on-invalid-dep", "a job whose dependency cannot be met ends, and says so"),
    *_rows(Answer.NOTED, "parsable! quiet:Q! verbose:v!", _WORDS),
    *_rows(Answer.NOTED, "acctg-freq profile wckey extra stepmgr! power network delay-boot resv-ports?", _ACCOUNTING),
    *_rows(Answer.NOTED, "gpu-freq cpu-freq", "frequencies are left to the machine"),
    *_rows(Answer.NOTED, "propagate? get-user-env? oom-kill-step?", "ranks have the limits of their machine's agent"),
    *_rows(
        Answer.NOTED,
        "distribution:m mem-bind gpu-bind gres-flags hint threads-per-core ntasks-per-core ntasks-per-socket tres-bind "
        "overcommit:O! core-spec:S thread-spec spread-job! use-min-nodes! switches wait-all-nodes",
        _INSIDE,
    ),
    *_rows(
        Answer.REFUSED,
        "nodelist:w exclude:x nodefile:F cluster-constraint clusters:M cluster reservation licenses:L contiguous! tmp "
        "mincpus sockets-per-node cores-per-socket extra-node-info:B batch segment mcs-label",
        _MACHINE,
    ),
    *_rows(Answer.REFUSED, "exclusive?", "machines are shared; a job's accelerators are its own without it"),
    *_rows(Answer.REFUSED, "no-requeue!", "a job that loses its machine is queued again; `preemptible: false` is near"),
    *_rows(Answer.REFUSED, "priority nice?", "give a priority in words of ours: --set priority=low"),
    *_rows(Answer.REFUSED, "deadline", "Slurm ends a job that would miss it; --set deadline=+12h asks for it in time"),
    *_rows(Answer.REFUSED, "gpus-per-socket ntasks-per-tres tres-per-task", "say it with --gpus-per-node or --gres"),
    *_rows(Answer.REFUSED, "container container-id", "name an image: --set image=NAME"),
    *_rows(Answer.REFUSED, "bb bbf", "bring data with `inputs` of a job file"),
    *_rows(Answer.REFUSED, "export-file", "give variables with --env NAME=VALUE"),
    *_rows(Answer.REFUSED, "uid gid reboot! context", "no job may do this here"),
    *_rows(Answer.REFUSED, "test-only!", "walras submit FILE --dry-run"),
    *_rows(Answer.REFUSED, "wrap", "it replaces the script; give it to the command: sbatch --wrap"),
    *_rows(Answer.REFUSED, "help:h! usage! version:V!", "it is a question to the command, and no option of a job"),
)  # fmt: skip

_SRUN = (
    *_rows(
        Answer.OBEYED,
        "chdir:D cpus-per-task:c error:e export gpus:G gpus-per-node gpus-per-task gres input:i job-name:J jobid "
        "kill-on-bad-exit:K? label:l! nodelist:w nodes:N ntasks:n ntasks-per-node tasks-per-node "
        "open-mode output:o overlap? relative:r time:t",
    ),
    *_rows(
        Answer.NOTED,
        "accel-bind account:A acctg-freq bb bbf bcast? bcast-exclude begin:b cluster clusters:M cluster-constraint "
        "comment compress? constraint:C contiguous! core-spec:S cores-per-socket cpu-bind cpu-freq cpu_bind "
        "cpus-per-gpu deadline debugger-test! delay-boot dependency:d disable-status:X! distribution:m exact! "
        "exclude:x exclusive? "
        "extra-node-info:B gid gpu-bind gpu-freq gpus-per-socket gres-flags hint hold:H! immediate:I? interactive! "
        "licenses:L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi "
        "msg-timeout network nice? no-kill:k? nodefile:F ntasks-per-core ntasks-per-gpu ntasks-per-socket "
        "ntasks-per-tres overcommit:O! oversubscribe:s! partition:p power prefer preserve-env:E! priority profile "
        "propagate? pty! qos:q quiet:Q! quit-on-interrupt! reboot! reservation resv-ports? send-libs? signal "
        "slurmd-debug sockets-per-node spread-job! switches test-only! thread-spec threads:T threads-per-core time-min "
        "tmp uid unbuffered:u! use-min-nodes! verbose:v! wait:W wckey whole! external-launcher?",
    ),
    *_rows(
        Answer.REFUSED,
        "container container-id context epilog het-group multi-prog! no-allocate:Z! pack-group prolog task-epilog "
        "task-prolog tres-per-task help:h! usage! version:V!",
        "a step cannot have it here",
    ),
)  # fmt: skip

#: The tables, by the name of the command.
SLURM_OPTIONS = {"sbatch": _SBATCH, "srun": _SRUN}
#: Names that stand for another one.
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def table_for_the_shell() -> str:
    """Returns the table of srun as `slurm_job.sh` reads it: NAME:LETTER:TAKES:ANSWER, one a line."""
    letters = {Answer.OBEYED: "h", Answer.NOTED: "n", Answer.REFUSED: "r"}
    return "\n".join(f"{row.name}:{row.letter}:{row.takes}:{letters[row.answer]}" for row in _SRUN)


# ------------------------------------------------------------------------------------------------ words


class _Unclosed(ValueError):
    """A quotation mark that is never closed."""


def words_of_line(text: str) -> list[str]:
    """Returns the words of what follows `#SBATCH`: quotes and backslashes as Slurm has them, `#` begins a comment.

    Raises ValueError for a quotation mark that is never closed.
    """
    words, position = list[str](), 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text) or text[position] == "#":
            return words
        word, position = _word_from(text, position)
        words.append(word)


def _word_from(text: str, position: int) -> tuple[str, int]:
    word, quote = "", ""
    while position < len(text) and (quote or not text[position].isspace()):
        character = text[position]
        position += 1
        if character == "\\":
            word += text[position : position + 1]
            position += 1
        elif quote:
            quote = "" if character == quote else quote
            word += character if quote else ""
        elif character in "\"'":
            quote = character
        elif character == "#":
            return word, len(text)
        else:
            word += character
    if quote:
        raise _Unclosed(f"the quotation mark {quote} is never closed")
    return word, position


def options_of_script(text: str, reading: ForeignReading) -> list[GivenOption]:
    """Returns the options of a script's `#SBATCH` lines; what is wrong with the lines is told to `reading`.

    As in Slurm, the words of all lines are one command line, and lines after the first command do not count.
    """
    words, ended = list[tuple[str, str]](), False
    for number, line in enumerate(text.split("\n"), 1):
        place = f"line {number}"
        if not line.startswith("#SBATCH"):
            _judge_other_line(line, place, reading, ended=ended)
            ended = ended or (bool(line.strip()) and not line.lstrip().startswith("#"))
            continue
        if ended:
            reading.notes.append(f"{place}: it stands below the first command, so Slurm does not read it")
            continue
        reading.has_lines = True
        if line.removeprefix("#SBATCH").split()[:1] in (["hetjob"], ["packjob"]):
            reading.refused.append(f"{place}: hetjob: a job of several parts; write each part as a job of its own")
            continue
        try:
            words += [(place, word) for word in words_of_line(line.removeprefix("#SBATCH"))]
        except ValueError as error:
            reading.refused.append(f"{place}: {error}")
    return read_options("sbatch", words, reading)


def _judge_other_line(line: str, place: str, reading: ForeignReading, *, ended: bool) -> None:
    """Tells of a line that looks like options and is none."""
    if ended:
        return
    if line.lstrip().startswith("#SBATCH"):
        reading.notes.append(f"{place}: it does not begin with #SBATCH, so Slurm takes it for a comment")
    for other in ("#PBS", "#BSUB", "#$ -", "#COBALT", "#FLUX:", "#OAR "):
        if line.startswith(other):
            reading.other_lines.append(f"{place}: {other.rstrip(' -')}: options of another scheduler are not read")


def read_options(command: str, words: Sequence[tuple[str, str]], reading: ForeignReading) -> list[GivenOption]:
    """Returns the options among (place, word) pairs, as getopt_long finds them; what is none is told to `reading`."""
    found, rest = list[GivenOption](), list(words)
    while rest:
        more, rest = leading_options(command, rest, reading)
        found += more
        if rest:
            place, word = rest.pop(0)
            reading.refused.append(f"{place}: {word[:80]}: neither an option nor the value of one")
    return found


def leading_options(
    command: str, words: Sequence[tuple[str, str]], reading: ForeignReading
) -> tuple[list[GivenOption], list[tuple[str, str]]]:
    """Returns the options at the beginning of (place, word) pairs, and the pairs from the first other word on."""
    found, rest = list[GivenOption](), list(words)
    while rest and rest[0][1].startswith("-") and rest[0][1] != "-":
        place, word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            option = _long_option(command, word[2:].partition("=")[0], place, reading)
            joined = word.partition("=")[2] if "=" in word else None
            if option is not None:
                _add_long(found, option, joined, place, rest, reading)
        else:
            _add_short(found, command, word[1:], place, rest, reading)
    return found, rest


def _long_option(command: str, name: str, place: str, reading: ForeignReading) -> SlurmOption | None:
    rows = SLURM_OPTIONS[command]
    exact = [row for row in rows if row.name == name]
    near = exact or [row for row in rows if name and row.name.startswith(name)]
    meant = {_ALIASES.get(row.name, row.name) for row in near}
    if len(meant) != 1:
        why = f"may be {', '.join(f'--{each}' for each in sorted(meant)[:4])}" if meant else f"no option of {command}"
        reading.refused.append(f"{place}: --{name[:80]}: {why}")
        return None
    return next(row for row in rows if row.name in meant)


def _add_long(
    found: list[GivenOption],
    option: SlurmOption,
    joined: str | None,
    place: str,
    rest: list[tuple[str, str]],
    reading: ForeignReading,
) -> None:
    if joined is not None and option.takes is Takes.NOTHING:
        reading.refused.append(f"{place}: --{option.name}: takes no value")
        return
    if joined is None and option.takes is Takes.VALUE:
        if not rest:
            reading.refused.append(f"{place}: --{option.name}: has no value")
            return
        joined = rest.pop(0)[1]
    found.append(GivenOption(place, option, joined or ""))


def _add_short(
    found: list[GivenOption],
    command: str,
    letters: str,
    place: str,
    rest: list[tuple[str, str]],
    reading: ForeignReading,
) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        option = next((row for row in SLURM_OPTIONS[command] if row.letter == letter), None)
        if option is None:
            reading.refused.append(f"{place}: -{letter}: no option of {command}")
            return
        value = ""
        if option.takes is not Takes.NOTHING:
            value, letters = letters, ""
        if option.takes is Takes.VALUE and not value:
            if not rest:
                reading.refused.append(f"{place}: -{letter}: has no value")
                return
            value = rest.pop(0)[1]
        found.append(GivenOption(place, option, value))
