"""The OpenAPI document: it comes from the table that routes, and it is true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import softdex as sdx
from bodies import FIELDS, SOUND, hostile
from marks import slow
from schema_calls import call
from serving import Client
from softdex.serve.endpoints import ENDPOINTS

TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
    "object": dict, "null": type(None),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(
    model: sdx.Retriever, parts: sdx.Split, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    path = tmp_path_factory.mktemp("openapi") / "events.db"
    vectors = sdx.fit("rg2", parts.train, dim=4, epochs=1, device="cpu")
    models = {"cf": model, "rg2": vectors}
    with sdx.serve(models, port=0, max_wait=60, timeout=60, events=path) as serving:
        yield serving.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    found = Client(url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    found = Client(url)
    document = found.get("/openapi.json").json
    found.close()
    return document


def test_every_endpoint_is_described_and_every_reference_leads_somewhere(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    described = {(m.upper(), p) for p, row in document["paths"].items() for m in row}
    assert described == {(e.method, e.path.replace(":path", "")) for e in ENDPOINTS}
    ids = [op["operationId"] for row in document["paths"].values() for op in row.values()]
    assert len(set(ids)) == len(ids)
    for ref in references(document):
        at: Any = document
        for name in ref.removeprefix("#/").split("/"):
            at = at[name]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inside in value.values():
            yield from references(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from references(inside)


CALLS = [
    ("POST", "/v1/recommend", {"user": "u001", "k": 2, "columns": ["category"]}),
    ("POST", "/v1/recommend", {"user": "nobody"}),
    ("POST", "/v1/recommend/batch", {"requests": [{"user": "u001"}, {"user": "nobody"}]}),
    ("POST", "/v1/similar", {"items": ["i001"]}),
    ("POST", "/v1/recommend", {"user": "u001", "mode": "sample", "seed": 1}),
    ("POST", "/v1/score", {"user": "u001", "items": ["i001"], "columns": ["category"]}),
    ("POST", "/v1/score", {"history": ["i002"], "items": ["i001"], "model": "rg2"}),
    ("POST", "/v1/explain", {"user": "u001", "item": "i001"}),
    ("POST", "/v1/explain", {"user": "u001", "item": "i001", "k": 2, "model": "rg2"}),
    ("POST", "/v1/vectors", {"users": ["u001"], "model": "rg2"}),
    ("POST", "/v1/vectors", {"users": ["u001"]}),
    ("GET", "/v1/recommend/{user}", "/v1/recommend/u001"),
    ("GET", "/v1/similar/{item}", "/v1/similar/i001"),
    ("GET", "/v1/items", "/v1/items?q=i0"),
    ("POST", "/v1/items", {"items": ["i001", "i002"]}),
    ("GET", "/v1/study", "/v1/study"),
    ("GET", "/v1/study/users", "/v1/study/users?kind=cold&limit=2"),
    ("GET", "/v1/items/{item}", "/v1/items/i001"),
    ("GET", "/v1/users", "/v1/users?limit=2"),
    ("GET", "/v1/users/{user}", "/v1/users/u001"),
    ("GET", "/v1/models", "/v1/models"),
    ("GET", "/v1/models/{name}", "/v1/models/cf"),
    ("GET", "/readyz", "/readyz"),
    ("POST", "/v1/models/{name}/reload", {}),
]


@pytest.mark.parametrize(("method", "path", "given"), CALLS, ids=str)
def test_an_answer_is_of_the_schema_of_its_endpoint(
    method: str, path: str, given: Any, client: Client, document: Any
) -> None:
    at = path.format(name="cf", user="", item="")
    found = client.post(at, given) if method == "POST" else client.get(given)
    answer = document["paths"][path][method.lower()]["responses"][str(found.status)]
    kind = found.headers["content-type"]
    check(found.json, answer["content"][kind]["schema"], document)


def check(value: Any, schema: Any, document: Any) -> None:
    """Check a value against what our schemas use of JSON Schema."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            try:
                return check(value, each, document)
            except AssertionError:
                continue
        raise AssertionError(f"{value} is none of {schema['anyOf']}")
    if "enum" in schema:
        assert value in schema["enum"]
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert isinstance(value, tuple(TYPES[kind] for kind in kinds)), (value, schema)
    for name in schema.get("required", []):
        assert name in value, (name, value)
    for name, inside in schema.get("properties", {}).items():
        if name in value:
            check(value[name], inside, document)
    if isinstance(value, list) and "items" in schema:
        for each in value:
            check(each, schema["items"], document)
    return None


# fuzz --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", slow(60))
def test_schemathesis_finds_the_document_true(count: int, url: str) -> None:
    pytest.importorskip("schemathesis", reason="pip install 'softdex[fuzz]'")
    found = call(url, count)
    assert found.errors == 0
    assert not found.failures, found.failures[0]
    assert {200, 404, 422} <= found.statuses.keys()


def test_every_endpoint_that_takes_a_body_gets_hostile_ones() -> None:
    assert FIELDS.keys() == SOUND.keys()


@pytest.mark.parametrize("count", [1500, *slow(20_000)])
def test_no_body_makes_a_fault(count: int, client: Client, document: Any) -> None:
    draw, seen = random.Random(count), set[int]()
    for _ in range(count):
        path, raw, headers = hostile(draw)
        found = client.ask("POST", path, raw, **headers)
        seen.add(found.status)
        assert found.status < 500 or found.status == 504, (path, raw[:1000], found.body)
        assert b"Traceback" not in found.body
        named = path.partition("?")[0].replace("/cf/", "/{name}/")
        assert str(found.status) in document["paths"][named]["post"]["responses"]
    assert {200, 202, 400, 403, 404, 413, 415, 422} <= seen


@pytest.mark.parametrize("count", [300, *slow(20_000)])
def test_no_query_and_no_path_makes_a_fault(count: int, client: Client, document: Any) -> None:
    draw = random.Random(count)
    paths = [e.path.replace(":path", "") for e in ENDPOINTS if e.method == "GET"]
    parts = ["u001", "i001", "cf", "%00", "%ff", "..", "a%2Fb", "é", "nobody", "%F0%9F%92%A9"]
    names = ["k", "q", "limit", "where", "columns", "unknown", "model", "odd", "exclude_seen"]
    values = [
        "",
        "1",
        "0",
        "-1",
        "1e9",
        "9" * 30,
        "category:c000",
        "category",
        "%00",
        "%ff",
        "true",
    ]
    for _ in range(count):
        path = row = draw.choice(paths)
        for name in ("{user}", "{item}", "{name}"):
            path = path.replace(name, draw.choice(parts))
        query = "&".join(f"{draw.choice(names)}={draw.choice(values)}" for _ in range(2))
        found = client.get(quote(f"{path}?{query}", safe="/?&=%:.+"))
        assert found.status < 500, (path, query, found.body)
        assert str(found.status) in document["paths"][row]["get"]["responses"], (path, query)
