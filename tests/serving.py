"""A client for tests of the server."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def items(self) -> list[Any]:
        return [each["item"] for each in self.json["items"]]


class Client:
    """One connection, which stays open."""

    def __init__(self, url: str, **headers: str) -> None:
        self.at, self.headers = urlsplit(url).netloc, headers
        self.connection = http.client.HTTPConnection(self.at, timeout=20)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, raw, **{**JSON, **headers})

    def ask(self, method: str, path: str, body: bytes | None, **headers: str) -> Answer:
        named = {k.replace("_", "-"): v for k, v in (self.headers | headers).items()}
        self.connection.request(method, path, body, named)
        found = self.connection.getresponse()
        return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())

    def close(self) -> None:
        self.connection.close()
