"""`walras solve` and `walras check`: a policy's answer to a problem in a file, and whether an answer holds.

Neither needs a server. What solves is loaded only once there is a question.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from walras.cli.loading import load
from walras.cli.options import Output
from walras.cli.output import OutputFormat, show_json, show_line, warn
from walras.errors import UserError

EXIT_DOES_NOT_HOLD = 1
Memory = Annotated[
    Path | None, typer.Option("--memory", metavar="FILE", help="What the policy left last time: JSON, or an answer.")
]


class Schema(StrEnum):
    PROBLEM = "problem"
    ANSWER = "answer"


def solve(
    problem: Annotated[Path | None, typer.Argument(metavar="PROBLEM", help="A problem file, JSON or YAML.")] = None,
    policy: Annotated[
        str, typer.Option("--policy", "-P", metavar="NAME|FILE", help="A policy, or a policy file.")
    ] = "max_min_fairness",
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", "-s", metavar="NAME=VALUE", help="Set a parameter of it.")
    ] = None,
    memory: Memory = None,
    delay_usd_per_h: Annotated[
        float, typer.Option("--delay-usd-per-h", min=0, help="Worth of a job's hour where nobody said; 0: never rent.")
    ] = 0.0,
    check: Annotated[bool, typer.Option("--check", help="Recompute everything, and say what was found.")] = False,
    schema: Annotated[
        Schema | None, typer.Option("--schema", help="Print the JSON schema of problem or answer files, and stop.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Solve a problem file: shares or order, prices, and how good that is."""
    from walras.cli import problem_files

    if schema is not None:
        show_json(load("optimizer.documents.schemas").schema(schema.value))
        return
    if problem is None:
        raise UserError(
            "no problem is given", field="PROBLEM", fix="give a file such as configs/problems/three_pools.json"
        )
    question = _Question(problem)
    _tell_of_standstill(question.document, problem)
    spec = problem_files.policy_named(policy, parameters or [])
    given = problem_files.read_memory(memory) if memory is not None else None
    answer, decision = question.answered_by(spec, given, delay_usd_per_h)
    if check:
        answer = answer.model_copy(update={"check": question.checked(spec, decision, given, answer)})
    if output is OutputFormat.JSON:
        show_json(answer.model_dump(mode="json"))
    else:
        from walras.cli.answer_tables import show_answer

        show_answer(question.document, answer)
    if answer.check is not None and not answer.check.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def check(
    problem: Annotated[Path, typer.Argument(metavar="PROBLEM", help="A problem file.")],
    answer: Annotated[Path, typer.Argument(metavar="ANSWER", help="An answer to it, from whomever.")],
    memory: Memory = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say whether an answer holds: recompute everything from the problem; exit code 1 if it does not."""
    from walras.cli import problem_files

    question = _Question(problem)
    document = problem_files.read_document(answer, load("optimizer.documents.answer").AnswerDocument)
    reading = load("optimizer.documents.answer_reading")
    question.problem = reading.problem_answered(document, question.problem)
    spec, decision = reading.decision_of(document, question.problem)
    given = problem_files.read_memory(memory) if memory is not None else None
    found = question.checked(spec, decision, given, document)
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
    else:
        from walras.cli.answer_tables import show_check

        show_line(f"{spec.name}, answering {problem}")
        show_check(document, found)
    if not found.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _tell_of_standstill(document: Any, path: Path) -> None:
    """A speed of 0 means that a job cannot run there; if it can run nowhere, that may be a mistake of the file."""
    for position, job in enumerate(document.jobs):
        if job.configurations and not any(each.steps_per_s for each in job.configurations):
            name = f" ({job.name})" if job.name else ""
            place = f"{path}: jobs[{position}].configurations{name}"
            warn(
                f"walras: {place}: every steps_per_s is 0, so it is given nothing",
                "fix: write the speeds that it has; 0 stands for where it cannot run",
            )


class _Question:
    """A problem file, read; with what the optimizer says about it."""

    def __init__(self, path: Path) -> None:
        from walras.cli.problem_files import read_document

        self.document = read_document(path, load("optimizer.documents.problem").ProblemDocument)
        reading = load("optimizer.documents.reading")
        self.problem = reading.problem_of(self.document)
        self.names = {job_id: job.name for job_id, job in reading.jobs_in_order(self.document) if job.name is not None}

    def answered_by(self, spec: Any, given: Any, delay_usd_per_h: float) -> tuple[Any, Any]:
        """(answer document, decision) of a policy."""
        policy = load("optimizer.registry").make(spec)
        asked = self.problem
        decision, memory, rental = load("optimizer.answer").answer_as_asked(policy, asked, given, delay_usd_per_h)
        self.problem, decision = load("optimizer.added").with_added(asked, decision)
        whole = load("optimizer.gangs.whole").integral_bound(self.problem, spec, decision, given)
        document = load("optimizer.documents.answering").answer_of(
            self.problem, spec, decision, memory, names=self.names, integral_bound=whole, asked=asked
        )
        rented = load("optimizer.documents.renting").renting_of(asked, delay_usd_per_h, rental)
        return document.model_copy(update={"renting": rented}), decision

    def checked(self, spec: Any, decision: Any, given: Any, stated: Any) -> Any:
        """What the checker found, as a document."""
        return load("optimizer.documents.checks").check_document(self.problem, spec, decision, given, stated)
