"""From arrays to a problem document that reads back to the same problem. What stands at its default is left out."""

from typing import Any

import numpy as np

from optimizer.documents.problem import ProblemDocument
from optimizer.problem import FloatArray, Problem
from walras.checking import check


def document_of(problem: Problem, *, about: str | None = None) -> ProblemDocument:
    """The document of a valid problem.

    Raises:
        ConfigError: something in it has no place in a document, such as a number beyond its bounds.
    """
    entities, kept = _entities(problem), entity_names(problem)
    written: dict[str, Any] = {
        "about": about,
        "at": problem.at,
        "pools": _pools(problem),
        "jobs": [_job(problem, row, kept) for row in range(len(problem.jobs))],
        "entities": entities,
    }
    return _with_configurations(problem, {name: value for name, value in written.items() if value is not None})


def plain(document: ProblemDocument) -> dict[str, Any]:
    """The document as plain data, without what is left to defaults."""
    return document.model_dump(mode="json", exclude_defaults=True) | {"schema_version": document.schema_version}


def entity_names(problem: Problem) -> list[str]:
    """A name of its own for each entity: two that are called the same are told apart by their parents."""
    entities, names = problem.entities, list(problem.entities.name)
    for row, name in enumerate(names):
        if problem.entities.name.count(name) > 1 and len(entities.parent) and entities.parent[row] >= 0:
            names[row] = f"{names[entities.parent[row]]}/{name}"
    return names
