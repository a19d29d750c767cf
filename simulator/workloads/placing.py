"""What the jobs of a trace are on a given cluster: the types they accept, how fast they run, how much work they are.

A speed comes from the first of these that knows the job's kind: a throughput table, the row itself, the cluster file.
Where none does, the job's duration stands: it is worth so many seconds of the cluster's fastest type (the highest
`nominal_speed`), and runs on the others in the ratio of their nominal speeds.

A row without steps is worth its duration at its speed on `duration_on` (or on the fastest type it may use here). So
only the ratios of its speeds matter. A row with both is taken by its steps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from simulator.job import SimulatedJob
from simulator.truth import SpeedKey
from simulator.workloads.job import TraceJob
from walras.config import ClusterConfig
from walras.errors import ConfigError
from walras.ids import JobId, Kind
from walras.request import Demand, JobRequest


@dataclass(frozen=True, slots=True)
class _Way:
    """How jobs of one kind, gang and choice of types run on the cluster."""

    demands: tuple[Demand, ...]
    #: Steps per second where durations and SLOs were measured.
    reference: float
    #: False: its speeds are the nominal ones, and its steps seconds of the fastest type.
    is_known: bool


class Placing:
    """Turns trace rows into jobs of one cluster."""

    def __init__(
        self,
        nominal: Mapping[str, float],
        *,
        declared: Mapping[str, Mapping[str, float]] | None = None,
        table: Mapping[SpeedKey, float] | None = None,
        source: str = "trace",
        hint: str = "give a throughput table: --speeds FILE",
    ) -> None:
        """`nominal`: speed by accelerator type; `declared`: steps per second by kind and type, whatever the gang."""
        #: Speeds of every kind and gang met so far, each in here before the first job that has it is handed out.
        self.speeds: dict[SpeedKey, float] = {}
        self._table = table or {}
        self._tabled_kinds = {key.kind for key in self._table}
        self._tabled_types = sorted({key.accelerator for key in self._table})
        self._declared = declared or {}
        self._nominal = dict(nominal)
        self._types = sorted(nominal)
        self._ways: dict[tuple[object, ...], _Way] = {}
        self._source = source
        self._hint = hint

    def jobs(self, rows: Iterable[TraceJob]) -> Iterator[SimulatedJob]:
        """The rows as jobs, numbered from 1 in their order. Raises ConfigError for a row that runs nowhere here."""
        for number, row in enumerate(rows, start=1):
            yield self._job(JobId(number), row)

    def _job(self, number: JobId, row: TraceJob) -> SimulatedJob:
        key = (row.kind, row.gang, row.types, row.speeds, row.duration_on)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self._way(row)
        steps = self._steps(row, way)
        request = JobRequest(
            number,
            Kind(row.kind),
            way.demands,
            project=row.project,
            user=row.user,
            priority=row.priority,
            weight=row.weight,
            cpus_per_accelerator=row.cpus,
            memory_bytes_per_accelerator=row.memory_bytes,
            steps=steps if row.estimate_s is None else None,
            duration_s=row.estimate_s,
            deadline_at=min(row.deadline_at, row.at + row.slo * steps / way.reference if row.slo else inf),
            value_usd_per_h=row.value_usd_per_h,
        )
        return SimulatedJob(row.at, request, steps, name=row.name)

    def _steps(self, row: TraceJob, way: "_Way") -> float:
        if row.steps is not None and way.is_known:
            return row.steps
        if row.duration_s is not None:
            return row.duration_s * way.reference
        if row.steps is not None:
            raise self._runs_nowhere(row)  # so many steps, and nobody says how fast they are
        raise ConfigError(
            f"{self._where(row)} has no length: neither steps nor a duration",
            field="duration_s",
            fix="give its length; a trace of epochs needs the profiles of its applications",
        )

    def _way(self, row: TraceJob) -> "_Way":
        known = self._known_speeds(row)
        speeds = known if known is not None else self._nominal
        usable = [name for name in self._accepted(row) if speeds.get(name, 0.0) > 0.0]
        if not usable:
            raise self._runs_nowhere(row)
        self._keep(row, speeds)
        reference = speeds.get(row.duration_on) or max(speeds[name] for name in usable)
        return _Way(tuple(Demand(name, row.gang) for name in usable), reference, known is not None)

    def _accepted(self, row: TraceJob) -> list[str]:
        accepted = [name for name in self._types if not row.types or name in row.types]
        if not accepted:
            wanted, there = " or ".join(row.types), ", ".join(self._types)
            raise ConfigError(
                f"{self._where(row)} wants {wanted}; the cluster has {there}",
                field="types",
                fix="choose another cluster",
            )
        return accepted

    def _known_speeds(self, row: TraceJob) -> Mapping[str, float] | None:
        """Steps per second of the gang by type, types beyond the fleet's among them; None: nobody knows the kind."""
        kind = Kind(row.kind)
        if kind in self._tabled_kinds:
            speeds: dict[str, float] = {}
            for name in self._tabled_types:
                speed = self._table.get(SpeedKey(kind, name, row.gang), self._table.get(SpeedKey(kind, name)))
                if speed is not None:
                    speeds[name] = speed
            return speeds
        return dict(row.speeds) if row.speeds else self._declared.get(row.kind)

    def _keep(self, row: TraceJob, speeds: Mapping[str, float]) -> None:
        """Remember how fast the kind is here. Two rows of a kind and gang have to say the same."""
        for name in self._types:
            if name not in speeds:
                continue
            speed, key = speeds[name], SpeedKey(Kind(row.kind), name, row.gang)
            before = self.speeds.setdefault(key, speed)
            if before != speed:
                raise ConfigError(
                    f"{self._where(row)} makes {speed:g} steps/s on {name}, an earlier job of its kind and gang"
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


def nominal_speeds(cluster: ClusterConfig) -> dict[str, float]:
    """By accelerator type; the highest where pools of one type differ."""
    nominal: dict[str, float] = {}
    for entry in cluster.pools:
        nominal[entry.accelerator] = max(entry.nominal_speed, nominal.get(entry.accelerator, 0.0))
    return nominal
