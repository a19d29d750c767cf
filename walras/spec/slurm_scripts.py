"""A Slurm script as a job: the options of its `#SBATCH` lines become fields, or are refused or noted by line.

Slurm runs a script once, on the first machine, and `srun` in it starts tasks on all of them. Here the script runs once
on each machine (`nproc_per_node: 1`), and `srun` starts that machine's tasks. On one machine that is the same. On
several, what stands outside `srun` runs on each of them, and the submitter is told so. `slurm_job.sh` is what runs.
"""

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from walras.errors import JobSpecError
from walras.spec.accelerator_names import canonical_accelerator, covers
from walras.spec.job_spec import parse_spec
from walras.spec.shell_scripts import NO_ACCELERATOR, ForeignReading, interpreter_of, plain_script, script_mapping
from walras.spec.slurm_requests import (
    INSIDE,
    REFUSED_COMMANDS,
    SLURM_OPTIONS,
    Answer,
    GivenOption,
    Takes,
    judge_commands,
    logical_lines,
    only_prints,
    options_of_script,
    read_options,
    table_for_the_shell,
)
from walras.spec.sweeps import parse_array

_PRIORITIES = {"low": "low", "normal": "normal", "high": "high", "urgent": "high", "scavenger": "low"}
#: Names of products, as partitions and features have them, alone or with other words: `gpuA100x4`, `v100s`.
_PRODUCT = (
    r"(?:[abhklpv]\d{2,3}s?|l40s|gh200|gb[23]00|mi\d{2,3}[a-z]?|(?:rtx|gtx|titan)[-\w]*|[1-5]0[5-9]0(?:-?ti)?)"
    r"(?:-\d{1,3}gb)?"
)
_PRODUCTS = re.compile(
    rf"(?<![a-z0-9])(?:(?:gpus?|dgx|hgx|nv|nvidia|amd)?({_PRODUCT})[a-z]{{0,6}}\d{{0,2}}|([tlp]4|a[2-9])|(volta|ampere|hopper"
    r"|pascal|turing|lovelace|blackwell))(?![a-z0-9])"
)


def _products_in(name: str) -> list[str]:
    """Returns the words in a name of a partition or an account that seem to mean types of accelerators."""
    return [next(filter(None, found)) for found in _PRODUCTS.findall(name.lower().replace("_", "-"))]


def _type_of_feature(feature: str) -> str:
    """Returns the canonical name of the product that a feature of machines names; empty if it names none."""
    with contextlib.suppress(ValueError):
        name = canonical_accelerator(feature)
        return name if re.fullmatch(rf"(?!rtx$|gtx$|titan$)(?:{_PRODUCT}|[tlp]4|a[2-9])", name) else ""
    return ""


def slurm_job(
    text: str,
    name: str,
    options: Sequence[str] | None,
    now: datetime,
    *,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> tuple[dict[str, Any], ForeignReading]:
    """Returns the mapping of a shell script's job, and what is to be told of it.

    `options`: words of a command line of `sbatch`, which override those of the script; None: there was none, and a
    script without `#SBATCH` lines is a plain one. `now`: the instant of submission
    in the submitter's zone, from which `--begin` counts. `arguments`: of the script. `variables`: the submitter's, of
    which `--export=NAME` takes the value. Raises JobSpecError for what is refused, unless `lenient`.
    """
    text = plain_script(text, name)
    reading = read_slurm_script(text, options, now, variables or {})
    if not lenient:
        reading.raise_if_refused(name)
    title = Path(name).name
    if not reading.has_lines:
        return script_mapping(text, name=title, fields=reading.fields, arguments=arguments), reading
    reading.fields.setdefault("name", title)
    run = slurm_command(text, name, arguments, reading.fields.pop("input", "/dev/null"), lenient=lenient)
    return script_mapping(text, name=title, fields=reading.fields, run=run), reading


def slurm_command(
    text: str, name: str, arguments: Sequence[str] = (), standard_input: str = "/dev/null", *, lenient: bool = False
) -> list[str]:
    """Returns the command that runs the text of a script, with its arguments, as Slurm does.

    The job fails if it calls a command that nothing is done for (`sbatch`), unless `lenient`.
    """
    refused = "" if lenient else "\n".join(f"{name}:{why}" for name, why in REFUSED_COMMANDS.items())
    program = re.sub(r"^ *#.*\n", "", _program(), flags=re.MULTILINE).replace("@SRUN_OPTIONS@", table_for_the_shell())
    program = program.replace("@REFUSED_COMMANDS@", shlex.quote(refused))
    interpreter, argument = (*interpreter_of(text), "")[:2]
    # `{index}` of a sweep is replaced in every argument; a script's own braces are cut apart.
    pieces = re.sub(r"\{(?=index\})", "{\0", text).split("\0")
    told = [interpreter, argument, standard_input, str(len(pieces))]
    return ["bash", "-c", program, name, "start", *told, *pieces, *arguments]


def _program() -> str:
    return files("walras.spec").joinpath("slurm_job.sh").read_text(encoding="utf-8")


def read_slurm_script(
    text: str, options: Sequence[str] | None, now: datetime, variables: Mapping[str, str]
) -> ForeignReading:
    """Returns the fields of a script's options, with what is refused and what is noted."""
    reading = ForeignReading(variables=variables)
    given = options_of_script(text, reading)
    reading.has_lines = reading.has_lines or options is not None
    given += _options_of_variables(variables, reading)
    on_the_line = read_options("sbatch", [("command line", word) for word in options or ()], reading)
    if not any(each.option.name == "ignore-pbs" for each in given + on_the_line):
        reading.refused += reading.other_lines
    # The last of several counts, and the command line over the script.
    last = {each.option.name: each for each in given + on_the_line}
    gang = dict[str, GivenOption]()
    for each in last.values():
        if not each.value and each.option.takes is Takes.VALUE:
            reading.refused.append(f"{each}: has no value")
        elif each.option.answer is not Answer.OBEYED:
            told = reading.notes if each.option.answer is Answer.NOTED else reading.refused
            told.append(f"{each}: {each.option.why}")
        elif each.option.name in _GANG_OPTIONS:
            gang[each.option.name] = each
        elif reader := _READERS.get(each.option.name):
            own = ForeignReading(variables=variables)
            try:
                reader(own, each, now)
                _check_fields(own.fields, str(each))
            except ValueError as error:
                reading.refused.append(f"{each}: {error}")
            except JobSpecError as error:
                reading.refused.append(_told(error))
            else:
                _add(reading, own)
    if reading.has_lines:
        refused_before = len(reading.refused)
        _Gang(reading, gang).read()
        gang_fields: dict[str, Any] = {
            name: reading.fields[name] for name in ("resources", "num_nodes") if name in reading.fields
        }
        try:
            if len(reading.refused) == refused_before:
                _check_fields(gang_fields, ", ".join(map(str, gang.values())))
        except JobSpecError as error:
            reading.refused.append(_told(error))
        judge_commands(text, int(reading.fields.get("num_nodes", 1)), reading)
        _judge_variables(text, reading)
        if "export" not in last or "ALL" in last["export"].value.upper().split(","):
            _note_variables(text, reading)
    return reading


def _options_of_variables(variables: Mapping[str, str], reading: ForeignReading) -> list[GivenOption]:
    """Returns the options that the submitter's variables give: SBATCH_TIMELIMIT, SBATCH_GRES, SLURM_ACCOUNT."""
    if not reading.has_lines:
        return []
    rows = {row.name: row for row in SLURM_OPTIONS["sbatch"] if row.takes is not Takes.NOTHING}
    other = {"timelimit": "time", "array-inx": "array"}
    found = []
    for variable, value in sorted(variables.items()):
        words = variable.removeprefix("SBATCH_").lower().replace("_", "-")
        row = rows.get(other.get(words, words)) if variable.startswith("SBATCH_") else None
        if row is not None and value:
            found.append(GivenOption(f"your variable {variable}", row, value))
    return found


#: Variables whose values are the machine's own.
_OF_MACHINES = re.compile(
    r"HOME|USER|LOGNAME|\w*PATH|\w*PWD|SHELL|SHLVL|TERM|TMPDIR|HOST\w*|LANG|(?:LC|CONDA|CUDA|VIRTUAL|SLURM|WALRAS)_\w+"
)


def _note_variables(text: str, reading: ForeignReading) -> None:
    """Names the submitter's variables that a script reads: sbatch sends them along, and they stay behind here."""
    read = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text)) - _environment(reading).keys()
    for name in sorted(read & reading.variables.keys()):
        sets = rf"\b{name}\+?=|\bfor\s+{name}\b|\bread\b[^\n|;]*\b{name}\b"
        if not _OF_MACHINES.fullmatch(name) and not re.search(sets, text):
            reading.notes.append(f"${name}: your value stays behind; --env {name} or --export={name} sends it")


#: Variables that Slurm sets for every job, and that have a value here where an option gives it.
_OF_EVERY_JOB = {"SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS"}


def _judge_variables(text: str, reading: ForeignReading) -> None:
    """Refuses `$SLURM_TMPDIR` and the like: set by a site's Slurm and not here, the script would do something else.

    A script that asks whether the variable has a value does without.
    """
    known = {*re.findall(r"SLURM\w+", _program()), *_VARIABLES.values(), *_MEMORY_VARIABLES.values(), _ARRAY_STEP}
    known = known - _OF_EVERY_JOB | _environment(reading).keys()
    for number, line in logical_lines(text):
        told = reading.notes if only_prints(line) else reading.refused
        for name in dict.fromkeys(re.findall(r"\$(?:\{#?)?(SLURM\w*)(?!\w|:?[-+=?])", re.sub(r"\s#.*", "", line))):
            asked = rf"(?:\[|\btest)\s(?:[^\]\n]*\s)?(?:-[nz]\s+\"?\$\{{?|-v\s+){name}\b"
            if name not in known and not re.search(rf"\b{name}=|{asked}", text):
                told.append(f"line {number}: ${name}: it has no value here; set it in the script or by --export")


def _check_fields(fields: Mapping[str, Any], place: str) -> None:
    """Raises JobSpecError, with the place, for values that no job may have."""
    parse_spec({"run": "true"} | {name: value for name, value in fields.items() if name != "input"}, source=place)


def _told(error: JobSpecError) -> str:
    return f"{error} ({error.fix})" if error.fix else str(error)


def _add(reading: ForeignReading, own: ForeignReading) -> None:
    """Adds what was read of one option."""
    reading.notes += own.notes
    for name, value in own.fields.items():
        reading.fields[name] = {**reading.fields.get(name, {}), **value} if isinstance(value, dict) else value


# ------------------------------------------------------------------------------------------------ single options


def _environment(reading: ForeignReading) -> dict[str, str]:
    variables: dict[str, str] = reading.fields.setdefault("envs", {})
    return variables


def _limit(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    if given.value.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return
    seconds = slurm_seconds(given.value)
    if seconds is None:
        raise ValueError("no time such as 30, 2:00:00 or 1-12:00:00")
    if seconds:
        reading.fields.setdefault("limits", {})["max_runtime"] = f"{seconds}s"


def slurm_seconds(text: str) -> int | None:
    """Returns the seconds of MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS; None if it is none of these."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text, re.ASCII)
    if match is None:
        return None
    days, *rest = (None if part is None else int(part) for part in match.groups())
    first, second, third = rest[0] or 0, rest[1], rest[2]
    if days is not None or third is not None:
        return ((days or 0) * 24 + first) * 3600 + (second or 0) * 60 + (third or 0)
    return first * 60 + (second or 0)


_HOURS = {"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "": 1}
_DATES = (
    (r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})", ""),
    (r"(?P<m>\d{1,2})[/.](?P<d>\d{1,2})(?:[/.](?P<y>\d{2}|\d{4}))?", ""),
    (r"(?P<m>\d{2})(?P<d>\d{2})(?P<y>\d{2})", ""),
)


def slurm_instant(text: str, now: datetime) -> datetime:
    """Returns the instant of a time of Slurm, such as `now+2hours`, `16:00`, `tomorrow`, `2030-01-20T12:34:00`, local.

    Raises ValueError for a text that is none.
    """
    problem = ValueError("no time such as 16:00, tomorrow, now+2hours or 2030-01-20T12:34:00")
    later = re.fullmatch(r"now(?:\+(\d{1,9})(second|minute|hour|day|week|)s?)?", text.strip().lower(), re.ASCII)
    if later is not None:
        return now + timedelta(seconds=int(later[1] or 0) * _UNITS_S[later[2] or ""])
    day: datetime | None = None
    clock: timedelta | None = None
    dated_without_year = False
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    words = re.sub(r"(?<=\d)t(?=\d)", " ", text.strip().lower()).replace(" am", "am").replace(" pm", "pm").split()
    for word in words:
        if word in ("today", "tomorrow") and day is None:
            day = midnight + timedelta(days=word == "tomorrow")
        elif clock is None and (hours := _clock(word)) is not None:
            clock = hours
        elif day is None and (found := next((m for p, _ in _DATES if (m := re.fullmatch(p, word, re.ASCII))), None)):
            year = found["y"]
            dated_without_year = year is None
            number = midnight.year if year is None else int(year) + (2000 if len(year) == 2 else 0)
            try:
                day = datetime(number, int(found["m"]), int(found["d"]))  # noqa: DTZ001 - local, made aware below
            except ValueError:
                raise problem from None
        else:
            raise problem
    if not words:
        raise problem
    instant = ((day or midnight) + (clock or timedelta())).astimezone()
    if day is None and instant <= now:
        instant = (midnight + timedelta(days=1) + (clock or timedelta())).astimezone()
    if dated_without_year and day is not None and instant < now:
        instant = (day.replace(year=day.year + 1) + (clock or timedelta())).astimezone()
    return instant


def _clock(word: str) -> timedelta | None:
    if word in _HOURS:
        return timedelta(hours=_HOURS[word])
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?(am|pm)?", word, re.ASCII)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59 or int(match[3] or 0) > 59:
        return None
    hours = int(match[1])
    if match[4]:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + (12 if match[4] == "pm" else 0)
    return timedelta(hours=hours, minutes=int(match[2]), seconds=int(match[3] or 0))


def _begin(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    instant = slurm_instant(given.value, now)
    if instant > now:
        reading.fields["not_before"] = instant.isoformat(timespec="seconds")


def _array(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    text = re.sub(r"^(\d+)(%\d+)?$", r"\1-\1\2", given.value)
    try:
        parse_array(text)
    except ValueError as error:
        raise ValueError(f"the array {error}") from None
    reading.fields["array"] = text
    step = re.fullmatch(r"[^,:]*:(\d+)(?:%\d+)?", text)
    _environment(reading)[_ARRAY_STEP] = step[1] if step else "1"


def _dependency(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    if "?" in given.value:
        raise ValueError(
            "`?` (one of several conditions is enough) is not supported: only afterok or afterany, for all"
        )
    parts = [part.split(":") for part in given.value.split(",")]
    kinds, numbers = {part[0] for part in parts}, [number for part in parts for number in part[1:]]
    if len(kinds) != 1 or not kinds <= {"afterok", "afterany"} or not all(part[1:] for part in parts):
        raise ValueError("only afterok:JOB or afterany:JOB, and not both")
    if not all(re.fullmatch(r"[0-9]{1,18}", number, re.ASCII) for number in numbers):
        raise ValueError("only numbers of jobs of this scheduler, without _INDEX or +MINUTES, which are not supported")
    reading.fields["depends_on"] = [int(number) for number in numbers]
    if kinds == {"afterany"}:
        reading.fields["condition"] = "finished"


def _qos(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    if given.value.lower() not in _PRIORITIES:
        raise ValueError("no priority of that name; --sbatch=--qos=normal overrides it, or --qos=low or high")
    reading.fields["priority"] = _PRIORITIES[given.value.lower()]
    _environment(reading)["SLURM_JOB_QOS"] = given.value


#: A part of `--export`: a comma in quotes separates nothing, and the quotes stay.
_EXPORTED = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")


def _export(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    for part in _EXPORTED.findall(given.value):
        name, equals, value = part.partition("=")
        if part.upper() in ("ALL", "NONE", "NIL"):
            reading.notes.append(f"{given}: ranks have a short list of the machine's variables; name others with --env")
        elif equals or name in reading.variables:
            _environment(reading)[name] = value if equals else reading.variables[name]
        else:
            reading.notes.append(f"{given}: you have no variable {name[:40]}, so the job has none")


def _signal(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    match = re.fullmatch(r"(?:[BR]:)?(?:SIG)?(TERM|15)(?:@(\d{1,5}))?", given.value, re.ASCII)
    if match is None:
        before = re.search(r"@(\d{1,5})$", given.value, re.ASCII)
        raise ValueError(
            "only SIGTERM is sent, `grace_period` before a job is killed: have it save then, take this out, and give "
            f"--set grace_period={before[1] if before else 60}s"
        )
    reading.fields["grace_period"] = f"{match[2] or 60}s"


def _plain(name: str) -> Callable[[ForeignReading, GivenOption, datetime], None]:
    def take(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
        reading.fields[name] = given.value

    return take


def _account(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    if _products_in(given.value.partition("@")[2]):
        raise ValueError("what follows @ seems to mean a type, and machines are chosen by types here")
    reading.fields["project"] = _environment(reading)["SLURM_JOB_ACCOUNT"] = given.value


def _hold(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    reading.fields["hold"] = True


def _comment(reading: ForeignReading, given: GivenOption, now: datetime) -> None:
    reading.fields.setdefault("labels", {})["comment"] = given.value


_READERS: dict[str, Callable[[ForeignReading, GivenOption, datetime], None]] = {
    "time": _limit, "array": _array, "begin": _begin, "dependency": _dependency, "qos": _qos, "export": _export,
    "signal": _signal, "job-name": _plain("name"),
    "account": _account, "chdir": _plain("workdir"), "input": _plain("input"),
    "hold": _hold, "comment": _comment,
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ the gang

_GANG_OPTIONS = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "gres", "gpus", "gpus-per-node"}
    | {"gpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "constraint", "partition"}
    | {"distribution", "gpu-bind"}
)
#: Few machines have more accelerators.
_MOST_OF_A_MACHINE = 8
#: Bindings that `slurm_job.sh` obeys.
_BINDING = re.compile(
    r"(?:v(?:erbose)?,)?(?:none|closest|(?:per_task|single):[1-9]\d{0,3}|map_gpu:\d{1,3}(?:,\d{1,3})*)"
)
_GPUS = re.compile(
    r"(?:((?!-)[A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*|[0-9]{2,6}(?=:)))?(?::?([0-9]{1,5}))?", re.ASCII
)
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass
class _Asked:
    """Accelerators of one option: their type ("" if it names none) and their number."""

    accelerator: str
    count: int


class _Gang:
    """The options of a script that say what the job needs."""

    def __init__(self, reading: ForeignReading, given: dict[str, GivenOption]) -> None:
        self._reading, self._given = reading, given

    def read(self) -> None:
        """Adds the machines, accelerators, cores and memory to the fields, with Slurm's variables about them."""
        per_node = self._number("ntasks-per-node", 0)
        least = -(-self._number("ntasks", 1) // per_node) if per_node else 1
        nodes = self._number("nodes", least)
        tasks = self._number("ntasks", nodes * max(per_node, 1))
        types, each = self._accelerators(nodes, tasks)
        if "ntasks-per-gpu" in self._given and "ntasks" not in self._given:
            per_node = self._number("ntasks-per-gpu", 1) * max(each, 1)
            tasks = per_node * nodes
        if tasks < nodes:
            self._refuse("ntasks", f"{nodes} machines for {tasks} tasks; ask for as many machines as have tasks")
        elif tasks % nodes or (per_node and "ntasks" in self._given and tasks > nodes * per_node):
            self._refuse("ntasks", f"{nodes} machines cannot share {tasks} tasks evenly")
        self._judge_distribution(nodes, tasks)
        if each > _MOST_OF_A_MACHINE and "nodes" not in self._given:
            self._reading.notes.append(f"all {each} accelerators are to be on one machine; --nodes spreads them")
        fields, devices, here = self._reading.fields, max(each, 1), max(1, tasks // nodes)
        self._judge_binding(devices, here)
        if not each:
            self._reading.notes.append(NO_ACCELERATOR)
        fields["resources"] = {"accelerators": dict.fromkeys(types, devices * nodes)}
        if nodes > 1:
            fields["num_nodes"] = nodes
            self._reading.notes.append(
                f"it runs on each of the {nodes} machines, where Slurm runs it on the first; `srun` starts tasks on all"
            )
        fields["nproc_per_node"] = 1
        cpus = self._share_of_machine(devices, here)
        variables = _environment(self._reading)
        variables |= {"SLURM_TASKS_PER_NODE": str(here), "SLURM_CPUS_ON_NODE": str(max(cpus, here))}
        if self._given.keys() & {"ntasks", "ntasks-per-node", "ntasks-per-gpu"}:
            variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
        for name, variable in _VARIABLES.items():
            if name in self._given:
                variables[variable] = self._given[name].value

    def _judge_distribution(self, nodes: int, tasks: int) -> None:
        if (given := self._given.get("distribution")) is None:
            return
        if 1 < nodes < tasks and re.match("cyclic|plane|arbitrary", given.value):
            self._refuse("distribution", "each machine has a block of tasks here: ranks are counted machine by machine")
        else:
            self._reading.notes.append(f"{given}: {INSIDE}")

    def _judge_binding(self, devices: int, tasks_here: int) -> None:
        value = self._given["gpu-bind"].value if "gpu-bind" in self._given else "none"
        is_open = value.endswith("closest") and devices > 1 and tasks_here > 1 and "gpus-per-task" not in self._given
        if is_open or _BINDING.fullmatch(value) is None:
            self._refuse("gpu-bind", "not understood here; --gpus-per-task=N gives each task its own, none all to all")

    def _refuse(self, name: str, why: str) -> None:
        given = self._given.get(name)
        self._reading.refused.append(f"{given if given is not None else f'--{name}'}: {why}")

    def _number(self, name: str, default: int) -> int:
        if name not in self._given:
            return default
        first, dash, last = self._given[name].value.partition("-")
        if not re.fullmatch(r"\d{1,6}", first, re.ASCII) or (dash and last != first) or int(first) < 1:
            self._refuse(name, "no whole number from 1; a job has one size" if dash else "no whole number from 1")
            return max(default, 1)
        return int(first)

    def _accelerators(self, nodes: int, tasks: int) -> tuple[list[str], int]:
        """Returns the types, one of which will do, and how many accelerators a machine has; 0: none was asked for."""
        asked = dict[str, tuple[str, float]]()
        per = {"gres": 1.0, "gpus-per-node": 1.0, "gpus": 1 / nodes, "gpus-per-task": tasks / nodes}
        for name, factor in per.items():
            if name in self._given and (found := self._asked(name)) is not None:
                asked[name] = (found.accelerator, found.count * factor)
        named = {accelerator.lower() for accelerator, _ in asked.values() if accelerator}
        counts = {count for _, count in asked.values()}
        for name in asked if len(counts) > 1 or len(named) > 1 else ():
            self._refuse(name, "other options say another number or type of accelerators")
            break
        each = max(counts, default=0.0)
        if not float(round(each, 6)).is_integer():
            self._refuse(next(iter(asked)), f"{nodes} machines cannot share them evenly")
        return self._types(named), round(each)

    def _asked(self, name: str) -> _Asked | None:
        value = self._given[name].value
        found = list[_Asked]()
        for part in value.split(","):
            text = part.strip()
            if name == "gres":
                kind, _, text = text.removeprefix("gres:").removeprefix("gres/").partition(":")
                if kind == "none":
                    continue
                if kind != "gpu":
                    self._refuse(name, f"{kind[:40]!r} is nothing that machines here have; write such as gpu:a100:4")
                    return None
            match = _GPUS.fullmatch(text)
            if match is None or (name != "gres" and match[2] is None):
                self._refuse(name, "not understood; write such as --gres=gpu:a100:4 or --gpus=a100:4")
                return None
            try:
                canonical_accelerator(match[1] or "gpu")
            except ValueError as error:
                self._refuse(name, str(error))
                return None
            found.append(_Asked(match[1] or "", int(match[2] or 1)))
        if len(found) > 1:
            self._refuse(name, "a gang has accelerators of one type; name types that would do in a job file")
            return None
        return found[0] if found else None

    def _types(self, named: set[str]) -> list[str]:
        """Returns the types that would do: those named, or those of `--constraint`; else any."""
        types = sorted(map(canonical_accelerator, named))
        given = self._given.get("constraint")
        if given is not None:
            features = [_type_of_feature(each) for each in given.value.strip().strip("[]()").split("|")]
            meant = [each for each in features if not types or covers(types[0], each)]
            if not all(features):
                self._refuse("constraint", "no list of accelerator types, such as 'a100|h100'")
            elif not meant and not any(covers(each, types[0]) for each in features):
                self._refuse("constraint", f"it excludes the type of --gres or --gpus: {types[0]}")
            else:
                types = list(dict.fromkeys(meant)) or types
        if (partition := self._given.get("partition")) is not None:
            self._reading.fields.setdefault("labels", {})["partition"] = partition.value
            if types:
                self._reading.notes.append(
                    f"{partition}: the type chooses the machines; it became the label `partition`"
                )
            elif kinds := _products_in(partition.value):
                why = "it seems to mean a type, and machines are chosen by types here"
                self._refuse("partition", f"{why}; write such as --gres=gpu:{kinds[0]}:1")
            else:
                self._reading.notes.append(
                    f"{partition}: any machine will do; name an accelerator type, or pools in `resources.pools`: it "
                    "became the label `partition`"
                )
        return types or ["any"]

    def _share_of_machine(self, devices: int, tasks_here: int) -> int:
        """Sets cores and memory for each accelerator; returns the cores of the job on a machine."""
        for names in _ONE_OF:
            for name in [name for name in names if name in self._given][1:]:
                self._refuse(name, f"Slurm takes one of --{', --'.join(names)}")
        resources = self._reading.fields["resources"]
        cpus = tasks_here * self._number("cpus-per-task", 1)
        if "cpus-per-gpu" in self._given:
            cpus = self._number("cpus-per-gpu", 1) * devices
        if self._given.keys() & {"cpus-per-task", "cpus-per-gpu"}:
            resources["cpus"] = cpus / devices
        for name, parts in (("mem", 1.0 / devices), ("mem-per-gpu", 1.0), ("mem-per-cpu", cpus / devices)):
            if name not in self._given:
                continue
            match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", self._given[name].value, re.IGNORECASE | re.ASCII)
            if match is None:
                self._refuse(name, "no size such as 32G")
            elif size := int(match[1]) * _UNITS[match[2].upper()]:
                resources["memory"] = f"{round(size * parts)}B"
                _environment(self._reading)[_MEMORY_VARIABLES[name]] = str(size // 2**20)
            else:
                self._reading.notes.append(f"{self._given[name]}: the rest of a machine's memory is nobody's own here")
        return cpus


_ARRAY_STEP = "SLURM_ARRAY_TASK_STEP"
_MEMORY_VARIABLES = {
    "mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU",
}  # fmt: skip
#: Options that exclude each other.
_ONE_OF = (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu"))
#: Variables that Slurm sets only where the option is given.
_VARIABLES = {
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE", "cpus-per-task": "SLURM_CPUS_PER_TASK", "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "gpu-bind": "SLURM_GPU_BIND",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU", "partition": "SLURM_JOB_PARTITION",
}  # fmt: skip
