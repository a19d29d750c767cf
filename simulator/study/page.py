"""One run as one HTML file: figures, pictures, tables. It needs no network, no script and no other file.

Every name in it may come from a stranger's trace: all text goes through `_text`, and nothing is put into an attribute.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import inf, isfinite

from simulator.report import Summary
from simulator.study import pictures
from simulator.study.story import JobLine, Story
from simulator.study.tables import lines, ratio, seconds, share
from walras.states import JobState

#: Jobs told one by one: those that took longest.
_JOBS_SHOWN = 50
_DECIDED = "The same again gives the same. Files by the SHA-256 of their content; lengths in seconds."
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 2rem auto; max-width: 62rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; color: #444; }
table { border-collapse: collapse; font-size: .88rem; margin-top: .5rem; display: block; overflow-x: auto; }
h1, p { overflow-wrap: anywhere; }
td, th { padding: .18rem .9rem .18rem 0; text-align: right; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td:first-child, th:first-child, td.left { text-align: left; } th { font-weight: 600; }
.bad { color: #a3261c; font-weight: 600; } svg { max-width: 100%; height: auto; }
@media print { body { margin: 0; max-width: none; } h2 { page-break-after: avoid; } }
"""


def page(story: Story) -> str:
    """The whole report."""
    summary, title = story.summary, f"{story.policy} on {story.workload}"
    world = f", world {story.world}" if story.world else ""
    world += f", conditions {story.conditions}" if story.conditions else ""
    body = [
        f"<h1>{_text(title)}</h1>",
        f"<p>Cluster {_text(story.cluster)}{_text(world)}, seed {story.seed}; {summary.jobs:,} jobs,"
        f" run {_text(summary.outcome)} after {_text(seconds(story.timeline.ended_at))} of virtual time.</p>",
        *(f'<p class="bad">Conservation violated: {_text(each)}</p>' for each in summary.violations),
        _section("Figures", "", _table(("", ""), lines(summary))),
        *_pictures(story),
        _section("Pools", "", _pools(summary)),
        _section("Projects", "Sorted by name.", _projects(summary)) if summary.projects else "",
        _section("Jobs", f"The {_JOBS_SHOWN} that took longest; all are in jobs.csv.", _jobs(story)),
        _section("What decides these figures", _DECIDED, _table(("", ""), story.decided_by)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _pictures(story: Story) -> Iterable[str]:
    summary, timeline, until_at = story.summary, story.timeline, story.timeline.ended_at
    done = [job.jct_s for job in story.jobs if job.state == JobState.SUCCEEDED.value]
    if done:
        told = "Completion times of the jobs that succeeded: from submission to end."
        yield _section("Completion times", told, pictures.jct_cdf(done, "cdf"))
    told = "Jobs in the system that hold no accelerator."
    yield _section("Queueing", told, pictures.queueing(timeline.waiting, until_at, "wait"))
    pools = {str(pool_id): track for pool_id, track in timeline.pools.items()}
    told = "Accelerators held by attempts, as a part of those that are there."
    yield _section("Utilisation by pool", told, pictures.utilisation(pools, until_at, "use"))
    if any(track.price.at for track in pools.values()):
        unit = timeline.price_unit or "the policy's own unit"
        told = f"What the optimizer asks for one accelerator, from solve to solve: high where jobs compete. In {unit}."
        yield _section("Prices", told, pictures.prices(pools, until_at, "price"))
    if any(len(track.usd_per_h.at) > 1 for track in pools.values()):
        told = "What the market asks for a machine."
        yield _section("Market prices", told, pictures.market_prices(pools, until_at, "market"))
    if summary.usd > 0:
        yield _section("Money by market", f"{summary.usd:,.2f} USD.", pictures.money(summary.usd_by_market, "usd"))
    if any(isfinite(each.rho_mean) for each in summary.projects):
        told = "Completion time against the time in an equal share of the fleet."
        yield _section("Fairness by project", told, pictures.fairness(summary.projects, "fair"))
    if timeline.spans and pictures.timeline_is_small(timeline, summary.jobs):
        told = "Pale: accelerators are held and not all ranks run."
        names = {job.job_id: _name(job) for job in story.jobs}
        yield _section("Timeline", told, pictures.gantt(timeline, names, until_at, "gantt"))


def _name(job: JobLine) -> str:
    return job.name or f"job {job.job_id}"


def _pools(summary: Summary) -> str:
    titles = ("pool", "accelerator", "market", "there (h)", "held (h)", "running (h)", "utilisation", "USD")
    rows = [
        (
            pool.pool_id,
            pool.accelerator,
            pool.market,
            *(f"{hours:,.1f}" for hours in (pool.there_h, pool.held_h, pool.running_h)),
            share(pool.utilisation),
            f"{pool.usd:,.2f}",
        )
        for pool in summary.pools
    ]
    return _table(titles, rows)


def _projects(summary: Summary) -> str:
    titles = ("project", "jobs", "succeeded", "JCT avg", "accelerator h", "USD", "rho")
    rows = [
        (
            each.project,
            f"{each.jobs:,}",
            f"{each.succeeded:,}",
            seconds(each.avg_jct_s),
            f"{each.accelerator_h:,.1f}",
            f"{each.usd:,.2f}",
            ratio(each.rho_mean),
        )
        for each in summary.projects
    ]
    return _table(titles, rows)


def _jobs(story: Story) -> str:
    longest = sorted(story.jobs, key=lambda job: job.jct_s if isfinite(job.jct_s) else inf, reverse=True)
    titles = ("job", "project", "state", "submitted", "JCT", "alone", "slowdown", "queueing", "attempts", "USD")
    rows = [
        (
            _name(job),
            job.project,
            job.state,
            *(seconds(length_s) for length_s in (job.submitted_at, job.jct_s, job.alone_s)),
            ratio(job.jct_s / job.alone_s),
            seconds(job.queueing_s),
            str(job.attempts),
            f"{job.usd:,.2f}",
        )
        for job in longest[:_JOBS_SHOWN]
    ]
    return _table(titles, rows)


def _section(title: str, told: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{f'<p>{_text(told)}</p>' if told else ''}\n{content}</section>"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(title)}</th>" for title in titles) if any(titles) else ""
    cells = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _text(text: str) -> str:
    return escape(text, quote=True)
