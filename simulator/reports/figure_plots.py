"""`walras simulate plot`: one figure of a run, a comparison or a sweep as a file (PNG, SVG or PDF)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.reports import charts
from simulator.reports.chart_output import Chart, save_chart
from simulator.reports.comparison_charts import COMPARISON_FIGURES
from simulator.reports.figure_book import FIGURES_FILE, FigureBook, FigureSetting, read_figures
from simulator.reports.report_page import RunReport
from simulator.reports.run_folder import SUMMARY_FILE, read_report
from simulator.reports.timeline import PoolTrack
from walras.errors import ConfigError
from walras.spec.file_model import nearest_word
from walras.states import JobState


def _run_jct(report: RunReport) -> Chart | None:
    done = [job.jct_s for job in report.jobs if job.state == JobState.SUCCEEDED.value]
    return charts.jct_cdf_chart(done) if done else None


def _pools(report: RunReport) -> Mapping[str, PoolTrack]:
    return {str(pool_id): track for pool_id, track in report.timeline.pools.items()}


def _run_prices(report: RunReport) -> Chart | None:
    pools = _pools(report)
    has_any = any(track.price.at for track in pools.values())
    return charts.price_chart(pools, report.timeline.ended_at) if has_any else None


def _run_market_prices(report: RunReport) -> Chart | None:
    pools = _pools(report)
    has_any = any(len(track.usd_per_h.at) > 1 for track in pools.values())
    return charts.market_price_chart(pools, report.timeline.ended_at) if has_any else None


def _run_money(report: RunReport) -> Chart | None:
    return charts.money_chart(report.summary.usd_by_market) if report.summary.usd > 0 else None


def _run_fairness(report: RunReport) -> Chart | None:
    return charts.fairness_chart(report.summary.projects) if report.summary.projects else None


def _run_timeline(report: RunReport) -> Chart | None:
    timeline = report.timeline
    if not timeline.spans or not charts.fits_gantt_chart(timeline, report.summary.jobs):
        return None
    names = {job.job_id: job.name or f"job {job.job_id}" for job in report.jobs}
    return charts.gantt_chart(timeline, names, timeline.ended_at)


#: Figures of the folder of one run, by name; None where the run has nothing to show.
RUN_FIGURES: Mapping[str, Callable[[RunReport], Chart | None]] = {
    "jct": _run_jct,
    "waiting": lambda report: charts.queueing_chart(report.timeline.waiting, report.timeline.ended_at),
    "utilisation": lambda report: charts.utilisation_chart(_pools(report), report.timeline.ended_at),
    "prices": _run_prices,
    "market-prices": _run_market_prices,
    "money": _run_money,
    "fairness": _run_fairness,
    "timeline": _run_timeline,
}


def plot_figure(figure: str, folder: Path, out: Path, setting: str | None = None) -> None:
    """Draws a figure of the folder of a run, a comparison or a sweep into a file.

    `setting` names the setting of a sweep as its page does; None: the first one. Raises ConfigError that names the
    figures that exist.
    """
    is_run = not (folder / FIGURES_FILE).exists() and (folder / SUMMARY_FILE).exists()
    known = RUN_FIGURES if is_run else COMPARISON_FIGURES
    if figure not in known:
        meant = nearest_word(figure, known)
        raise ConfigError(
            f"{'a run' if is_run else 'a comparison'} has no figure {figure!r}",
            field="figure",
            fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(known)}",
        )
    if is_run:
        chart = RUN_FIGURES[figure](read_report(folder))
    else:
        book = read_figures(folder)
        settings = book.settings if setting is None else (_find_setting(book, setting),)
        chart = COMPARISON_FIGURES[figure].draw(settings)
    if chart is None:
        raise ConfigError(f"{folder} has nothing to show as {figure!r}", field="figure", fix="draw another figure")
    save_chart(chart, out)


def _find_setting(book: FigureBook, name: str) -> FigureSetting:
    found = next((each for each in book.settings if each.name == name), None)
    if found is None:
        names = "; ".join(each.name for each in book.settings)
        raise ConfigError(f"no setting {name!r}", field="setting", fix=f"name one of: {names}"[:1000])
    return found
