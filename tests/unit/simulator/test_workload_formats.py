"""Reading traces of every format, and saying exactly what is wrong with a bad one. All fixtures are made up here."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.workloads import trace_source
from simulator.workloads.formats import FORMATS, read_trace
from simulator.workloads.trace_binding import read_throughput_table
from simulator.workloads.trace_source import ReadOptions, TraceJob
from walras.errors import ConfigError, UserError

SHOCKWAVE = "LM (batch size 10)\tpython main.py\tlm\t--steps\t1\t1000\t2\t{mode}\t1\t-1.0\t140\t5\n"
PHILLY = "job_id,user,submit_time_s,num_gpus,duration_s,status,gpu_type,cluster\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
ELASTIC = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
ARENA = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,gpu_type\n"
ARENA_BROUGHT = "job_id,submit_time_s,model,params,batch_size,num_gpus,gpu_type,iterations_in_file,deadline_s\n"
SWF = "; Computer: made up\n\n 1 0 5 100 4 -1 -1 8 600 -1 1 3 2 7 1 -1 -1 -1\n"


def _read(
    folder: Path, name: str, text: str, format: str | None = None, reading: ReadOptions | None = None
) -> list[TraceJob]:
    path = folder / name
    path.write_text(text)
    return list(read_trace(path, format, reading).jobs)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        # Twelve columns tell it from Gavel's ten; mode is who changes the batch, the batch stands in the name.
        ("t.tsv", SHOCKWAVE.format(mode="gns"), TraceJob(
            5.0, "0", "LM (batch size 10)", 2, steps=1000.0, duration_s=140.0, duration_on="v100", batch=10,
            batch_rule="gns",
        )),
        # A tenant is a project; without a model all jobs are of one kind.
        ("t.csv", PHILLY + "p-0,7f04ca,12,8,3600.5,,P100,philly\n",
         TraceJob(12.0, "p-0", "any", 8, types=("p100",), duration_s=3600.5, project="7f04ca")),
        # The application is the kind; nobody says how long it takes.
        ("t.csv", POLLUX + "bert-2,811.66,bert,12,384\n", TraceJob(811.66, "bert-2", "bert", 12, batch=384)),
        # The deadline is an instant, and none for a best-effort job.
        ("t.csv", ELASTIC + "0,10,500,vgg,90,64,2,40,0\n", TraceJob(
            10.0, "0", "vgg (batch size 64)", 2, steps=500.0, duration_s=40.0, deadline_at=90.0, batch=64
        )),
        ("t.csv", ELASTIC + "1,10,500,vgg,90,64,2,40,1\n", TraceJob(
            10.0, "1", "vgg (batch size 64)", 2, steps=500.0, duration_s=40.0, batch=64
        )),
        # Comments are passed over; what was requested counts, and the requested time is the user's estimate.
        ("t.swf", SWF, TraceJob(
            0.0, "1", "executable-7", 8, duration_s=100.0, estimate_s=600.0, user="user-3", project="group-2"
        )),
        # -1 stands for what is not known: then allocated processors count, and there is no estimate.
        ("t.swf", "7 3 5 100 4 -1 -1 -1 -1 -1 1 -1 -1 -1 1 -1 -1 -1\n", TraceJob(3.0, "7", "any", 4, duration_s=100.0)),
    ],
)  # fmt: skip
def test_a_row_of_a_format_is_the_job_that_it_states(tmp_path: Path, name: str, text: str, told: TraceJob) -> None:
    assert _read(tmp_path, name, text) == [told]


def test_a_philly_row_with_a_model(tmp_path: Path) -> None:
    """Model and batch make the kind as Gavel's tables name it; CPUs and memory are per accelerator."""
    header = PHILLY.strip() + ",model,batch_size,total_steps,cpu,mem_gib\n"
    (job,) = _read(tmp_path, "t.csv", header + "a,u,0,2,,,,c,LM,10,500,12,8\n")
    assert (job.kind, job.batch, job.steps, job.duration_s) == ("LM (batch size 10)", 10, 500.0, None)
    assert (job.cpus, job.memory_bytes) == (6.0, 4 * 2**30)


def test_one_of_several_traces_in_a_file(tmp_path: Path) -> None:
    """A file of several needs the name of one; without it nothing is mixed."""
    text = PHILLY + "a,u,5,1,60,,,east\na,u,0,1,60,,,west\nb,u,1,1,60,,,west\n"
    with pytest.raises(ConfigError, match=r"t\.csv:3: several traces in one file \('east', 'west'\)") as caught:
        _read(tmp_path, "t.csv", text)
    assert caught.value.fix == "choose one: --set only=east"
    assert [job.name for job in _read(tmp_path, "t.csv", text, reading=ReadOptions(only="west"))] == ["a", "b"]
    with pytest.raises(ConfigError, match="no job of 'south'"):
        _read(tmp_path, "t.csv", text, reading=ReadOptions(only="south"))


def test_an_openb_row(tmp_path: Path) -> None:
    """It runs from its scheduling to its deletion; types are separated by bars; a part of a GPU is a whole one."""
    text = (
        OPENB + "p-1,6000,12288,2,1000,V100M16|V100M32,LS,Succeeded,10,110,30\np-2,1000,1024,1,460,,BE,Failed,20,50,\n"
    )
    first, second = _read(tmp_path, "openb_pod_list.csv", text)
    assert (first.types, first.duration_s, first.gang) == (("v100m16", "v100m32"), 80.0, 2)
    assert (first.cpus, first.memory_bytes, first.project) == (3.0, 6 * 2**30, "LS")
    assert (second.duration_s, second.gang, second.types) == (30.0, 1, ())


def test_a_part_of_a_gpu_is_some_of_its_slices(tmp_path: Path) -> None:
    """With seven to a GPU: .46 of one is four, what fills slices exactly is no more, and two GPUs are fourteen."""
    rows = (
        "a,6000,14336,2,1000,,LS,Succeeded,10,110,30",
        "b,1000,1024,1,460,,BE,Failed,20,50,",
        "c,1000,7168,1,1000,,BE,Failed,20,50,",
    )
    path = tmp_path / "openb_pod_list.csv"
    path.write_text(OPENB + "\n".join(rows) + "\n")
    jobs = read_trace(path, reading=ReadOptions(slices=7)).jobs
    assert [job.gang for job in jobs] == [14, 4, 7]
    assert (jobs[1].cpus, jobs[2].memory_bytes) == (0.25, 2**30)
    with pytest.raises(ConfigError, match="slices"):
        read_trace(path, reading=ReadOptions(slices=0))
    philly = tmp_path / "philly.csv"
    philly.write_text("job_id,submit_time_s,num_gpus,duration_s\n1,0,1,10\n")
    with pytest.raises(ConfigError, match="slices of a GPU in the format philly"):
        read_trace(philly, format="philly", reading=ReadOptions(slices=7))


GFS = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"


def test_a_gfs_row(tmp_path: Path) -> None:
    """Workers' parts are rounded each; high priority runs to its end, spot makes way."""
    path = tmp_path / "job_info_df.csv"
    path.write_text(GFS + "7,13,A10,20.0,2.0,3,0.0,500.5,HP\n8,57,A100-SXM4-80GB,15,0.5,4,60,90,Spot\n")
    first, second = read_trace(path).jobs
    assert first == TraceJob(
        0.0, "7", "any", 6, ("a10",), duration_s=500.5, project="13", priority=80, preemptible=False, cpus=10.0
    )
    assert (second.types, second.gang, second.cpus) == (("a100-80gb",), 4, 15.0)
    assert (second.priority, second.preemptible) == (20, True)
    sliced = read_trace(path, reading=ReadOptions(slices=4)).jobs
    assert [job.gang for job in sliced] == [24, 8]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("8,57,A10,15,0,4,60,90,Spot", "gpu_request"), ("8,57,A10,15,-1,4,60,90,Spot", "gpu_request"),
        ("8,57,A10,15,nan,4,60,90,Spot", "gpu_request"), ("8,57,A10,15,1,0,60,90,Spot", "worker_num"),
        ("8,57,A10,15,1000,100000,60,90,Spot", "worker_num"), ("8,57,A10,15,1,4,60,0,Spot", "duration"),
        ("8,57,A10,15,1,4,60,90,Best effort", "job_type"), ("8,57,A10,-2,1,4,60,90,HP", "cpu_request"),
    ],
)  # fmt: skip
def test_a_gfs_row_that_means_nothing_is_named(tmp_path: Path, row: str, column: str) -> None:
    path = tmp_path / "job_info_df.csv"
    path.write_text(GFS + row + "\n")
    with pytest.raises(ConfigError, match=column) as error:
        read_trace(path)
    assert ":2" in str(error.value)


def test_an_arena_row(tmp_path: Path) -> None:
    """Instants count from the first job, also where another form has them so already."""
    published = (
        ARENA + "f-1,1945645,119965,bert__2.6B,1956739,256,4,a40\nf-2,1945785,284,bert__760M,1965355,128,1,v100\n"
    )
    first, second = _read(tmp_path, "t.csv", published)
    assert first == TraceJob(
        0.0, "f-1", "bert 2.6B (batch size 256)", 4, ("a40",), steps=119965.0, deadline_at=11094.0, batch=256
    )
    assert (second.at, second.deadline_at) == (140.0, 19710.0)
    brought = ARENA_BROUGHT + "f-2,140,bert,760M,128,1,v100,284,19710\n"
    assert _read(tmp_path, "b.csv", brought) == [second]


def test_a_workload_file_can_be_read_as_a_trace(tmp_path: Path) -> None:
    text = (
        "jobs:\n- {at: 20s, job: {name: b, run: x, resources: {accelerators: 'a100:2'}}}\n- {at: 0s, job: {run: x}}\n"
    )
    first, second = _read(tmp_path, "w.yaml", text)
    assert (first.at, second.at, second.gang, second.types) == (0.0, 20.0, 2, ("a100",))


# ------------------------------------------------------------------------------------------------ what is wrong

BAD = [
    ("t.csv", ARENA.replace("deadline", "due") + "f,1,2,bert__2.6B,3,256,4,a40\n", r"no column deadline"),
    ("t.csv", ARENA + "f,5,2,bert__2.6B,5,256,4,a40\n", r"t\.csv:2: deadline is '5'"),
    ("t.csv", ARENA + "f,5,2,bert__2.6B,9,256,4,a40\ng,4,2,bert__2.6B,9,256,4,a40\n", r"submission_time is '4'"),
    ("t.tsv", SHOCKWAVE.format(mode="magic"), r"t\.tsv:1: mode is 'magic'"),
    ("t.csv", PHILLY + "a,u,0,0,60,,,c\n", r"t\.csv:2: num_gpus is '0'"),
    ("t.csv", PHILLY + "a,u,0,-4,60,,,c\n", r"num_gpus is '-4'"),
    ("t.csv", PHILLY + "a,u,0,99999999,60,,,c\n", r"num_gpus is '99999999'"),
    ("t.csv", PHILLY + "a,u,0,2.5,60,,,c\n", r"num_gpus is '2\.5'"),
    ("t.csv", PHILLY + "a,u,-1,1,60,,,c\n", r"submit_time_s is '-1'"),
    ("t.csv", PHILLY + "a,u,0,1,0.0,,,c\n", r"duration_s is '0\.0'"),
    ("t.csv", PHILLY + "a,u,0,1,,,,c\n", r"duration_s is empty"),
    ("t.csv", PHILLY + "a,u,nan,1,60,,,c\n", r"submit_time_s is 'nan'"),
    ("t.csv", PHILLY + "a,u,1_0,1,60,,,c\n", r"submit_time_s is '1_0'"),
    ("t.csv", PHILLY + "a,u,1e300,1,60,,,c\n", r"submit_time_s is '1e300'"),
    ("t.csv", PHILLY + ",u,0,1,60,,,c\n", r"job_id is empty"),
    ("t.csv", PHILLY + "a,u,0,1,60,,../x,c\n", r"gpu_type '\.\./x' is not an accelerator type"),
    ("t.csv", PHILLY + "a\x1b[2J,u,0,1,60,,,c\n", r"job_id has the character '\\x1b'"),
    ("t.csv", PHILLY + "a" * 201 + ",u,0,1,60,,,c\n", r"job_id has 201 characters"),
    ("t.csv", PHILLY + "a,u,0,1,60\n", r"t\.csv:2: 5 columns, 8 expected"),
    ("t.csv", PHILLY + '"a,u,0,1,60,,,c\n', r"t\.csv:2: unexpected end of data"),
    ("t.csv", PHILLY + "\n", r"t\.csv:2: an empty line"),
    ("t.csv", PHILLY + "a,u,0,1,60,,,c\na,u,1,1,60,,,c\n", r"t\.csv:3: a second job 'a'"),
    (
        "t.csv",
        PHILLY + "a,u,7,1,60,,,c\nb,u,6,1,60,,,c\n",
        r"t\.csv:3: arrives at 6 s, before the row above it \(7 s\)",
    ),
    ("t.csv", PHILLY, "no job can be read in it"),
    ("t.csv", POLLUX + "a,0,bert,1,0\n", r"batch_size is '0'"),
    ("t.csv", ELASTIC + "0,10,500,vgg,10,64,2,40,0\n", r"ddl is '10'"),
    ("t.csv", OPENB + "p,1000,1024,0,0,,LS,Running,0,10,\n", r"num_gpu is '0'"),
    ("t.csv", OPENB + "p,1000,1024,1,500,,LS,Running,10,10,\n", r"deletion_time is '10'"),
    ("t.csv", OPENB + "p,1000,1024,1,500,,LS,Running,10,20,5\n", r"scheduled_time is '5'"),
    ("t.swf", "1 0 5 -1 4 -1 -1 8 600 -1 5 3 2 7 1 -1 -1 -1\n", r"t\.swf:1: run_time is '-1'"),
    ("t.swf", "1 0 5 9 -1 -1 -1 -1 600 -1 5 3 2 7 1 -1 -1 -1\n", r"allocated_processors is '-1'"),
    ("t.swf", "1 2 3\n", r"t\.swf:1: 3 columns, 18 expected"),
    ("t.csv", "a,b,c\n1,2,3\n", "in no format that is known"),
    ("t.xlsx", "x", "in no format that is known"),
]


@pytest.mark.parametrize(("name", "text", "complaint"), BAD)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _read(tmp_path, name, text)


def test_missing_and_doubled_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column duration_s; there are job_id, submit_time_s, num_gpus"):
        _read(tmp_path, "t.csv", "job_id,submit_time_s,num_gpus\n", "philly")
    with pytest.raises(ConfigError, match="two columns 'job_id'"):
        _read(tmp_path, "t.csv", "job_id,job_id,submit_time_s,num_gpus,duration_s\n", "philly")
    with pytest.raises(ConfigError, match=r"t\.csv:1: unexpected end of data"):
        _read(tmp_path, "t.csv", '"job_id\n', "philly")
    with pytest.raises(ConfigError, match="no header"):
        _read(tmp_path, "t.csv", "", "philly")


def test_an_unknown_format_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trace format 'phily'") as caught:
        _read(tmp_path, "t.csv", PHILLY, "phily")
    assert caught.value.fix == "did you mean 'philly'?"


# ------------------------------------------------------------------------------------------------ explicit choices


def test_bad_rows_are_skipped_only_when_asked_and_then_counted(tmp_path: Path) -> None:
    """The first few complaints are kept; a duplicate and a row out of order count as bad."""
    path = tmp_path / "t.csv"
    path.write_text(
        PHILLY + "a,u,5,1,60,,,c\n" + "b,u,5,0,60,,,c\n" * 7 + "a,u,6,1,9,,,c\nc,u,1,1,9,,,c\nd,u,7,1,9,,,c\n"
    )
    trace = read_trace(path, reading=ReadOptions(skip_bad_rows=True))
    assert [job.name for job in trace.jobs] == ["a", "d"]
    assert trace.skipped.count == 9
    assert len(trace.skipped.first) == 5
    assert trace.skipped.first[0].endswith("t.csv:3: num_gpus is '0'")


def test_rows_are_sorted_only_when_asked(tmp_path: Path) -> None:
    text = PHILLY + "a,u,7,1,60,,,c\nb,u,6,1,60,,,c\nc,u,6,1,60,,,c\n"
    assert [job.name for job in _read(tmp_path, "t.csv", text, reading=ReadOptions(sort=True))] == ["b", "c", "a"]


# ------------------------------------------------------------------------------------------------ files from strangers


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    """By what they are, not by what they are called; a byte order mark does no harm."""
    text = "\ufeff" + PHILLY + "a,u,7,1,60,,,c\r\n"
    for name in ("t.csv", "t.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert [job.at for job in read_trace(tmp_path / name).jobs] == [7.0]


@pytest.mark.parametrize(("kept", "where"), [(-2000, r"after line \d+"), (12, "in its first line")])
def test_a_packed_file_that_is_broken_off_is_named(tmp_path: Path, kept: int, where: str) -> None:
    rows = "".join(f"a{number},u,7,1,{number + 1},,,c\n" for number in range(5000))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((PHILLY + rows).encode())[:kept])
    with pytest.raises(ConfigError, match=rf"t\.csv\.gz: broken off {where}"):
        read_trace(tmp_path / "t.csv.gz")


def test_a_packed_table_of_speeds_that_is_broken_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "speeds.json").write_bytes(gzip.compress(b'{"v100": {}}')[:-4])
    with pytest.raises(ConfigError, match=r"speeds\.json: broken off"):
        read_throughput_table(tmp_path / "speeds.json")


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way, not after it has filled the memory; so is one with too many jobs."""
    rows = "".join(f"a{number},u,7,1,60,,,c\n" for number in range(200))
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((PHILLY + rows).encode()))
    monkeypatch.setattr(trace_source, "MAX_JOBS", 100)
    with pytest.raises(ConfigError, match="more than 100 jobs"):
        read_trace(path)
    monkeypatch.setattr(trace_source, "MAX_CHARACTERS", 1000)
    with pytest.raises(ConfigError, match="more than 1,000 characters"):
        read_trace(path)


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv:2: more than 65536 characters"):
        _read(tmp_path, "t.csv", PHILLY + "x" * 100_000, reading=ReadOptions(skip_bad_rows=True))


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        read_trace(tmp_path / "d.csv")
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "n.swf")
    (tmp_path / "b.swf").write_bytes(bytes(range(128, 256)) * 3)
    with pytest.raises(ConfigError, match=r"b\.swf:1: "):
        read_trace(tmp_path / "b.swf")


HEADERS = ["", PHILLY, POLLUX, ELASTIC, OPENB, "at,name,kind,gang,types,speeds,batch,priority,duration_on\n"]
cells = st.sampled_from(
    ["", "0", "1", "-1", "1e9", "nan", "a", '"', "v100=1", "{}", "[", "|", "\t", "\x00", "é", "\ud7ff"]
)


@given(
    name=st.sampled_from(sorted(FORMATS)),
    header=st.sampled_from(HEADERS),
    lines=st.lists(st.tuples(st.sampled_from([",", "\t", " "]), st.lists(cells, max_size=20)), max_size=6),
    skip=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    header: str,
    lines: list[tuple[str, list[str]]],
    skip: bool,
) -> None:
    """No content of any format ends in anything but jobs or an error for the person."""
    path = tmp_path_factory.getbasetemp() / "anything.txt"
    path.write_text(header + "".join(separator.join(row) + "\n" for separator, row in lines))
    with contextlib.suppress(UserError):
        assert read_trace(path, name, ReadOptions(skip_bad_rows=skip)).jobs


# ------------------------------------------------------------------------------------------------ the real files


def _folder(reference_data: Path, *names: str) -> list[Path]:
    found = sorted(path for name in names for path in reference_data.glob(name))
    assert found, f"nothing in the reference data is called {names}"
    return found


@pytest.mark.slow
def test_the_philly_trace_is_read_whole(reference_data: Path) -> None:
    """82,247 jobs, the largest gang 128."""
    trace = read_trace(reference_data / "jobs" / "philly_2017.csv.gz")
    assert (trace.format, len(trace.jobs)) == ("philly", 82_247)
    assert max(job.gang for job in trace.jobs) == 128
    assert round(sum(job.gang * (job.duration_s or 0.0) for job in trace.jobs) / 3600) == 978_078


@pytest.mark.slow
def test_every_trace_of_the_reference_data_is_read(reference_data: Path) -> None:
    """In its own format, without a name being given; those known to be unsorted or to have bad rows, when asked."""
    expected = {
        "gavel": _folder(reference_data, "gavel/traces/*.tsv"),
        "shockwave": _folder(reference_data, "golden/shockwave/*.tsv"),
        "pollux": _folder(reference_data, "golden/pollux/workloads*/*.csv", "restricted/sia_workloads/*/*.csv"),
        "elasticflow": _folder(reference_data, "golden/elasticflow/*.csv"),
        "philly": _folder(reference_data, "jobs/gavel_msr*.csv.gz"),
    }
    for format, paths in expected.items():
        for path in paths:
            trace = read_trace(path, reading=ReadOptions(sort=path.name == "resnet_cifar_trace.csv"))
            assert trace.format == format, path
    services = read_trace(
        reference_data / "jobs" / "alibaba_dlrm_serving_2025.csv.gz", reading=ReadOptions(skip_bad_rows=True)
    )
    assert services.skipped.count == 16
    assert expected.keys() < FORMATS.keys()
