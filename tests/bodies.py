"""Hostile requests for every endpoint that takes a body: `hostile` draws one of any kind."""

from __future__ import annotations

import io
import json
import random
from typing import Any, NamedTuple

import pyarrow as pa

from softdex.serve.endpoints import ENDPOINTS

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
BATCH, RELOAD = "/v1/recommend/batch", "/v1/models/cf/reload"
ODD: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 2**64, 10**40, 1.5, -0.0, 1e308, "", "u001", "i001", "nobody",
    "\0", "é", "\u202e", "\ud800", "\U0001f4a9", "e\u0301" * 50, "%s", "a" * 300, "category",
    "error", "popular", "sample", [], [[]], [None], ["u001"], ["i001", "i001"], [1, "i001"],
    [["i001"], ["i002"]], {}, {"category": "c000"}, {"category": ["c000", None]}, {"category": 1},
    {"": ""}, {"category": -1}, {"category": 2**70}, {"category": [2**70, 0.5]}, "rg2", "/dev/zero",
]  # fmt: skip
SOUND: dict[str, dict[str, Any]] = {
    "/v1/recommend": {"user": "u001"},
    BATCH: {"requests": [{"user": "u001"}, {"history": ["i001"], "k": 2}]},
    "/v1/similar": {"items": ["i001"]},
    "/v1/score": {"user": "u001", "items": ["i001"]},
    "/v1/explain": {"user": "u001", "item": "i001"},
    "/v1/vectors": {"users": ["u001"], "model": "rg2"},
    "/v1/events": {"user": "u001", "item": "i001"},
    "/v1/items": {"items": ["i001"]},
    "/v1/study/effort": {"user": "u001", "model": "tdm"},
    "/v1/study/inside": {"user": "u001", "model": "tdm"},
    "/v1/study/sampler": {"user": "u001", "model": "rg2"},
    "/v1/study/sampler/draws": {"user": "u001", "proposal": "uniform", "model": "rg2"},
    RELOAD: {},
}
FIELDS: dict[str, list[str]] = {
    each.path.replace("{name}", "cf"): [*each.body.__struct_fields__, "odd"]
    for each in ENDPOINTS
    if each.body is not None
}
NUMBERS = [b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"00", b"-", b"0x10", b"1" * 5000,
           b"1e" + b"9" * 400, b"0." + b"0" * 400 + b"1", b"9223372036854775808"]  # fmt: skip
QUERIES = ["", "?k=0", "?k=1&unknown=skip", "?unknown=popular", "?k=" + "9" * 30, "?odd=1",
           "?mode=sample&seed=-1", "?mode=sample&temperature=nan", "?model=nix", "?k=%ff",
           "?columns=category", "?exclude_seen=2"]  # fmt: skip


class Request(NamedTuple):
    path: str
    body: bytes
    headers: dict[str, str]


def fields(draw: random.Random, path: str) -> Any:
    """Return a sound request with up to three odd fields."""
    given = dict(SOUND[path])
    for name in draw.sample(FIELDS[path], draw.randint(0, min(3, len(FIELDS[path])))):
        given[name] = draw.choice(ODD)
    if path == BATCH and draw.random() < 0.7:
        parts = [fields(draw, "/v1/recommend") for _ in range(draw.randint(0, 5))]
        return {"requests": parts}
    if path == "/v1/events" and draw.random() < 0.3:
        return [given, *(dict(SOUND[path]) for _ in range(draw.randint(0, 3)))]
    return given


def text(draw: random.Random, path: str) -> bytes:
    """Return JSON of odd fields; one in five is cut, spliced or spoiled."""
    ascii = draw.random() < 0.5
    raw = bytearray(json.dumps(fields(draw, path), ensure_ascii=ascii).encode(errors="replace"))
    if draw.random() < 0.2:
        at = draw.randrange(len(raw))
        raw[at : at + draw.randint(0, 3)] = draw.randbytes(2)
    return bytes(raw)


def numbers(draw: random.Random, path: str) -> bytes:
    """Return JSON with a number that is none, or that no machine holds."""
    name = draw.choice(FIELDS[path]).encode()
    head = json.dumps(SOUND[path]).encode()[:-1]
    comma = b"," if SOUND[path] else b""
    return head + comma + b'"' + name + b'":' + draw.choice(NUMBERS) + b"}"


def deep(draw: random.Random, path: str) -> bytes:
    """Return JSON that is nested far."""
    depth, name = draw.choice([10, 1000, 50_000]), draw.choice(FIELDS[path]).encode()
    inner = draw.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth,
                         b"[" * depth])  # fmt: skip
    return inner if draw.random() < 0.3 else b'{"' + name + b'":' + inner + b"}"


def long(draw: random.Random, path: str) -> bytes:
    """Return JSON with a long list or key; some of it is longer than a server reads."""
    name, size = draw.choice(FIELDS[path]), draw.choice([1000, 10_001, 200_000])
    value = draw.choice(["x" * 5 * size, ["i001"] * size, [{}] * size])
    return json.dumps({**SOUND[path], name: value}).encode()


def encoded(draw: random.Random, path: str) -> bytes:
    """Return JSON in another encoding than UTF-8, or with a mark, twice a name, or nothing."""
    given = json.dumps(fields(draw, path), ensure_ascii=False)
    kind = draw.choice(["utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7"])
    twice = given[:-1] + "," + given[1:]
    return draw.choice([given, twice, "", " ", "null", '"x"', "0"]).encode(kind, "replace")


def noise(draw: random.Random, path: str) -> bytes:
    """Return bytes of no meaning."""
    return draw.randbytes(draw.choice([1, 20, 3000]))


def arrow(draw: random.Random, path: str) -> bytes:
    """Return an Arrow stream of odd users; half of them are damaged."""
    columns: list[pa.Array] = [
        pa.array(["u001", "u002", "nobody"]), pa.array([], pa.string()), pa.array([None, "u001"]),
        pa.array([1, 2**62]), pa.array([1.5]), pa.array([[1], []]), pa.array([{"a": 1}]),
        pa.array([b"\xff"]), pa.array(["u001"]).dictionary_encode(), pa.array([True]), pa.nulls(2),
    ]  # fmt: skip
    table = pa.table({draw.choice(["user", "users", "x"]): draw.choice(columns)})
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=draw.choice([None, None, None, "lz4"]))
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table)
    raw = bytearray(out.getvalue())
    if draw.random() < 0.5:
        for _ in range(draw.choice([1, 3, 20])):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
    return bytes(raw[: draw.randrange(len(raw))] if draw.random() < 0.2 else raw)


KINDS = (text, numbers, deep, long, encoded, noise, arrow)
WEIGHTS = (60, 12, 5, 1, 8, 6, 8)


def hostile(draw: random.Random) -> Request:
    """Return a hostile request of any kind to any endpoint."""
    [kind] = draw.choices(KINDS, WEIGHTS)
    path = BATCH if kind is arrow else draw.choice([*SOUND])
    raw, media = kind(draw, path), ARROW if kind is arrow else JSON
    if draw.random() < 0.02:
        media = draw.choice([ARROW, JSON, "text/plain", "", f"{JSON}; charset=utf-16"])
    headers = {"Content-Type": media}
    if draw.random() < 0.02:
        headers["X-Timeout-Ms"] = draw.choice(["0", "1", "-1", "x", "9" * 30, "1e3"])
    query = draw.choice(QUERIES) if path == BATCH and draw.random() < 0.5 else ""
    return Request(path + query, raw, headers)
