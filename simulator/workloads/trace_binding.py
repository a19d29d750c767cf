"""Binds a trace to a cluster: the types that each job accepts there, its speed, and its work.

A speed comes from the first of these that has the job's kind: a throughput table, the row itself, the cluster file. If
none has, the job's duration counts: it is the run time on the cluster's fastest type (the highest `nominal_speed`), and
speeds on the other types follow the ratio of their nominal speeds.

The work of a row without steps is its duration times its speed on `duration_on` (or on the fastest type it may use
here), so only the ratios of its speeds matter. A row with both counts by its steps.

**Throughput table**, in the format of Gavel (OSDI 2020), which Shockwave shares. A table is JSON: accelerator ->
"('type', scale factor)" -> "null" -> steps per second of the gang. In the place of "null", another such name gives the
speeds of both where they share accelerators. Speed 0 means that the job cannot run there.

**Seeded speeds**, for a trace that states none. A kind has a sensitivity s ~ U(0.3, 1.7). On a type of nominal speed n
it makes n^s x e^z steps a second, with z ~ N(0, 0.15), to four digits: ratios of types differ between kinds, and
sometimes even their order. Jobs without a kind are assigned at random to a given number of kinds. Everything is drawn
from named streams of one seed.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import TypeGuard

from scheduler.core.state.fleet import split_gang
from scheduler.world.attempts import PlannedFailure, SimulatedJob
from scheduler.world.engine import RandomStreams
from simulator.goodput import GoodputLaws, goodput_laws
from simulator.ground_truth import SpeedKey, largest_by_type
from simulator.workloads.trace_source import TraceJob, complete_file, open_text
from walras.cluster import Market
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobIdentity, JobLimits, JobRequest, Kind, RetryRule, group_fields
from walras.spec.accelerator_names import named_type
from walras.spec.cluster_file import ClusterConfig, PoolEntry


@dataclass(frozen=True, slots=True)
class _RowSpeeds:
    """Speeds on the cluster of jobs with one kind, gang and choice of types."""

    kind: Kind
    demands: tuple[Demand, ...]
    #: Steps per second on the type where durations and SLOs were measured.
    reference: float
    #: False: its speeds are the nominal ones, and its steps seconds of the fastest type.
    is_known: bool
    #: Whether the speeds follow a law, and the steps of the whole training where the law states them.
    has_law: bool = False
    law_steps: float | None = None


class TraceBinding:
    """Turns trace rows into jobs of one cluster."""

    def __init__(
        self,
        nominal: Mapping[str, float],
        *,
        declared: Mapping[str, Mapping[str, float]] | None = None,
        table: Mapping[SpeedKey, float] | None = None,
        laws: GoodputLaws | None = None,
        machines: Mapping[str, int] | None = None,
        source: str = "trace",
        hint: str = "give a throughput table: --set speeds=FILE",
    ) -> None:
        """`nominal`: speed by accelerator type; `declared`: steps per second by kind and type, whatever the gang.

        `machines`: accelerators of the largest machine by type, for laws that ask how a gang is spread.
        """
        #: Speeds of every kind and gang so far; a kind is added before the first of its jobs is yielded.
        self.speeds: dict[SpeedKey, float] = {}
        self._table = table or {}
        self._tabled_kinds = {key.kind for key in self._table}
        self._tabled_types = sorted({key.accelerator for key in self._table})
        self._machines = machines or {}
        self._laws = laws if laws is not None else goodput_laws({})
        self._declared = declared or {}
        self._nominal = dict(nominal)
        self._types = sorted(nominal)
        self._ways: dict[tuple[object, ...], _RowSpeeds] = {}
        self._source = source
        self._hint = hint

    def jobs(self, rows: Iterable[TraceJob]) -> Iterator[SimulatedJob]:
        """Yields the rows as jobs, numbered from 1. Raises ConfigError for a row that can run nowhere on the cluster.

        Rows that depend on others have to come as a sequence, since their names are collected first.
        """
        for bound in self._bound(rows):
            if isinstance(bound, ConfigError):
                raise bound
            yield bound

    def unbindable(self, rows: Sequence[TraceJob]) -> dict[int, str]:
        """Returns what is wrong with each row that cannot become a job here, by its place among the rows."""
        return {place: str(bound) for place, bound in enumerate(self._bound(rows)) if isinstance(bound, ConfigError)}

    def _bound(self, rows: Iterable[TraceJob]) -> Iterator[SimulatedJob | ConfigError]:
        """Yields each row as a job, or why it cannot become one."""
        waited_for = {name for row in rows for name in row.depends_on} if isinstance(rows, Sequence) else frozenset()
        numbers: dict[str, JobId] = {}
        for number, row in enumerate(rows, start=1):
            try:
                job = self._job(JobId(number), row, numbers)
            except ConfigError as error:
                yield error
                continue
            yield job
            if row.name in waited_for:
                numbers[row.name] = JobId(number)

    def parts(self, accelerator: str, count: int, nodes: int = 1) -> tuple[int, ...]:
        """Returns a gang's accelerators on each of as few machines as possible; on one if sizes are unknown."""
        return tuple(split_gang(count, nodes, self._machines.get(accelerator, count)))

    def _job(self, number: JobId, row: TraceJob, numbers: Mapping[str, JobId]) -> SimulatedJob:
        speed_says = (row.speeds, row.scaling, row.batch, row.batch_max)
        key = (row.kind, row.gang, row.sizes, row.types, row.duration_on, speed_says)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self._way(row)
        steps = self._steps(row, way)
        length_is_known = row.estimate_s is None and row.estimate_factor > 0
        deadline_at = min(row.deadline_at, row.at + row.slo * steps / way.reference if row.slo else inf)
        request = JobRequest(
            number,
            way.kind,
            demands=way.demands,
            sizes=row.sizes,
            mixed=row.mixed is not False,
            shares=row.mixed == "shares",
            fork_max=row.fork_max,
            nodes=row.nodes,
            cpus_per_accelerator=row.cpus,
            memory_bytes_per_accelerator=row.memory_bytes,
            steps=steps * row.estimate_factor if length_is_known else None,
            duration_s=row.estimate_s,
            retry=RetryRule(row.max_restarts, row.restart_codes),
            depends_on=tuple(self._number(name, row, numbers) for name in row.depends_on),
            depends_on_any_end=row.condition == "finished",
            **group_fields(row, JobIdentity),
            **group_fields(row, JobLimits) | {"deadline_at": deadline_at},
        )
        failures = tuple(PlannedFailure(each.part * steps, each.exit_code, each.times) for each in row.failures)
        return SimulatedJob(row.at, request, steps, failures, row.cancel_at, row.name)

    def _number(self, name: str, row: TraceJob, numbers: Mapping[str, JobId]) -> JobId:
        if name not in numbers:
            raise ConfigError(
                f"{self._where(row)} depends on {name!r}, and no job above it has that name",
                field="depends_on",
                fix="put the job that is waited for above the one that waits",
            )
        return numbers[name]

    def _steps(self, row: TraceJob, way: "_RowSpeeds") -> float:
        if row.steps is not None and way.is_known:
            return row.steps
        if way.has_law:
            if way.law_steps is None:
                raise ConfigError(
                    f"{self._where(row)} follows a law and has no steps; a duration says nothing of work there",
                    field="steps",
                    fix="give its steps at the initial batch, or `steps` in the law",
                )
            return way.law_steps
        if row.duration_s is not None:
            return row.duration_s * way.reference
        if row.steps is not None:
            raise self._runs_nowhere(row)  # steps without a speed
        raise ConfigError(
            f"{self._where(row)} has no length: neither steps nor a duration",
            field="duration_s",
            fix="give its length; a trace of epochs needs the profiles of its applications",
        )

    def _way(self, row: TraceJob) -> "_RowSpeeds":
        name = row.kind.removesuffix(f" (batch size {row.batch})")
        return self._way_by_law(row, name) if name in self._laws else self._way_by_speeds(row)

    def _way_by_law(self, row: TraceJob, name: str) -> "_RowSpeeds":
        kind = self._laws.kind_of(name, row.batch, row.batch_max, self._where(row))
        speeds: dict[str, float] = {}
        for accelerator in self._accepted(row):
            paces = (
                self._laws.of[kind].speed_segment(accelerator, self.parts(accelerator, size, row.nodes), 0.0)
                for size in row.sizes or (row.gang,)
            )
            speeds[accelerator] = max(pace.steps_per_s for pace in paces)
        usable = [accelerator for accelerator, speed in speeds.items() if speed > 0]
        if not usable:
            raise self._runs_nowhere(row)
        reference = speeds.get(row.duration_on) or max(speeds.values())
        demands = tuple(Demand(accelerator, row.gang) for accelerator in usable)
        return _RowSpeeds(kind, demands, reference, True, True, self._laws.steps(name))

    def _way_by_speeds(self, row: TraceJob) -> "_RowSpeeds":
        if row.batch_max is not None:
            raise ConfigError(
                f"{self._where(row)} chooses its batch, and no law says what that is worth",
                field="batch_max",
                fix="give a file of laws that has its kind: --set speeds=LAWS.yaml",
            )
        known = self._known_speeds(row)
        speeds = known if known is not None else self._nominal
        usable = [name for name in self._accepted(row) if speeds.get(name, 0.0) > 0.0]
        if not usable:
            raise self._runs_nowhere(row)
        self._keep(row, speeds)
        reference = speeds.get(row.duration_on) or max(speeds[name] for name in usable)
        return _RowSpeeds(
            Kind(row.kind), tuple(Demand(name, row.gang) for name in usable), reference, known is not None
        )

    def _accepted(self, row: TraceJob) -> list[str]:
        accepted = [name for name in self._types if not row.types or named_type(row.types, name)]
        if not accepted:
            wanted, there = " or ".join(row.types), ", ".join(self._types)
            raise ConfigError(
                f"{self._where(row)} wants {wanted}; the cluster has {there}",
                field="types",
                fix="choose another cluster",
            )
        return accepted

    def _known_speeds(self, row: TraceJob) -> Mapping[str, float] | None:
        """Returns the gang's steps per second by type, also of types outside the fleet; None for an unknown kind."""
        kind = Kind(row.kind)
        if kind in self._tabled_kinds:
            speeds: dict[str, float] = {}
            for name in self._tabled_types:
                speed = self._table.get(SpeedKey(kind, name, row.gang), self._table.get(SpeedKey(kind, name)))
                if speed is not None:
                    speeds[name] = speed
            return speeds
        stated = dict(row.speeds) if row.speeds else self._declared.get(row.kind)
        if stated is None:
            return None
        by_family = {name: stated[own] for name in self._types if (own := named_type(stated, name))}
        return {**stated, **by_family}

    def _keep(self, row: TraceJob, speeds: Mapping[str, float]) -> None:
        """Records the kind's speeds. Raises ConfigError if two rows of a kind and gang state different ones."""
        for name, count in product(self._types, row.sizes or (row.gang,)):
            if name not in speeds:
                continue
            key = SpeedKey(Kind(row.kind), name, count)
            speed = self._table.get(key, speeds[name] * (count / row.gang) ** row.scaling)
            before = self.speeds.setdefault(key, speed)
            if before != speed:
                raise ConfigError(
                    f"{self._where(row)} makes {speed:g} steps/s on {count} x {name}, an earlier job of its kind"
                    f" {before:g}",
                    field="speeds",
                    fix="give it a kind of its own",
                )

    def _runs_nowhere(self, row: TraceJob) -> ConfigError:
        types = ", ".join(self._types)
        return ConfigError(f"{self._where(row)} has no speed on {types}", field="kind", fix=self._hint)

    def _where(self, row: TraceJob) -> str:
        place = f"{self._source}:{row.line}" if row.line else self._source
        return f"{place}: {row.kind!r} x {row.gang}"


def most_machines(entry: PoolEntry) -> int:
    """Returns the machines that a pool may have: owned ones, or the quota of rented ones."""
    return entry.machines if entry.market is Market.OWNED else entry.quota


def machine_sizes(cluster: ClusterConfig) -> dict[str, int]:
    """Returns accelerators of the largest machine by type."""
    return largest_by_type((entry.accelerator, entry.accelerators) for entry in cluster.pools)


def nominal_speeds(cluster: ClusterConfig) -> dict[str, float]:
    """Returns nominal speeds by accelerator type; the highest where pools of one type differ."""
    return largest_by_type((entry.accelerator, entry.nominal_speed) for entry in cluster.pools)


#: Largest number of characters; a longer table is cut off here and is then no valid JSON.
_MAX_TABLE = 256 * 1024 * 1024
_TABLE_KEY = re.compile(r"^\('([^']*)', (\d{1,6})\)$")


def read_throughput_table(path: str | Path) -> dict[SpeedKey, float]:
    """Returns steps per second of gangs that run alone. Raises ConfigError naming the entry that is wrong."""
    speeds: dict[SpeedKey, float] = {}
    for key, entries, where in _table_entries(path):
        alone = entries.get("null")
        if not _is_speed(alone):
            raise ConfigError(f'{where}: a speed under "null" is expected')
        speeds[key] = float(alone)
    return speeds


def read_pair_speeds(path: str | Path, accelerators: Collection[str]) -> dict[tuple[SpeedKey, Kind], float]:
    """Returns steps per second of gangs co-located with another of the same size, on these accelerators.

    A pair occurs twice in the table, once under each member; each member's own entry gives its own speed.
    Raises ConfigError naming the entry that is wrong.
    """
    speeds: dict[tuple[SpeedKey, Kind], float] = {}
    for key, entries, where in _table_entries(path):
        if key.accelerator not in accelerators:
            continue
        for name, both in entries.items():
            other = _TABLE_KEY.match(name)
            if other is None or int(other[2]) != key.count:
                continue
            if not (isinstance(both, Sequence) and len(both) == 2 and all(map(_is_speed, both))):
                raise ConfigError(f"{where}: {name}: the speeds of both are expected")
            speeds[key, Kind(other[1])] = float(both[0])
    return speeds


def _is_speed(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and isfinite(value) and value >= 0


def _table_entries(path: str | Path) -> Iterator[tuple[SpeedKey, Mapping[str, object], str]]:
    """Yields the entries of every kind and gang on every accelerator type, each with its place in the file."""
    with open_text(path) as file, complete_file(f"{path}: broken off"):
        text = file.read(_MAX_TABLE)
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: a table of accelerators is expected")
    for accelerator, rows in table.items():
        for name, entries in _as_mapping(rows, f"{path}: {accelerator}").items():
            where = f"{path}: {accelerator}: {name}"
            matched = _TABLE_KEY.match(name)
            if matched is None:
                raise ConfigError(f"{where}: a name such as \"('type', scale factor)\" is expected")
            yield SpeedKey(Kind(matched[1]), accelerator, int(matched[2])), _as_mapping(entries, where), where


def _as_mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: an object is expected")
    return value


#: The kind of a job whose trace names none.
NO_KIND = "any"
_SENSITIVITY = (0.3, 1.7)
_NOISE = 0.15


def with_seeded_speeds(
    jobs: Iterable[TraceJob], nominal: Mapping[str, float], *, kinds: int = 26, seed: int = 0
) -> Iterator[TraceJob]:
    """Yields the jobs with a speed on every type of `nominal` (name to nominal speed).

    A duration on a type that is not among them becomes one on the fastest that is.
    """
    streams = RandomStreams(seed)
    dealing = streams.stream("dealing")
    names = [f"kind-{number:02}" for number in range(1, kinds + 1)]
    speeds: dict[str, tuple[tuple[str, float], ...]] = {}
    for job in jobs:
        kind = dealing.choice(names) if job.kind == NO_KIND else job.kind
        if kind not in speeds:
            speeds[kind] = _draw_speeds(streams, kind, nominal)
        on = job.duration_on if job.duration_on in nominal else ""
        yield replace(job, kind=kind, speeds=speeds[kind], duration_on=on)


def _draw_speeds(streams: RandomStreams, kind: str, nominal: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    random = streams.stream(f"speeds of {kind}")
    sensitivity = random.uniform(*_SENSITIVITY)
    return tuple(
        (name, float(f"{nominal[name] ** sensitivity * random.lognormvariate(0.0, _NOISE):.4g}"))
        for name in sorted(nominal)
    )
