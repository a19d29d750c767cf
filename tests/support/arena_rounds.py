"""The throughput of Arena's simulator, round by round, from the timeline of a run under first come, first served."""

from simulator.reports.timeline import AttemptSpan, Timeline
from simulator.worlds.arena.arena_scenario import ROUND_S, TUNING, ArenaWorkload
from walras.job_request import JobId


def round_throughputs(timeline: Timeline, workload: ArenaWorkload, rounds: int) -> list[float]:
    """The cluster's samples per second in each of the first rounds, less the tuning."""
    kinds = {job.request.job_id: job.request.kind for job in workload.jobs}
    total = [0.0] * rounds
    for span in timeline.spans:
        place = workload.places.best_place(str(timeline.pools[span.pool_id].pool.shape.accelerator), span.accelerators)
        speed = workload.places.throughput(workload.models[kinds[JobId(span.job_id)]], place)
        first, end = round(span.leased_at / ROUND_S), round(span.ended_at / ROUND_S)
        for round_ in range(first, min(end, rounds)):
            total[round_] += speed * _counted_part(span, round_ - first)
    return [round(each, 3) for each in total]


def _counted_part(span: AttemptSpan, since: int) -> float:
    """The part of its speed that counts: tuning that outlasts a round costs the first two, shorter tuning its time."""
    tuning_s = TUNING.seconds(span.accelerators)
    if tuning_s > ROUND_S:
        return float(since > 1)
    return (ROUND_S - tuning_s) / ROUND_S if since == 0 else 1.0
