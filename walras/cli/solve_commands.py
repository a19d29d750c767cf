"""`walras policy solve`: a policy's answer to a problem in a file, and whether an answer, of any solver, holds.

It needs no server. The optimizer is imported only once there is a problem to solve.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import OutputOption, example_or_path, read_document, read_memory
from walras.cli.terminal_output import (
    OutputFormat,
    dash,
    ends_at_interrupt,
    show_as_json,
    show_columns,
    show_json,
    show_line,
    warn,
)
from walras.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optimizer.decision import Decision, Memory
    from optimizer.documents.answer_document import (
        AnswerDocument,
        CertificateDocument,
        CheckDocument,
        OrderDocument,
        PlanDocument,
        SharesDocument,
    )
    from optimizer.documents.problem_document import ProblemDocument
    from optimizer.policy import PolicySpec


#: Names of policies are short words; anything else is a file.
_LOOKS_LIKE_A_FILE = ("/", ".yaml", ".yml", ".json")


def policy_from_option(text: str, settings: "Sequence[str]") -> "PolicySpec":
    """Returns the spec of a policy given by name or policy file, with `name=value` settings applied.

    Raises ConfigError or UnknownPolicyError.
    """
    from optimizer.policy import PolicySpec
    from optimizer.registry import is_policy_file, name_in_file

    is_own = is_policy_file(text)
    spec = PolicySpec(name_in_file(text) if is_own else text)
    if not is_own and any(part in text for part in _LOOKS_LIKE_A_FILE):
        from scheduler.core.rules import parse_policy
        from walras.spec.file_model import load_mapping

        spec, _ = parse_policy(load_mapping(text))
    if settings:
        from walras.spec.text_formats import apply_overrides

        spec = PolicySpec(spec.name, apply_overrides(spec.parameters, settings, source="--parameter"))
    return spec


EXIT_DOES_NOT_HOLD = 1
_USUAL_POLICY = "max_min_fairness"
_PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-P",
        metavar="NAME|FILE",
        help=f"A policy name, a policy file, or example:NAME; default: {_USUAL_POLICY}.",
        callback=example_or_path("policies"),
    ),
]
_MemoryOption = Annotated[
    Path | None,
    typer.Option("--memory", metavar="FILE", help="State that the policy left last time: its JSON, or a whole answer."),
]
_AnswerOption = Annotated[
    Path | None,
    typer.Option(
        "--answer", metavar="FILE", help="Check this answer, from any solver, in the same way, and solve nothing."
    ),
]


class DocumentKind(StrEnum):
    PROBLEM = "problem"
    ANSWER = "answer"


@ends_at_interrupt
def solve_command(
    problem: Annotated[
        Path | None,
        typer.Argument(
            metavar="PROBLEM",
            help="A problem file, JSON or YAML, or example:NAME.",
            callback=example_or_path("problems"),
        ),
    ] = None,
    policy: _PolicyOption = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-s", metavar="NAME=VALUE", help="Set a parameter of the policy; repeatable."),
    ] = None,
    memory: _MemoryOption = None,
    delay_usd_per_h: Annotated[
        float,
        typer.Option(
            "--delay-usd-per-h",
            min=0,
            help="Value of a job-hour for jobs that state none, in USD; 0: never rent for them.",
        ),
    ] = 0.0,
    check: Annotated[
        bool, typer.Option("--check", help="Check the answer with independent code; exit code 1 if it does not hold.")
    ] = False,
    answer: _AnswerOption = None,
    schema: Annotated[
        DocumentKind | None,
        typer.Option("--schema", help="Print the JSON schema of problem or answer files, and exit."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Solve a problem file: print shares, an order or a plan, with prices and a certificate. Needs no server."""

    if schema is not None:
        from optimizer.documents.answer_document import document_schema as schema_of

        show_json(schema_of(schema.value))
        return
    if problem is None:
        raise UserError("no problem is given", field="PROBLEM", fix="give a file, or example:three_pools")
    given = read_memory(memory) if memory is not None else None
    if answer is not None:
        if policy is not None or parameters or delay_usd_per_h or check:
            raise UserError("an answer is checked, nothing is solved", field="--answer", fix="leave the others out")
        _check_answer(problem, answer, given, output)
        return
    question = _ProblemFile(problem)
    _warn_of_zero_speeds(question.document, problem)
    spec = policy_from_option(policy or _USUAL_POLICY, parameters or [])
    found, decision = question.answered_by(spec, given, delay_usd_per_h)
    if check:
        found = found.model_copy(update={"check": question.checked(spec, decision, given, found)})
    if not show_as_json(found, output):
        show_answer(question.document, found)
    if found.check is not None and not found.check.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _check_answer(problem: Path, answer: Path, given: "Memory", output: OutputFormat) -> None:
    """Checks an answer by recomputing everything from the problem. Exits with 1 if it does not hold."""
    from optimizer.documents.answer_conversion import decision_of, problem_answered
    from optimizer.documents.answer_document import AnswerDocument

    question = _ProblemFile(problem)
    document = read_document(answer, AnswerDocument)
    question.problem = problem_answered(document, question.problem)
    spec, decision = decision_of(document, question.problem)
    found = question.checked(spec, decision, given, document)
    if not show_as_json(found, output):
        show_line(f"{spec.name}, answering {problem}")
        show_answer_check(document, found)
    if not found.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _warn_of_zero_speeds(document: "ProblemDocument", path: Path) -> None:
    """Warns of jobs whose speeds are all 0: 0 means that a job cannot run there, so this may be a mistake."""
    for position, job in enumerate(document.jobs):
        if job.configurations and not any(each.steps_per_s for each in job.configurations):
            name = f" ({job.name})" if job.name else ""
            place = f"{path}: jobs[{position}].configurations{name}"
            warn(
                f"walras: {place}: every steps_per_s is 0, so it is given nothing",
                "fix: write the speeds that it has; 0 stands for where it cannot run",
            )


class _ProblemFile:
    """A problem file, and the answers of the optimizer to it."""

    def __init__(self, path: Path) -> None:
        from optimizer.documents.problem_document import ProblemDocument, jobs_in_order, problem_from_document

        self.document = read_document(path, ProblemDocument)
        self.problem = problem_from_document(self.document)
        self.names = {job_id: job.name for job_id, job in jobs_in_order(self.document) if job.name is not None}

    def answered_by(
        self, spec: "PolicySpec", given: "Memory", delay_usd_per_h: float
    ) -> "tuple[AnswerDocument, Decision]":
        from optimizer.answer import answer_as_asked
        from optimizer.assignment.whole_gang_bound import integral_bound
        from optimizer.decision import with_added
        from optimizer.documents.answer_conversion import answer_of, renting_of
        from optimizer.registry import make

        question = self.problem
        decision, memory, rental = answer_as_asked(make(spec), question, given, delay_usd_per_h)
        self.problem, decision = with_added(question, decision)
        whole = integral_bound(self.problem, spec, decision, given)
        document = answer_of(
            self.problem, spec, decision, memory, names=self.names, integral_bound=whole, asked=question
        )
        rented = renting_of(question, delay_usd_per_h, rental)
        return document.model_copy(update={"renting": rented}), decision

    def checked(
        self, spec: "PolicySpec", decision: "Decision", given: "Memory", stated: "AnswerDocument"
    ) -> "CheckDocument":
        """Returns what the checker found, as a document."""
        from optimizer.documents.answer_conversion import check_document

        return check_document(self.problem, spec, decision, given, stated)


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
        show_columns(" | STATED> | FOUND>", rows)
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
        show_columns("TOGETHER | POOL | SHARE>", rows)
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
    rows = []
    for job in shares.jobs:
        of_best = "-" if job.of_best is None else _percent(job.of_best)
        shown = [entry for entry in job.shares if abs(entry.share) >= _LEAST_SHARE_SHOWN]
        entries = [(_uses(entry.uses), _percent(entry.share)) for entry in shown] or [("-", "-")]
        first = [str(job.id), dash(job.name), *entries[0], _number(job.steps_per_s), of_best, _number(job.surplus)]
        rows += [first, *(["", "", *entry, "", "", ""] for entry in entries[1:])]
    show_columns("JOB> | NAME~ | CONFIGURATION~ | SHARE> | STEPS/S> | OF BEST> | SURPLUS>", rows)


def _show_pools(problem: "ProblemDocument", shares: "SharesDocument") -> None:
    rows = []
    for name, pool in sorted(problem.pools.items()):
        there = pool.capacity - pool.rented + shares.rent.get(name, 0.0)
        rented = f" ({shares.rent[name]:g} rented)" if shares.rent.get(name) else ""
        used = _percent(shares.used.get(name, 0.0) / there) if there > 0 else "-"
        rows.append([name, f"{there:g}{rented}", used, _number(shares.prices.pools.get(name, 0.0))])
    show_columns("POOL~ | ACCELERATORS> | USED> | PRICE>", rows)
    show_line(f"unit of prices: {shares.prices.unit}")


def _show_renting(answer: "AnswerDocument") -> None:
    """Prints the machines to rent, in USD per hour of a whole machine."""
    rows = [
        [name, str(pool.machines), *(_number(x) for x in (pool.usd_per_h, pool.last_usd_per_h, pool.next_usd_per_h))]
        for name, pool in answer.renting.items()
    ]
    show_line("")
    show_columns("RENT~ | MACHINES> | COSTS> | LAST IS WORTH> | NEXT IS WORTH>", rows)


def _show_stages(shares: "SharesDocument") -> None:
    rows = []
    for number, stage in enumerate(shares.stages, start=1):
        raised = sum(job.raised for job in stage.jobs)
        priced = [(name, _number(price)) for name, price in stage.prices.items() if price > 0] or [("-", "-")]
        first = [str(number), str(stage.kind), str(raised), _number(stage.objective), _number(stage.bound), *priced[0]]
        rows += [first, *([""] * 5 + list(entry) for entry in priced[1:])]
    show_columns("STAGE> | MAXIMISES | JOBS> | OBJECTIVE> | BOUND> | SCARCE~ | DUAL VALUE>", rows)


def _show_left_out(what: str, ids: "Iterable[int]") -> None:
    if ids:
        show_line(f"{what}: {', '.join(map(str, ids))}")


# -------------------------------------------------------------------------------------------------------- order


def _show_order(problem: "ProblemDocument", answer: "AnswerDocument", order: "OrderDocument") -> None:
    show_line(f"{answer.policy.name}: an order; the first is placed first")
    show_line("")
    listed = {job.id: job for job in problem.jobs} if problem.jobs and problem.jobs[0].id is not None else {}
    by_number = listed or dict(enumerate(problem.jobs, start=1))
    rows = []
    for place, job in enumerate(order.jobs, start=1):
        configurations = by_number[job.id].configurations
        chosen = _uses(configurations[job.preference[0]].held()) if job.preference else "-"
        rows.append([str(place), str(job.id), dash(job.name), chosen])
    show_columns("PLACE> | JOB> | NAME~ | FIRST CHOICE~", rows)
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
    rows = [
        [str(job.id), dash(job.name), _uses(job.uses) if job.configuration is not None else "-", _number(job.surplus)]
        for job in plan.jobs
    ]
    show_columns("JOB> | NAME~ | RUNS ON~ | SURPLUS>", rows)
    show_line("")
    prices = sorted(plan.prices.pools.items())
    show_columns("POOL~ | PRICE>", [[name, _number(at)] for name, at in prices])
    show_line(f"unit of prices: {plan.prices.unit}")
    _show_yardstick(plan)


# -------------------------------------------------------------------------------------------------------- cells


def _uses(uses: "Mapping[str, float]") -> str:
    return " + ".join(f"{count:g} {pool}" for pool, count in uses.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def _gap(gap: float) -> str:
    return f"{100 * gap:.2f}%" if gap >= 5e-5 or gap == 0 else f"{gap:.0e}"
