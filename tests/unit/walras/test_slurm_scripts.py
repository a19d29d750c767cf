"""`#SBATCH` lines: read into fields, noted or refused; their words, their times, and the script that runs."""

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.debian_packages import unpacked
from walras.cli.job_files import read_job_file
from walras.errors import JobSpecError
from walras.spec.job_spec import JobSpec
from walras.spec.shell_scripts import interpreter_of
from walras.spec.slurm_requests import SLURM_OPTIONS, Takes, commands_of, words_of_line
from walras.spec.slurm_scripts import slurm_instant, slurm_job, slurm_seconds
from walras.spec.spec_request import argv_of

TYPICAL = """#!/bin/bash
#SBATCH --job-name=resnet      # a comment
#SBATCH -t 1-12:30:00
#SBATCH --nodes=2 --ntasks-per-node=4
#SBATCH --gres=gpu:a100-40gb:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH -a 1-20%4
#SBATCH --dependency=afterany:12:13
#SBATCH -o logs/%x-%j.out
#SBATCH -p long
#SBATCH --qos=high
#SBATCH --mail-type=END
##SBATCH --nice
srun python train.py --fold $SLURM_ARRAY_TASK_ID
"""


def read(folder: Path, text: str, **more: Any) -> JobSpec:
    (folder / "job.sbatch").write_text(text)
    return read_job_file(str(folder / "job.sbatch"), [], [], [], **more)


def test_a_typical_script_is_read_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = read(tmp_path, TYPICAL)
    (demand,) = spec.resources.accelerators
    assert (spec.name, spec.limits.max_runtime, spec.priority) == ("resnet", 131_400.0, 80)
    assert (demand.accelerator, demand.count, spec.num_nodes, spec.nproc_per_node) == ("a100-40gb", 8, 2, 1)
    assert (spec.resources.cpus, spec.resources.memory) == (8.0, 64 * 2**30)
    assert (spec.array, spec.depends_on, spec.condition) == ("1-20%4", (12, 13), "finished")
    assert (spec.labels, spec.hold, spec.workdir) == ({"partition": "long"}, False, ".")
    notes = capsys.readouterr().err
    for told in (
        "line 10: --output=logs/%x-%j.out: `walras logs",
        "--partition=long",
        "line 13: --mail-type=END",
        "runs on each of the 2 machines",
    ):
        assert told in notes
    assert len(notes.splitlines()) == 4, notes


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--dependency=afterok:12?afterany:13", "`?` (one of several conditions is enough) is not supported"),
        ("--dependency=afterok:12_3", "without _INDEX or +MINUTES"),
        ("--dependency=after:12", "only afterok:JOB or afterany:JOB, and not both"),
        ("--signal=USR1@120", "take this out, and give --set grace_period=120s"),
    ],
)
def test_a_refusal_names_what_is_not_supported_and_all_of_its_remedy(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        read(tmp_path, f"#!/bin/bash\n#SBATCH {line}\ntrue\n")
    assert told in str(refused.value)


def test_what_is_refused_is_listed_and_lenient_goes_on_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TYPICAL.replace("--qos=high", "--exclusive --begin=soon")
    with pytest.raises(JobSpecError) as refused:
        read(tmp_path, text)
    assert [line.split(": ")[1:3] for line in str(refused.value).splitlines()] == [
        ["line 12", "--exclusive"],
        ["line 12", "--begin=soon"],
    ]
    assert "--lenient" in str(refused.value.fix)
    spec = read(tmp_path, text, strict=False)
    assert spec.not_before is None
    assert "line 12: --exclusive" in capsys.readouterr().err


def test_times_are_slurms() -> None:
    written = {"30": 1800, "2:30": 150, "1:00:00": 3600, "1-0": 86_400, "1-2:30": 95_400, "2-00:00:01": 172_801}
    assert {text: slurm_seconds(text) for text in written} == written
    assert [slurm_seconds(text) for text in ("", "x", "1:2:3:4", "-5")] == [None] * 4


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """The afternoon of a day in November, an hour ahead of Greenwich; summer is two."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield datetime(2026, 11, 28, 15, 30).astimezone()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("now", "2026-11-28T15:30:00+01:00"), ("now+90", "2026-11-28T15:31:30+01:00"),
        ("now+2hours", "2026-11-28T17:30:00+01:00"), ("now+1day", "2026-11-29T15:30:00+01:00"),
        ("16:00", "2026-11-28T16:00:00+01:00"), ("15:00", "2026-11-29T15:00:00+01:00"),
        ("4:05:06pm", "2026-11-28T16:05:06+01:00"), ("midnight", "2026-11-29T00:00:00+01:00"),
        ("12:30am", "2026-11-29T00:30:00+01:00"), ("12:30pm", "2026-11-29T12:30:00+01:00"),
        ("teatime", "2026-11-28T16:00:00+01:00"), ("noon tomorrow", "2026-11-29T12:00:00+01:00"),
        ("tomorrow", "2026-11-29T00:00:00+01:00"), ("2027-07-01", "2027-07-01T00:00:00+02:00"),
        ("2030-01-20T12:34:00", "2030-01-20T12:34:00+01:00"), ("12/24/26", "2026-12-24T00:00:00+01:00"),
        ("16:00 01/02", "2027-01-02T16:00:00+01:00"), ("010227", "2027-01-02T00:00:00+01:00"),
    ],
)  # fmt: skip
def test_begin_has_slurms_forms(text: str, instant: str, berlin: datetime) -> None:
    assert slurm_instant(text, berlin).isoformat() == instant


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2027-13-01", "now-5", "1:00 2:00", "13:00pm", "now+"])
def test_what_is_no_time_is_refused(text: str, berlin: datetime) -> None:
    with pytest.raises(ValueError, match="no time such as"):
        slurm_instant(text, berlin)


@pytest.mark.parametrize(
    ("body", "noted"),
    [
        ("train --lr $LR", True), ("train ${LR:-3} $HOME", True), ("LR=1; train $LR", False),
        ("for LR in 1 2; do train $LR; done", False), ("#SBATCH --export=LR\ntrain $LR", False), ("train $HOME", False),
        ("#SBATCH --export=ALL\ntrain $LR", True), ("#SBATCH --export=ALL,LR=3\ntrain $LR", False),
        ("#SBATCH --export=NONE\ntrain $LR", False),
    ],
)  # fmt: skip
def test_a_variable_of_the_submitter_that_stays_behind_is_named(body: str, noted: bool) -> None:
    """`LR=0.1 sbatch job.sh`: sbatch sends the whole environment."""
    _, reading = slurm_job(
        f"#!/bin/bash\n#SBATCH -n1\n{body}\n",
        "job.sh",
        None,
        datetime.now().astimezone(),
        variables={"LR": "1", "HOME": "/"},
    )
    assert [each for each in reading.notes if each.startswith("$")] == (
        ["$LR: your value stays behind; --env LR or --export=LR sends it"] if noted else []
    )


def test_variables_of_sbatch_stand_between_the_script_and_the_command_line() -> None:
    variables = {"SBATCH_TIMELIMIT": "30", "SBATCH_GRES": "gpu:a100:2", "SBATCH_RESERVATION": "ours", "SBATCH_X": "1"}
    script = "#!/bin/bash\n#SBATCH --time=10 --gres=gpu:1\ntrue\n"
    _, reading = slurm_job(
        script, "j", ["--gres=gpu:4"], datetime.now().astimezone(), variables=variables, lenient=True
    )
    assert reading.fields["limits"] == {"max_runtime": "1800s"}
    assert reading.fields["resources"]["accelerators"] == {"any": 4}
    assert [each.partition(": no machine")[0] for each in reading.refused] == [
        "your variable SBATCH_RESERVATION: --reservation=ours"
    ]
    _, reading = slurm_job("#!/bin/sh\ntrue\n", "j", None, datetime.now().astimezone(), variables=variables)
    assert reading.fields == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" -J a  --time=5 # c", ["-J", "a", "--time=5"]),
        (" --comment='a b' x", ["--comment=a b", "x"]),
        (r' "a \"b" c\ d', ['a "b', "c", "d"]),
        (" a#b c", ["a"]),
        (" 'a#b'\"c\"", ["a#bc"]),
        ("\t\t", []),
    ],
)
def test_words_are_slurms(line: str, words: list[str]) -> None:
    assert words_of_line(line) == words


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/bin/bash -e", ("/bin/bash", "-e")),
        ("#! /bin/bash   -e -u ", ("/bin/bash", "-e -u")),
        ("#!/usr/bin/env -S bash -l", ("/usr/bin/env", "-S bash -l")),
        ("echo", ("bash",)),
        ("#!", ("bash",)),
    ],
)
def test_the_first_line_is_the_kernels(first: str, interpreter: tuple[str, ...]) -> None:
    assert interpreter_of(f"{first}\ntrue\n") == interpreter


def test_a_plain_script_obeys_its_first_line_and_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("#!/bin/bash -e\necho $LINENO $1\nfalse\necho went on\n")
    spec = read_job_file(str(tmp_path / "plain.sh"), ["word"], [], [])
    done = subprocess.run(argv_of(spec), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "2 word\n")


def test_commands_are_found_where_a_shell_would_run_them() -> None:
    script = (
        "# sbatch no\nif sbatch a; then x=$(squeue -h); fi\necho 'sbatch no' \\\n  sbatch no\n"
        "cat <<EOF\nsbatch no\nEOF\nA=1 time -p timeout 5 srun -n 2 x | tee y && env B=2 nice -n 3 /usr/bin/scancel 4\n"
    )
    found = [(number, words[0].rpartition("/")[2]) for number, words in commands_of(script)]
    assert [each for each in found if each[1] in ("sbatch", "squeue", "srun", "scancel")] == [
        (2, "sbatch"), (2, "squeue"), (8, "srun"), (8, "scancel"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        'echo "usage:\nsbatch job.sh\n" done\n', "NAMES=(sbatch scancel)\n", "python -c 'x = 1\nscancel = \"2\"\n'\n",
        "cat <<-'EOF'\n\tsbatch no\n\tEOF\n", "echo it\\'s\n# don't sbatch\n", "true # don't\necho 'a' # sbatch\n",
        "# scancel \\\n", "case $1 in a|sbatch) echo ;; (scancel) ;; *) case $2 in (b | sbatch) esac; esac\n",
        "case $1 in\n  (a) echo ;;\n  scancel | sbatch)\n  echo ;;&\n  sbatch) ;; esac\n",
    ],
)  # fmt: skip
def test_what_is_no_command_is_none(text: str) -> None:
    """Lines inside quotes, elements of an array, and patterns of a `case`; what comes behind them is one."""
    found = [(number, words[0]) for number, words in commands_of(f"{text}sbatch x\n")]
    assert [each for each in found if each[1] in ("sbatch", "scancel")] == [(text.count("\n") + 1, "sbatch")]


@pytest.mark.parametrize(
    "before", ["if true; then", "else", "while true; do", "until", "!", "{", "time", "(", "true ||", "exec", "nohup"]
)
def test_a_command_is_found_behind_words_of_the_shell(before: str) -> None:
    assert (1, ["sbatch", "x"]) in list(commands_of(f"{before} sbatch x\n"))


def test_a_quotation_mark_that_nothing_closes_hides_no_command() -> None:
    assert (2, ["sbatch", "x"]) in list(commands_of("echo it's\nsbatch x\n"))


@pytest.mark.parametrize("command", ["sbatch", "srun"])
def test_the_table_is_the_one_of_real_slurm(command: str, tmp_path: Path) -> None:
    """What its own reader of options says: each option of ours that it knows has a value where ours has one."""
    programs = unpacked("slurm")
    libraries = programs / "usr/lib/x86_64-linux-gnu"
    (tmp_path / "slurm.conf").write_text(
        f"ClusterName=t\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        f"PluginDir={libraries}/slurm-wlm\nNodeName=a NodeHostname=localhost\nPartitionName=m Nodes=ALL Default=YES\n"
    )
    env = {
        "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm", "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "PATH": os.environ["PATH"],
    }  # fmt: skip

    def says(*words: str) -> str:
        line = [programs / "usr/bin" / command, *words]
        done = subprocess.run(
            line, env=env, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False
        )
        return done.stderr

    unlike, newer = list[str](), set[str]()
    for row in SLURM_OPTIONS[command]:
        alone = says(f"--{row.name}")
        if "unrecognized option" in alone:
            newer.add(row.name)
            continue
        # A trailing unknown option keeps it from doing anything.
        joined = says(f"--{row.name}=1", "--no-such-option")
        takes = Takes.VALUE if "requires an argument" in alone else Takes.JOINED
        takes = Takes.NOTHING if "doesn't allow an argument" in joined else takes
        if takes is not row.takes:
            unlike.append(f"{row.name}: {takes}")
    assert unlike == []
    assert newer <= {
        "container-id", "extra", "oom-kill-step", "resv-ports", "segment", "stepmgr", "tres-bind", "tres-per-task",
        "batch", "external-launcher",
    }  # fmt: skip
