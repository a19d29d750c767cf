"""The published JSON schemas: made from the models, so that they cannot say anything else."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from optimizer.documents.answer import AnswerDocument
from optimizer.documents.problem import ProblemDocument

NAMES = ("problem", "answer")


def schema(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of `problem` or `answer` documents."""
    written: dict[str, Any] = (ProblemDocument if name == "problem" else AnswerDocument).model_json_schema()
    return {"$schema": GenerateJsonSchema.schema_dialect} | written
