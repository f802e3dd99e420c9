"""The OpenAPI 3.1 document and the page of the API, both made from the table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from softdex import __version__
from softdex.serve.replies import Health, ProblemDetails, Working

if TYPE_CHECKING:
    from softdex.serve.endpoints import Endpoint

REF = "#/components/schemas/{name}"
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
ARROW = "application/vnd.apache.arrow.stream"


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types: list[type] = [ProblemDetails, Working]
    for each in endpoints:
        types += [t for t in (each.body, each.query, each.answer) if isinstance(t, type)]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(types)), ref_template=REF)
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(_path(each), {})[each.method.lower()] = _operation(each, components)
    queries = {each.query.__name__ for each in endpoints if each.query is not None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "softdex",
            "version": __version__,
            "description": "Recommendations from the models that this server has loaded.",
        },
        "paths": paths,
        "components": {
            "schemas": {n: c for n, c in components.items() if n not in queries},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def page(endpoints: Sequence[Endpoint]) -> str:
    """Return the API as a page of HTML without scripts and styles."""
    rows = []
    for each in endpoints:
        fields = ", ".join(_fields(each))
        rows.append(
            f"<h3>{escape(each.method)} <code>{escape(_path(each))}</code></h3>"
            f"<p>{escape(_text(each))}</p>" + (f"<p>Takes: {escape(fields)}</p>" if fields else "")
        )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>softdex</title>"
        f"<h1>softdex {escape(__version__)}</h1><p>The schema is in "
        '<a href="/openapi.json">openapi.json</a>, the models are in '
        '<a href="/v1/models">v1/models</a>, the counters in <a href="/metrics">metrics</a>.</p>'
        + "".join(rows)
        + "</html>"
    )


# inside ------------------------------------------------------------------------------------------


def _operation(each: Endpoint, components: dict[str, Any]) -> dict[str, Any]:
    name = each.handler.__name__
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{each.method.lower()}{_path(each)}").strip("_"),
        "summary": name.replace("_", " "),
        "description": _text(each),
        "responses": {str(each.success): _answer(each)},
    }
    parameters = [
        {"name": found, "in": "path", "required": True, "schema": {"type": "string"}}
        for found in PARAMETER.findall(each.path)
    ]
    if each.query is not None:
        schema = components[each.query.__name__]
        parameters += [
            {"name": field, "in": "query", "schema": kind}
            for field, kind in schema["properties"].items()
        ]
    if parameters:
        operation["parameters"] = parameters
    if each.body is not None:
        body: dict[str, Any] = {"$ref": REF.format(name=each.body.__name__)}
        if each.many:
            body = {"oneOf": [body, {"type": "array", "items": body}]}
        content: dict[str, Any] = {"application/json": {"schema": body}}
        if each.query is not None:
            content[ARROW] = {"schema": {}}
        operation["requestBody"] = {"required": each.access != "admin", "content": content}
    for status in each.problems:
        operation["responses"][str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {
                "application/problem+json": {"schema": {"$ref": REF.format(name="ProblemDetails")}}
            },
        }
    if each.path.startswith("/v1/study/"):
        operation["responses"]["202"] = {
            "description": "Still computed: ask again",
            "content": {"application/json": {"schema": {"$ref": REF.format(name="Working")}}},
        }
    if each.answer is Health:
        operation["responses"]["503"] = _answer(each) | {"description": "Not ready"}
    if each.access != "open":
        operation["security"] = [{"token": []}] if each.access == "admin" else [{}, {"token": []}]
    return operation


def _answer(each: Endpoint) -> dict[str, Any]:
    if isinstance(each.answer, str):
        content: dict[str, Any] = {each.answer: {"schema": {"type": "string"}}}
    elif each.answer.__module__ == "builtins":
        content = {"application/json": {"schema": {"type": "object"}}}
    else:
        schema = {"$ref": REF.format(name=each.answer.__name__)}
        content = {"application/json": {"schema": schema}}
        if each.body is not None and each.query is not None:
            content[ARROW] = {"schema": {}}
    return {"description": "OK", "content": content}


def _path(each: Endpoint) -> str:
    return PARAMETER.sub(r"{\1}", each.path)


def _text(each: Endpoint) -> str:
    return " ".join((each.handler.__doc__ or "").split())


def _fields(each: Endpoint) -> list[str]:
    types = [t for t in (each.body, each.query) if t is not None]
    return [field.name for t in types for field in msgspec.structs.fields(t)]
