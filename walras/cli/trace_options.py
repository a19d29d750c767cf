"""Options of commands that take a workload: how a trace is read, which part of it counts, what is generated, and the
carbon of its energy.
"""

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
CarbonOption = Annotated[
    str | None,
    typer.Option(
        "--carbon", help="Also count kWh and kg CO2, by this file of the grid's gCO2 per kWh over time (CSV)."
    ),
]
CarbonZoneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--carbon-zone",
        metavar="[POOLZONE=]ZONE",
        help="With --carbon: zone of the file for all pools, or for those in a zone of the cluster; repeatable.",
    ),
]
CarbonColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--carbon-column",
        metavar="OURS=THEIRS",
        help="With --carbon: what the file calls the column at, g_per_kwh or zone; repeatable.",
    ),
]
CarbonFromOption = Annotated[
    str | None,
    typer.Option(
        "--carbon-from", metavar="INSTANT", help="With --carbon: when the run begins; default: when the file does."
    ),
]
PueOption = Annotated[
    float, typer.Option("--pue", help="With --carbon: energy of the building per energy of the accelerators.")
]
WattsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--watts",
        metavar="TYPE=W",
        help="With --carbon: watts of one accelerator of a type, in place of its data sheet's; repeatable.",
    ),
]
