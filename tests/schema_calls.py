"""Calls that schemathesis makes of an OpenAPI document, and what is wrong with their answers."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from typing import Any, NamedTuple
from urllib.request import urlopen

import hypothesis

USERS, ITEMS = ["u001", "u002", "u007"], ["i001", "i002", "i003"]
KNOWN: dict[str, list[Any]] = {
    "user": USERS, "users": USERS, "item": ITEMS, "items": ITEMS, "history": ITEMS, "allow": ITEMS,
    "deny": ITEMS, "histories": ITEMS, "columns": ["category"], "where": ["category:c000"],
    "model": ["cf", "rg2"], "name": ["cf"], "k": [1, 3],
}  # fmt: skip


class Called(NamedTuple):
    """Calls by status, and the failures that schemathesis told of them."""

    statuses: Counter[int]
    failures: list[str]

    @property
    def errors(self) -> int:
        """Number of server errors."""
        return sum(n for status, n in self.statuses.items() if status >= 500)


def call(url: str, per_operation: int, headers: dict[str, str] | None = None) -> Called:
    """Make so many calls per operation: of any sound data, of unsound data, and of sound data that
    name what the model knows. Raises `ImportError` without schemathesis."""
    import schemathesis
    from schemathesis import GenerationMode

    schemathesis.checks.load_all_checks()
    found = Called(Counter(), [])
    with urlopen(f"{url}/openapi.json") as answer:
        document = json.load(answer)
    for named in (False, True):
        schema = schemathesis.openapi.from_dict(_asking(document) if named else document)
        schema.config.update(base_url=url)
        for result in schema.get_all_operations():
            for mode in [GenerationMode.POSITIVE] if named else list(GenerationMode):
                _operation(result.ok(), mode, per_operation // 3, headers, found)
    return found


def _operation(operation: Any, mode: Any, count: int, headers: Any, found: Called) -> None:
    from schemathesis.checks import CHECKS

    names = ["positive_data_acceptance"]  # no schema knows all columns
    if operation.path.endswith("/batch"):
        names.append("negative_data_rejection")  # it answers a problem per request
    left_out = CHECKS.get_by_names(names)

    @hypothesis.settings(
        max_examples=max(1, count), deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def test(case: Any) -> None:
        answer = case.call(headers=headers)
        found.statuses[answer.status_code] += 1
        try:
            case.validate_response(answer, excluded_checks=left_out)
        except BaseException as failure:
            found.failures.append(f"{operation.label}: {failure}")

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # no unsound data without fields
        test()


def _asking(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose requests take known names only."""
    operations = [each for path in document["paths"].values() for each in path.values()]
    bodies = set(
        re.findall(r"schemas/(\w+)", json.dumps([o.get("requestBody") for o in operations]))
    )
    parts = document["components"]["schemas"]
    asked = {n: _knowing(v) if n in bodies else v for n, v in parts.items()}
    paths = {
        path: {m: o | {"parameters": _knowing(o.get("parameters", []))} for m, o in each.items()}
        for path, each in document["paths"].items()
    }
    return document | {"paths": paths, "components": document["components"] | {"schemas": asked}}


def _knowing(value: Any, name: str = "") -> Any:
    """Return a part of a document whose fields take known names only."""
    if isinstance(value, list):
        return [_knowing(each, name) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("in") in ("path", "query"):
        return value | {"schema": _knowing(value["schema"], value["name"])}
    if name in KNOWN and value.get("type") in ("string", "integer"):
        return {"enum": KNOWN[name]}
    if name in KNOWN and isinstance(value.get("type"), list):
        return {"enum": [*KNOWN[name], None]}
    if "properties" in value:
        fields = {n: _knowing(v, n) for n, v in value["properties"].items()}
        return value | {"properties": fields}
    return {n: _knowing(v, name) for n, v in value.items()}
