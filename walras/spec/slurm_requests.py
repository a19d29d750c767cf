"""What a Slurm script asks of Slurm: the options of its `#SBATCH` lines and of `srun`, and the commands in its text.

`#SBATCH` lines are read as Slurm reads them. Every option is obeyed, noted or refused. What decides whether, when, how
often, on what and after what a job runs is obeyed or refused; the rest is a note. An option that is in no table is
refused, as Slurm refuses it.

The text is read before it runs. A script that submits, cancels or starts on all machines by itself would do something
else here, so it is refused by line. The reading is a shell's in outline: comments, quotes, here-documents, and words
where a command may stand. What only shows when the script runs (`srun $OPTIONS`) is judged then, by `slurm_job.sh`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from walras.spec.shell_scripts import ForeignReading


class Answer(StrEnum):
    """How an option of a Slurm command is treated here."""

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


#: Why an option is noted that binds tasks or threads within a machine.
INSIDE = "where threads run within a machine is left to its system"
_OUTPUT = "`walras logs JOB` shows the output; no file is written"
_ACCOUNTING = "it decides nothing here"
_WORDS = "the words of `walras submit` say it"
_MACHINE = "no machine is chosen by it here; name accelerator types, or pools in `resources.pools`"

_SBATCH = (
    *_rows(
        Answer.OBEYED,
        "account:A array:a begin:b chdir:D comment constraint:C cpus-per-gpu cpus-per-task:c dependency:d "
        "distribution:m export gpu-bind gpus:G gpus-per-node gpus-per-task gres hold:H! ignore-pbs! input:i job-name:J "
        "mem mem-per-cpu mem-per-gpu "
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
    *_rows(Answer.NOTED, "propagate? oom-kill-step?", "ranks have the limits of their machine's agent"),
    *_rows(Answer.NOTED, "get-user-env?", "ranks have a short list of the machine's variables; name others with --env"),
    *_rows(
        Answer.NOTED,
        "mem-bind gres-flags hint threads-per-core ntasks-per-core ntasks-per-socket overcommit:O! core-spec:S "
        "thread-spec",
        INSIDE,
    ),
    *_rows(Answer.NOTED, "spread-job! use-min-nodes! wait-all-nodes", "it starts once it has all its machines"),
    *_rows(
        Answer.REFUSED,
        "nodelist:w exclude:x nodefile:F cluster-constraint clusters:M cluster reservation switches contiguous! tmp "
        "mincpus sockets-per-node cores-per-socket extra-node-info:B batch segment mcs-label",
        _MACHINE,
    ),
    *_rows(Answer.REFUSED, "licenses:L", "licences are not counted here"),
    *_rows(Answer.REFUSED, "exclusive?", "machines are shared; a job's accelerators are its own without it"),
    *_rows(Answer.REFUSED, "no-requeue!", "a job that loses its machine is queued again; `preemptible: false` is near"),
    *_rows(Answer.REFUSED, "priority nice?", "give a priority in words of ours: --set priority=low"),
    *_rows(Answer.REFUSED, "deadline", "Slurm ends a job that would miss it; --set deadline=+12h asks for it in time"),
    *_rows(Answer.REFUSED, "gpus-per-socket ntasks-per-tres tres-bind tres-per-task", "use --gpus-per-task or --gres"),
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
        "chdir:D cpus-per-task:c distribution:m error:e exact! exclude:x exclusive? export gpu-bind gpus:G "
        "gpus-per-node gpus-per-task gres input:i job-name:J jobid "
        "kill-on-bad-exit:K? label:l! nodelist:w nodes:N ntasks:n ntasks-per-node overcommit:O! tasks-per-node "
        "open-mode output:o overlap? relative:r time:t wait:W",
    ),
    *_rows(
        Answer.NOTED,
        "accel-bind account:A acctg-freq bb bbf bcast? bcast-exclude begin:b cluster clusters:M cluster-constraint "
        "comment compress? constraint:C contiguous! core-spec:S cores-per-socket cpu-bind cpu-freq cpu_bind "
        "cpus-per-gpu deadline debugger-test! delay-boot dependency:d disable-status:X! "
        "extra-node-info:B gid gpu-freq gres-flags hint hold:H! immediate:I? interactive! "
        "licenses:L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi "
        "msg-timeout network nice? no-kill:k? ntasks-per-core ntasks-per-socket "
        "oversubscribe:s! partition:p power prefer preserve-env:E! priority profile "
        "propagate? pty! qos:q quiet:Q! quit-on-interrupt! reboot! reservation resv-ports? send-libs? signal "
        "slurmd-debug sockets-per-node spread-job! switches thread-spec threads:T threads-per-core time-min "
        "tmp uid unbuffered:u! use-min-nodes! verbose:v! wckey whole! external-launcher?",
    ),
    *_rows(
        Answer.REFUSED,
        "container container-id context epilog gpus-per-socket het-group multi-prog! no-allocate:Z! nodefile:F "
        "ntasks-per-gpu ntasks-per-tres pack-group prolog task-epilog task-prolog test-only! tres-per-task help:h! "
        "usage! version:V!",
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
    """A quotation mark or a backslash that is never closed."""


def words_of_line(text: str) -> list[str]:
    """Returns the words of what follows `#SBATCH`: quotes and backslashes as Slurm has them, `#` begins a comment.

    Raises ValueError for a quotation mark that is never closed, and a backslash at the end.
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
            if position == len(text):
                raise _Unclosed("it ends with a backslash, and such lines do not go on in the next one")
            if text[position].isspace() and not quote:  # a blank ends a word all the same
                continue
            word += text[position]
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
        reading.has_lines = True
        if ended:
            reading.notes.append(f"{place}: it stands below the first command, so Slurm does not read it")
            continue
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
                found += _long(option, joined, place, rest, reading)
        else:
            found += _short(command, word[1:], place, rest, reading)
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


def _long(
    option: SlurmOption, joined: str | None, place: str, rest: list[tuple[str, str]], reading: ForeignReading
) -> Iterator[GivenOption]:
    if joined is not None and option.takes is Takes.NOTHING:
        reading.refused.append(f"{place}: --{option.name}: takes no value")
        return
    if joined is None and option.takes is Takes.VALUE:
        if not rest:
            reading.refused.append(f"{place}: --{option.name}: has no value")
            return
        joined = rest.pop(0)[1]
    yield GivenOption(place, option, joined or "")


def _short(
    command: str, letters: str, place: str, rest: list[tuple[str, str]], reading: ForeignReading
) -> Iterator[GivenOption]:
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
        yield GivenOption(place, option, value)


#: Words after which a command may begin.
_BEFORE = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "exec", "command", "eval"})
#: Commands that run the command behind their own options.
_AROUND = frozenset({"env", "nice", "nohup", "timeout", "stdbuf", "numactl", "taskset", "ionice", "setsid", "xargs"})
_SEPARATORS = frozenset({";", ";;", "&", "&&", "|", "||", "|&", "(", ")", "\n", "`", "$("})
#: Commands that nothing is done for, and why.
REFUSED_COMMANDS = {
    "sbatch": "a job cannot submit another one here; --dependency=afterok:JOB of a second submission orders them",
    "salloc": "a job cannot ask for more machines here",
    "scancel": "a job cannot cancel one here; end with an exit code",
    "sattach": "no job is attached to another one here",
    "sbcast": "files travel with the working folder (`workdir`), data with `inputs`",
    "sgather": "what a job leaves in its `outputs` is fetched by `walras fetch`",
    "strigger": "no triggers are set here",
}
_NOTED = {
    "squeue": "there is no such command on the machines; `walras queue` asks where you are",
    "sacct": "there is no such command on the machines; `walras show` asks where you are",
    "sstat": "there is no such command on the machines",
    "seff": "there is no such command on the machines; `walras show` asks where you are",
    "sinfo": "there is no such command on the machines; `walras nodes` asks where you are",
}
_ON_ALL_MACHINES = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "pdsh", "clush", "horovodrun"})


#: What runs a program that is one's own; and words by which it only computes a value or prepares something.
_RUNS_A_PROGRAM = re.compile(
    r"(python|pypy|perl|ruby)[0-9.]*|torchrun|accelerate|deepspeed|composer|(ba|da|k|z|c|tc)?sh|julia|Rscript|R|matlab"
    r"|octave|java|node|singularity|apptainer|docker|podman|shifter|enroot|ray|ssh|parallel|ibrun|aprun|jsrun"
    r"|(uv|pdm|poetry|pipenv|hatch|pixi|conda|mamba|micromamba|wandb)(?=run|agent)"
)
_ONLY_PREPARES = frozenset(
    {"-c", "-V", "--version", "-m pip", "-m venv", "-m ensurepip", "pull", "build", "stop", "config"}
)
#: A program of one's own, and not of the system.
_OWN_PROGRAM = re.compile(r"(?!/(usr/)?s?bin/)[^=]*/(?!pip3?$|conda$|mamba$|nvidia-smi$)[^/]*")


#: A condition: what it computes, it runs to know how that ends.
_ASKS = re.compile(r"\s*(?:if|elif|while|until|!)\s")


def _runs_a_program(name: str, words: list[str]) -> bool:
    if _ONLY_PREPARES & {" ".join(words[1:2]), " ".join(words[1:3])}:
        return False
    with_verb = name + next((word for word in words[1:] if word in ("run", "agent")), "")
    is_known = _RUNS_A_PROGRAM.match(with_verb)
    return (
        (words[0].startswith("$") and "/" not in words[0])
        or (is_known is not None and is_known.end() == len(name))
        or (_OWN_PROGRAM.fullmatch(words[0]) is not None)
    )


def _with_meaning(words: list[str], text: str) -> list[str]:
    """Returns the words with a variable in the command's place replaced by the value that the script sets."""
    for _ in range(3):
        variable = re.fullmatch(r"\$\{?(\w+)(?:\[@\])?\}?", words[0], re.ASCII)
        found = variable and re.search(rf"^[ \t]*(?:export\s+)?{variable[1]}=(['\"(]?)(.*)$", text, re.MULTILINE)
        meant = found[2].replace("\\", " ").strip("\"')").split() if found else []
        if not meant:
            break
        words = [*meant, *words[1:]]
    return words


def judge_commands(text: str, nodes: int, reading: ForeignReading) -> None:
    """Tells `reading` of the commands of a script that ask for what is not here. `nodes`: machines of the job."""
    lines = dict(logical_lines(text))
    for number, said in commands_of(text):
        words = _with_meaning(said, text)
        name, place = words[0].rpartition("/")[2], f"line {number}"
        if name in REFUSED_COMMANDS:
            reading.refused.append(f"{place}: {name}: {REFUSED_COMMANDS[name]}")
        elif name in _NOTED:
            line = re.sub(r"\|\|\s*(?:true|:)\s*$", "", lines[number])  # by which an answer decides nothing
            is_read = re.search(rf"(?:[`(!]|^\s*(?:while|until|if|elif)\b).*\b{name}\b|\b{name}\b.*(?:&&|\|\|)", line)
            told = reading.refused if is_read and not only_prints(line, to_files=True) else reading.notes
            told.append(f"{place}: {name}: {_NOTED[name]}")
        elif name in _ON_ALL_MACHINES and nodes > 1:
            reading.refused.append(
                f"{place}: {name}: it would start on each of the {nodes} machines by itself; use srun, or torchrun"
            )
        elif nodes > 1 and _runs_a_program(name, words) and not (said == [_COMPUTED] and _ASKS.match(lines[number])):
            shown = as_written(words[0])[:40]
            reading.refused.append(f"{place}: {shown}: outside srun: on the first machine there, here on all")
        elif name == "scontrol":
            _judge_scontrol([word for word in words[1:] if word[0] not in "-$"], lines[number], place, reading)
        elif name == "srun":
            _judge_step(words[1:], lines[number], place, nodes, reading)
    if nodes > 1:
        _judge_values(text, reading)


#: Fields of `scontrol show job` that are not known to a job here.
_FIELDS = re.compile(
    r"\b(?:(?:Run|Start|End|Submit|Eligible|Accrue)Time|Time(?:Limit|Min)|Deadline|Priority|Nice|Std(?:Out|Err|In)|[A-Z]*TRES"
    r"|Tres\w+|Gres|Features|NumCPUs|Min(?:CPUs|Memory)\w+|Licenses|(?:Req|Exc)NodeList|AllocNode|OverSubscribe)\b"
)


def _judge_scontrol(words: list[str], line: str, place: str, reading: ForeignReading) -> None:
    told = ""
    if words and words[0] not in ("show", "requeue"):
        told = f"{words[0][:40]}: only `show` and `requeue` are here"
    elif words[1:] and words[0] == "show" and not re.match(r"host(name|list)|job", words[1]):
        told = f"show {words[1][:40]}: only machines' names and jobs are shown here"
    elif found := _FIELDS.search(line) if words[1:2] and words[1].startswith("job") else None:
        told = f"show job: it has no {found[0]} here"
    if told:
        reading.refused.append(f"{place}: scontrol {as_written(told)}")


#: What has another value on each machine, where Slurm evaluates a script once: variables, and commands in `$()`.
_OF_A_MACHINE = re.compile(r"\$\{?(?:S?RANDOM|BASHPID|HOSTNAME|SLURMD_NODENAME)\b\}?|\$\$")
_ASKS_A_MACHINE = re.compile(
    r"(?<![\w./$-])(?:shuf|uuidgen|hostname|mktemp|openssl|ss|netstat|ifconfig|ip)(?![\w=./-])"
    r"|\bdate(?=\s*$|.{0,200}%[-_0]?[HIMSNsTXcrR])|\b(?:socket|uuid|random|time)\b"
)
#: What stands in parentheses, with others in it.
_INSIDE = "[^()]*"
for _ in range(4):
    _INSIDE = rf"[^()]*(?:\({_INSIDE}\)[^()]*)*"
_SUBSTITUTED = re.compile(rf"\$\(({_INSIDE})\)|`([^`]*)`")
_ASSIGNMENT = re.compile(
    rf"(?<![\w$])([A-Za-z_]\w*)\+?=(\({_INSIDE}\)|(?:\"?\$\({_INSIDE}\)|`[^`]*`|\"[^\"]*\"|'[^']*'|[^\s;&|])*)"
)
#: A job's address and port, which are a task's own.
_OWN_PLACE = re.compile(r"\$\{?MASTER_(?:ADDR|PORT)\b")
#: Options of srun that only name files and steps, and what comes behind a step.
_NAMES_ONLY = re.compile(r"(?:--output|--error|--job-name|-[oeJ])[= ]?\S+|\s(?:\||\d?>>?|&>).*")


def _judge_values(text: str, reading: ForeignReading) -> None:
    """Refuses steps that get such a value as an argument: tasks would never meet, or not do the same."""
    causes = dict[str, str]()

    def of_names(said: str) -> str:
        return next((causes[name] for name in re.findall(r"\$\{?(\w+)", said) if name in causes), "")

    def of_text(said: str) -> str:
        asked = [part for found in _SUBSTITUTED.findall(said) for part in found]
        asked = [part for part in asked if not re.search(r"\b(?:srun|scontrol)\b", part)]
        found = next(filter(None, (_OF_A_MACHINE.search(said), *map(_ASKS_A_MACHINE.search, asked))), None)
        return of_names(said) if found is None else found[0]

    for name, value in _ASSIGNMENT.findall(re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)):
        if why := of_text(_OWN_PLACE.sub("", value) if value.startswith("'") else value.replace(r"\$", "")):
            causes[name] = why
    steps = {number for number, words in commands_of(text) if _with_meaning(words, text)[0].endswith("srun")}
    for number, line in logical_lines(text):
        if number not in steps or re.match(r"\s*(?:export\s+)?\w+=\W?(?:\$\(|`)", line):
            continue
        if only_prints(line):  # but for its steps, whose tasks have arguments
            line = "; ".join(each for each in _apart(line)[1] if "srun" in each)
        said = _NAMES_ONLY.sub("", line)
        # In the quotes of a task's own shell a job's address and port are right, whatever the script exports.
        if why := of_text(re.sub(r"'[^']*'|\\\$", "", said)) or of_names(_OWN_PLACE.sub("", said)):
            reading.refused.append(
                f"line {number}: srun: {why}: has another value on each machine; take it from $SLURM_JOB_ID"
            )


def _judge_step(words: list[str], line: str, place: str, nodes: int, reading: ForeignReading) -> None:
    """Refuses what a step cannot have. What stands in variables is judged when the script runs."""
    found = ForeignReading()
    options, rest = leading_options("srun", [(place, word) for word in words], found)
    reading.refused += [as_written(each).replace(": ", ": srun ", 1) for each in found.refused]
    for option in options:
        if option.option.answer is Answer.REFUSED:
            reading.refused.append(f"{place}: srun --{option.option.name}: {option.option.why}")
        elif option.option.name == "mpi" and option.value.startswith(("pmi", "cray")):
            reading.refused.append(
                f"{place}: srun --mpi={as_written(option.value)[:20]}: a program of MPI would run alone in each task"
            )
    if ":" in words:
        reading.refused.append(f"{place}: srun ... : a step of several parts")
    given = {option.option.name: option.value for option in options}
    asked = [int(given[name]) for name in ("nodes", "ntasks") if given.get(name, "").isdigit()]
    command = [word for _, word in rest]
    shown = as_written(" ".join(command[:1]))[:40]
    if min(asked, default=nodes) >= nodes or not command or not _runs_a_program(command[0].rpartition("/")[2], command):
        return
    if not re.search(r"(?<![&>])&(?![&>\d])", line):
        told = f"{shown}: machines that are not the step's go on without waiting for it"
        reading.refused.append(f"{place}: srun {told}")
    elif not given.keys() & {"nodelist", "relative"}:
        told = f"{shown}: it would be on the first machine every time; say which by --nodelist or --relative"
        reading.refused.append(f"{place}: srun {told}")


def commands_of(text: str, depth: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its line, words) of each simple command that stands in a script as it is written.

    `depth`: in how many `$(...)` and texts of commands it stands; beyond 20 nothing is read.
    """
    in_patterns = list[bool]()  # of each open `case`: whether a pattern is read
    for number, line in logical_lines(text) if depth <= _DEEPEST else ():
        words: list[str] = []
        in_array = False
        outside, inside = _apart(line)
        for token in _tokens(outside):
            in_array = (token == "(" and bool(words) and words[-1].endswith("=")) or (in_array and ")" not in token)
            is_separator = token in _SEPARATORS or set(token) <= set(";&|()\n")
            if in_array:
                words[-1] += token  # the words of `NAME=(...)` are no commands
            elif in_patterns and in_patterns[-1] and token != "esac":
                in_patterns[-1] = not (is_separator and ")" in token)
            elif is_separator:
                if not (len(words) == 1 and token.startswith("()")):  # else the name of a function
                    yield from _command(number, words, depth)
                words = []
                if in_patterns and re.search(";[;&]", token):
                    in_patterns[-1] = True
            elif token == "esac" and in_patterns and not words:
                in_patterns.pop()
            else:
                words.append(token)
                if token == "in" and "case" in words[:2] and {*words[: words.index("case")]} <= _BEFORE:
                    in_patterns.append(True)
                    words = []
        yield from _command(number, words, depth)
        for each in inside:
            yield from ((number, inner) for _, inner in commands_of(each, depth + 1))


def _command(number: int, words: list[str], depth: int) -> Iterator[tuple[int, list[str]]]:
    rest = list(words)
    while rest:
        if rest[0] == "eval" and (re.search(r"[\s;&|]", "".join(rest)) or rest[1:] == [_COMPUTED]):
            text = " ".join(rest[1:]).replace(_COMPUTED, "")
            yield from ((number, inner) for _, inner in commands_of(text, depth + 1))
            return
        rest = rest[2:] if rest[0] == "function" else rest
        if not rest:
            return
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
            is_elsewhere = rest[0].rpartition("/")[2] == "ssh"
            for _, inner in commands_of(_text_of_command(rest), depth + 1):
                if not is_elsewhere or inner[0][0] == "$" or inner[0].rpartition("/")[2] in (*REFUSED_COMMANDS, "sky"):
                    yield number, inner
            return


def _text_of_command(words: list[str]) -> str:
    """Returns what a command is given to run: `trap 'TEXT' TERM`, `bash -c 'TEXT'`, `ssh HOST TEXT`; else ""."""
    name, at = words[0].rpartition("/")[2], 1
    if name == "trap":
        return next((word for word in words[1:] if word != "--"), "")
    if name == "find":
        return " ".join(words).partition(" -exec ")[2]
    if name != "ssh" and re.fullmatch(r"(?:ba|da|k|z)?sh", name) is None:
        return ""
    while at < len(words) and words[at].startswith("-"):
        if name != "ssh" and re.fullmatch(r"-\w*c", words[at]):
            return "".join(words[at + 1 : at + 2])
        with_value = r"-[bcDEeFIiJLlmOopQRSWw]" if name == "ssh" else r"-\w*[oO]|--(?:rcfile|init-file)"
        at += 2 if re.fullmatch(with_value, words[at]) else 1
    return " ".join(words[at + 1 :]) if name == "ssh" else ""


#: What stands in a line where a shell puts what it computes: the output of `$(...)`, the value of `$((...))`.
_COMPUTED = "$\ue000"
_DEEPEST = 20


def as_written(words: str) -> str:
    """Returns words of `commands_of` as they are shown."""
    return words.replace(_COMPUTED, "$(...)")


def _apart(line: str, depth: int = 0) -> tuple[str, list[str]]:
    """Returns a line without what a shell computes (`$(...)`, backquotes, `$((...))`), and the commands of that."""
    outside, inside, at, quote = list[str](), list[str](), 0, ""
    while at < len(line):
        opened = next((mark for mark in ("$(", "`", "\\") if quote != "'" and line.startswith(mark, at)), "")
        if opened == "\\":
            outside.append(line[at : at + 2])
            at += 2
        elif opened:
            text, end, is_arithmetic = _computed_at(line, at, opened)
            if not is_arithmetic:
                inside.append(text)
            elif depth < _DEEPEST:
                inside += _apart(text, depth + 1)[1]
            outside.append(_COMPUTED)
            at = end
        elif line[at] == "#" and not quote and (outside[-1] if outside else "") in ("", *" \t;&|("):
            break
        else:
            if line[at] in "'\"" and quote in ("", line[at]):
                quote = "" if quote else line[at]
            outside.append(line[at])
            at += 1
    return "".join(outside), inside


def _computed_at(line: str, at: int, opened: str) -> tuple[str, int, bool]:
    """Returns what a shell computes at a place, the place behind it, and whether it is `$((...))`."""
    if opened == "`":
        closed = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL).match(line, at + 1)
        end = closed.end() if closed else len(line)
        return re.sub(r"\\([`\\$])", r"\1", line[at + 1 : end]), end + 1, False
    if line.startswith("$((", at) and line.startswith(")", end := _end_of(line, at + 3, has_cases=False)):
        return line[at + 3 : end - 1], end + 1, True
    end = _end_of(line, at + 2, has_cases=True)
    return line[at + 2 : end].removesuffix(")"), end, False


#: How `case ... in` begins, whose patterns end with a `)` that nothing opened.
_CASE = re.compile(r"case\s[^;&|]{1,200}?\sin\s")


def _end_of(line: str, at: int, *, has_cases: bool) -> int:
    """Returns the place behind the `)` that closes what a place is in; the line's end if nothing does."""
    depth, cases, last = 1, list[int](), line.rfind("esac") if has_cases else -1
    for place, character, quote in _unescaped(line, at):
        if quote:
            continue
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= not cases or cases[-1] != depth
        elif has_cases and character in "ce" and line[place - 1] in " \t\n;&|(":
            if place < last and _CASE.match(line, place):
                cases.append(depth)
            elif cases and line.startswith("esac", place):
                cases.pop()
        if not depth:
            return place + 1
    return len(line)


def _unescaped(line: str, at: int = 0, quote: str = "") -> Iterator[tuple[int, str, str]]:
    """Yields (place, character, quotation mark that is open then, or "") of all behind a place but what is escaped."""
    while at < len(line):
        character = line[at]
        if character == "\\" and quote != "'":
            at += 2
            continue
        if character in (quote or "'\""):
            quote = "" if quote else character
        yield at, character, quote
        at += 1


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:  # a quotation mark that another line closes
        return re.findall(r"[;&|()]+|[^\s;&|()]+", line)


def _quote_after(line: str, quote: str) -> str:
    """Returns the quotation mark that is open at the end of a line, or ""; `quote`: the one open at its beginning."""
    for at, character, quote in _unescaped(line, 0, quote):  # noqa: B020
        if character == "#" and not quote and (at == 0 or line[at - 1] in " \t;&|("):
            return ""
    return quote


def only_prints(line: str, *, to_files: bool = False) -> bool:
    """Returns whether a line is one command that prints: what it names without a value changes nothing else.

    `to_files`: also one that prints to a file, to the standard error or through `tee`.
    """
    said = re.sub(r"\"[^\"]*\"|'[^']*'", "", line)
    if to_files:
        if re.search(r">\s*\"[^\"]*[$`]\(", line) or any(
            re.search(r"&&|\|\|(?!\s*(?:true|:)\s*$)", each) for each in _apart(line)[1]
        ):
            return False  # the answer names the file, or something is done by it
        said = re.sub(r"(?:\d?>&[12]\s*)?(?:\|\s*tee\b[^|;&(]*|>>?\s*[^\s|;&(`]*\s*|)$", "", said)
    return re.match(r"\s*(?:echo|printf)\b[^|>;&]*$", said) is not None


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines with their continuations and the lines that end their quotes, without here-documents."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        number, line = at + 1, lines[at]
        at += 1
        if line.lstrip().startswith("#"):  # also with a backslash at its end: no comment goes on
            continue
        while line.endswith("\\") and at < len(lines):
            line = line[:-1] + " " + lines[at]
            at += 1
        quoted, end, quote = [line], at, _quote_after(line, "")
        while quote and end < len(lines):
            quoted.append(lines[end])
            end, quote = end + 1, _quote_after(lines[end], quote)
        if not quote:  # else nothing closes it: what follows is read as it stands
            line, at = "\n".join(quoted), end
        yield number, line
        for end in re.findall(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?", line):
            while at < len(lines) and lines[at].strip() != end:
                at += 1
            at += 1
