"""Options of commands that take a workload: how a trace is read, which part of it counts, and what is generated."""

from typing import Annotated

import typer

SkipBadRowsOption = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Skip bad rows, rows without a length, and jobs that no machine could hold; they are counted.",
    ),
]
SortOption = Annotated[bool, typer.Option("--sort", help="Sort the jobs by arrival time first.")]
OnlyOption = Annotated[
    str,
    typer.Option("--only", help="Of a file with several traces: use the trace with this value in column `cluster`."),
]
SinceOption = Annotated[
    str, typer.Option("--since", help="Only jobs that arrive from here on: a length into the trace (2d), or a date.")
]
UntilOption = Annotated[
    str, typer.Option("--until", help="Only jobs that arrive before: a length into the trace (5d), or a date.")
]
SampleOption = Annotated[
    float | None,
    typer.Option("--sample", metavar="PART", help="Only this part of the jobs (0.1), drawn the same every time."),
]
FirstOption = Annotated[int | None, typer.Option("--first", help="Use only the first jobs, this many.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="What the file calls a column, such as gang=num_gpus; repeatable. Unknown columns are ignored then.",
    ),
]
SlicesOption = Annotated[
    int,
    typer.Option(
        "--slices",
        metavar="N",
        help="Formats with fractions of a GPU: accelerators per GPU (7 for MIG); a fraction counts as some of them.",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of the workload; default: from its file ending and first line.")
]
SpeedsOption = Annotated[
    str | None, typer.Option("--speeds", help="Throughput table or speed laws (YAML) for the jobs of a trace.")
]
TraceJobsOption = Annotated[int | None, typer.Option("--trace-jobs", min=1, help="With generate:NAME: number of jobs.")]
RateOption = Annotated[
    float | None, typer.Option("--rate", min=0, help="With generate:NAME: arrivals per hour; 0: all at once.")
]
GangsOption = Annotated[
    bool | None,
    typer.Option(
        "--gangs/--no-gangs", help="With generate:NAME: multi-accelerator jobs, or single-accelerator jobs only."
    ),
]
PrioritiesOption = Annotated[
    bool, typer.Option("--priorities", help="With generate:NAME: give one job in five weight 5.")
]
SlosOption = Annotated[bool, typer.Option("--slos", help="With generate:NAME: give jobs deadlines.")]
StretchOption = Annotated[
    float, typer.Option("--stretch", help="With generate:NAME: multiply run times by this factor.")
]
WorkloadArgument = Annotated[
    str,
    typer.Argument(metavar="WORKLOAD", help="A workload file, a trace, a shipped workload's name, or generate:NAME."),
]
MeasuredOption = Annotated[
    str | None, typer.Option("--measured", help="Speeds and costs measured in a live run (`measured.json`).")
]
LearningOption = Annotated[
    str | None,
    typer.Option(
        "--learning", help="World sia: folder with the applications' statistical efficiency; default: next to --speeds."
    ),
]
