"""`walras solve`: a policy's answer to a problem in a file, and whether an answer, of any solver, holds.

It needs no server. The optimizer is imported only once there is a problem to solve.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.answer_tables import show_answer, show_answer_check
from walras.cli.arguments import OutputOption, example_or_path, read_document, read_memory
from walras.cli.terminal_output import OutputFormat, ends_at_interrupt, show_json, show_line, warn
from walras.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optimizer.decision import Decision, Memory
    from optimizer.documents.answer_document import AnswerDocument, CheckDocument
    from optimizer.documents.problem_document import ProblemDocument
    from optimizer.policy import PolicySpec

#: Names of policies are short words; anything else is a file.
_LOOKS_LIKE_A_FILE = ("/", ".yaml", ".yml", ".json")


def policy_from_option(text: str, settings: "Sequence[str]") -> "PolicySpec":
    """Returns the spec of a policy given by name or policy file, with `name=value` settings applied.

    Raises ConfigError or UnknownPolicyError.
    """
    from optimizer.policy import PolicySpec
    from optimizer.policy_files import is_policy_file, name_in_file

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
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
    else:
        show_answer(question.document, found)
    if found.check is not None and not found.check.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _check_answer(problem: Path, answer: Path, given: "Memory", output: OutputFormat) -> None:
    """Checks an answer by recomputing everything from the problem. Exits with 1 if it does not hold."""
    from optimizer.documents.answer_document import AnswerDocument
    from optimizer.documents.answer_reading import decision_of, problem_answered

    question = _ProblemFile(problem)
    document = read_document(answer, AnswerDocument)
    question.problem = problem_answered(document, question.problem)
    spec, decision = decision_of(document, question.problem)
    found = question.checked(spec, decision, given, document)
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
    else:
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
        from optimizer.documents.problem_conversion import jobs_in_order, problem_from_document
        from optimizer.documents.problem_document import ProblemDocument

        self.document = read_document(path, ProblemDocument)
        self.problem = problem_from_document(self.document)
        self.names = {job_id: job.name for job_id, job in jobs_in_order(self.document) if job.name is not None}

    def answered_by(
        self, spec: "PolicySpec", given: "Memory", delay_usd_per_h: float
    ) -> "tuple[AnswerDocument, Decision]":
        """Returns the answer document and the decision of a policy."""
        from optimizer.answer import answer_as_asked
        from optimizer.assignment.whole_gang_bound import integral_bound
        from optimizer.decision import with_added
        from optimizer.documents.answer_writing import answer_of, renting_of
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
        from optimizer.documents.answer_reading import check_document

        return check_document(self.problem, spec, decision, given, stated)
