"""The OpenAPI description, generated from the route table: what is not in the table does not exist."""

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from scheduler.live.http.routing import Audience, Route
from walras.api import ProblemDetail

_REF = "#/components/schemas/{model}"


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    models: list[type[BaseModel]] = [ProblemDetail]
    for route in routes:
        named = (route.request, _item(route.response) or route.response)
        models += [model for model in named if _is_model(model) and model not in models]
    _, definitions = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(plain_path(route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Walras", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def plain_path(path: str) -> str:
    """`/jobs/{job_id:[0-9]+}` as `/jobs/{job_id}`."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _item(model: Any) -> Any:
    """The element of `list[Model]`; None for anything else."""
    return get_args(model)[0] if get_origin(model) is list else None


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", plain_path(route.path))
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "x-walras-audience": route.audience.value,
        "responses": {
            str(route.status): _content(route.response, "Done"),
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemDetail")}}},
            },
        },
    }
    if route.audience in (Audience.USER, Audience.USER_OR_JOB):
        operation["x-walras-role"] = route.role.word
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": True, **_content(route.request, "")}
        if not operation["requestBody"].pop("description"):
            operation["requestBody"]["description"] = route.summary
    return operation


def _content(model: Any, description: str) -> dict[str, Any]:
    if _is_model(model):
        schema: dict[str, Any] = {"$ref": _REF.format(model=model.__name__)}
        return {"description": description, "content": {"application/json": {"schema": schema}}}
    if (item := _item(model)) is not None:
        items = {"type": "array", "items": {"$ref": _REF.format(model=item.__name__)}}
        return {"description": description, "content": {"application/json": {"schema": items}}}
    if isinstance(model, str):
        return {"description": description, "content": {model: {"schema": {"type": "string"}}}}
    return {"description": description}
