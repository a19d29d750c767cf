"""The tables of an answer: shares, order or plan, prices of pools, the certificate, and the stages of a solve."""

from typing import TYPE_CHECKING

from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_line, show_listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optimizer.documents.answer_document import (
        AnswerDocument,
        CertificateDocument,
        CheckDocument,
        OrderDocument,
        PlanDocument,
        SharesDocument,
    )
    from optimizer.documents.problem_document import ProblemDocument


#: Shares that round to 0.0 % are left out.
_LEAST_SHARE_SHOWN = 5e-4


def show_answer(problem: "ProblemDocument", answer: "AnswerDocument") -> None:
    """Prints the tables of a whole answer: shares, order or plan, renting, and the check if there is one."""
    if answer.order is not None:
        _show_order(problem, answer, answer.order)
    elif answer.plan is not None:
        _show_plan(answer, answer.plan)
    elif answer.shares is not None:
        _show_shares(problem, answer, answer.shares)
    if answer.renting:
        _show_renting(answer)
    if answer.check is not None:
        show_line("")
        show_answer_check(answer, answer.check)


def show_answer_check(answer: "AnswerDocument", check: "CheckDocument") -> None:
    """Prints what the checker found, beside what the answer states."""
    show_line("checked: it holds" if check.holds else f"checked: it does not hold ({_count(len(check.complaints))})")
    if answer.shares is not None:
        stated = answer.shares.certificate
        names = ("objective", "bound", "gap", "violation")
        rows = [[name, _number(getattr(stated, name)), _number(getattr(check, name))] for name in names]
        _table([Column(""), Column("STATED", right=True), Column("FOUND", right=True)], rows)
    for complaint in check.complaints:
        show_line(f"- {complaint}")
    if check.unchecked:
        show_line(f"taken as stated: {', '.join(check.unchecked)}")


def _count(complaints: int) -> str:
    return "1 complaint" if complaints == 1 else f"{complaints} complaints"


# ------------------------------------------------------------------------------------------------------- shares


def _show_shares(problem: "ProblemDocument", answer: "AnswerDocument", shares: "SharesDocument") -> None:
    _show_head(answer, shares.certificate)
    show_line("")
    _show_jobs(shares)
    if shares.packed:
        show_line("")
        rows = [[f"{entry.first} + {entry.second}", entry.pool, _percent(entry.share)] for entry in shares.packed]
        _table([Column("TOGETHER"), Column("POOL"), Column("SHARE", right=True)], rows)
    show_line("")
    _show_pools(problem, shares)
    if shares.stages:
        show_line("")
        _show_stages(shares)
    _show_left_out("fit nowhere", shares.unplaceable)
    _show_left_out("cannot meet their deadline and were asked for less", shares.relaxed)


def _show_head(answer: "AnswerDocument", certificate: "CertificateDocument") -> None:
    parameters = ", ".join(f"{name}={value}" for name, value in answer.policy.parameters.items())
    show_line(
        f"{answer.policy.name}{f' ({parameters})' if parameters else ''}: {certificate.status}, {certificate.path}"
    )
    relation = "<=" if certificate.maximise else ">="
    bound = "no bound" if certificate.bound is None else f"{relation} {_number(certificate.bound)} at best"
    gap = "" if certificate.gap is None else f", gap {_gap(certificate.gap)}"
    show_line(f"objective {_number(certificate.objective)} {bound}{gap}, violation {certificate.violation:.1g}")
    if certificate.integral_bound is not None and certificate.bound is not None:
        show_line(_whole_gangs(certificate.bound, certificate.integral_bound, certificate.maximise))


def _whole_gangs(bound: float, whole: float, maximise: bool) -> str:
    """Returns the line on the integral bound: the relative loss that whole gangs cause at least."""
    most, side = ("at most", "below") if maximise else ("at least", "above")
    lost = abs(whole - bound) / max(abs(bound), 1e-12)
    loss = f"{_gap(lost)} {side}" if lost >= _LEAST_SHARE_SHOWN else "no tighter"
    return f"integral bound of the round, for whole gangs: {most} {_number(whole)}, {loss}"


def _show_jobs(shares: "SharesDocument") -> None:
    columns = [
        Column("JOB", right=True), Column("NAME", shrinks=True), Column("CONFIGURATION", shrinks=True),
        Column("SHARE", right=True), Column("STEPS/S", right=True), Column("OF BEST", right=True),
        Column("SURPLUS", right=True),
    ]  # fmt: skip
    rows = []
    for job in shares.jobs:
        of_best = "-" if job.of_best is None else _percent(job.of_best)
        shown = [entry for entry in job.shares if abs(entry.share) >= _LEAST_SHARE_SHOWN]
        entries = [(_uses(entry.uses), _percent(entry.share)) for entry in shown] or [("-", "-")]
        first = [str(job.id), dash(job.name), *entries[0], _number(job.steps_per_s), of_best, _number(job.surplus)]
        rows += [first, *(["", "", *entry, "", "", ""] for entry in entries[1:])]
    _table(columns, rows)


def _show_pools(problem: "ProblemDocument", shares: "SharesDocument") -> None:
    columns = [
        Column("POOL", shrinks=True),
        Column("ACCELERATORS", right=True),
        Column("USED", right=True),
        Column("PRICE", right=True),
    ]
    rows = []
    for name, pool in sorted(problem.pools.items()):
        there = pool.capacity - pool.rented + shares.rent.get(name, 0.0)
        rented = f" ({shares.rent[name]:g} rented)" if shares.rent.get(name) else ""
        used = _percent(shares.used.get(name, 0.0) / there) if there > 0 else "-"
        rows.append([name, f"{there:g}{rented}", used, _number(shares.prices.pools.get(name, 0.0))])
    _table(columns, rows)
    show_line(f"unit of prices: {shares.prices.unit}")


def _show_renting(answer: "AnswerDocument") -> None:
    """Prints the machines to rent, in USD per hour of a whole machine."""
    columns = [
        Column("RENT", shrinks=True),
        Column("MACHINES", right=True),
        Column("COSTS", right=True),
        Column("LAST IS WORTH", right=True),
        Column("NEXT IS WORTH", right=True),
    ]
    rows = [
        [name, str(pool.machines), *(_number(x) for x in (pool.usd_per_h, pool.last_usd_per_h, pool.next_usd_per_h))]
        for name, pool in answer.renting.items()
    ]
    show_line("")
    _table(columns, rows)


def _show_stages(shares: "SharesDocument") -> None:
    columns = [
        Column("STAGE", right=True), Column("MAXIMISES"), Column("JOBS", right=True), Column("OBJECTIVE", right=True),
        Column("BOUND", right=True), Column("SCARCE", shrinks=True), Column("DUAL VALUE", right=True),
    ]  # fmt: skip
    rows = []
    for number, stage in enumerate(shares.stages, start=1):
        raised = sum(job.raised for job in stage.jobs)
        priced = [(name, _number(price)) for name, price in stage.prices.items() if price > 0] or [("-", "-")]
        first = [str(number), str(stage.kind), str(raised), _number(stage.objective), _number(stage.bound), *priced[0]]
        rows += [first, *([""] * 5 + list(entry) for entry in priced[1:])]
    _table(columns, rows)


def _show_left_out(what: str, ids: "Iterable[int]") -> None:
    if ids:
        show_line(f"{what}: {', '.join(map(str, ids))}")


# -------------------------------------------------------------------------------------------------------- order


def _show_order(problem: "ProblemDocument", answer: "AnswerDocument", order: "OrderDocument") -> None:
    show_line(f"{answer.policy.name}: an order; the first is placed first")
    show_line("")
    listed = {job.id: job for job in problem.jobs} if problem.jobs and problem.jobs[0].id is not None else {}
    by_number = listed or dict(enumerate(problem.jobs, start=1))
    columns = [
        Column("PLACE", right=True),
        Column("JOB", right=True),
        Column("NAME", shrinks=True),
        Column("FIRST CHOICE", shrinks=True),
    ]
    rows = []
    for place, job in enumerate(order.jobs, start=1):
        configurations = by_number[job.id].configurations
        chosen = _uses(configurations[job.preference[0]].held()) if job.preference else "-"
        rows.append([str(place), str(job.id), dash(job.name), chosen])
    _table(columns, rows)
    show_line("")
    _show_yardstick(order)


def _show_yardstick(decision: "OrderDocument | PlanDocument") -> None:
    yardstick = decision.yardstick
    if yardstick is None:
        show_line(f"no yardstick: {decision.no_yardstick or 'none is stated'}")
    else:
        gap = "-" if yardstick.gap is None else _gap(yardstick.gap)
        reached, bound = _number(yardstick.objective), _number(yardstick.bound)
        limit = f"no plan exceeds {bound}" if yardstick.maximise else f"no schedule goes below {bound}"
        show_line(f"{yardstick.name}: {reached} {yardstick.unit}; {limit}, gap {gap}")


def _show_plan(answer: "AnswerDocument", plan: "PlanDocument") -> None:
    show_line(f"{answer.policy.name}: a plan; the first is the most important")
    show_line("")
    columns = [
        Column("JOB", right=True),
        Column("NAME", shrinks=True),
        Column("RUNS ON", shrinks=True),
        Column("SURPLUS", right=True),
    ]
    rows = [
        [str(job.id), dash(job.name), _uses(job.uses) if job.configuration is not None else "-", _number(job.surplus)]
        for job in plan.jobs
    ]
    _table(columns, rows)
    show_line("")
    prices = sorted(plan.prices.pools.items())
    _table([Column("POOL", shrinks=True), Column("PRICE", right=True)], [[name, _number(at)] for name, at in prices])
    show_line(f"unit of prices: {plan.prices.unit}")
    _show_yardstick(plan)


# -------------------------------------------------------------------------------------------------------- cells


def _table(columns: list[Column], rows: list[list[str]]) -> None:
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)


def _uses(uses: "Mapping[str, float]") -> str:
    return " + ".join(f"{count:g} {pool}" for pool, count in uses.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def _gap(gap: float) -> str:
    return f"{100 * gap:.2f}%" if gap >= 5e-5 or gap == 0 else f"{gap:.0e}"
