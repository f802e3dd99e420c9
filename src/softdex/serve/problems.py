"""Refusals as RFC 9457 has them (`application/problem+json`), with the library's own sentence."""

from __future__ import annotations

import math
import re
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import inspect

from softdex.errors import SoftdexError, UnknownKey, did_you_mean
from softdex.serve.batcher import Full, Late
from softdex.serve.events import EventsError

PLACE = re.compile(r" - at `\$\.?(.*)`$")
VALUE = re.compile(r"^Invalid enum value '(.*)'$", re.DOTALL)
NAMED = re.compile(r"(?:unknown|required) field `(.*)`")


class Problem(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        detail: one sentence.
        headers: further headers of the answer.
        more: further members of the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more

    def members(self, request_id: str) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
            **self.more,
        }


def problem_of(error: Exception) -> Problem:
    """Return the refusal that an error stands for; 500 without a reason for a fault of ours."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Full):
        return overloaded(error.wait)
    if isinstance(error, Late):
        return Problem(504, "The deadline of the request passed before it was computed.")
    if isinstance(error, EventsError):
        return Problem(503, str(error))
    if isinstance(error, UnknownKey):
        return Problem(404, str(error))
    if isinstance(error, SoftdexError):
        return Problem(422, str(error))
    return Problem(500, "The server failed; its log has the reason under the request's id.")


def overloaded(wait: float) -> Problem:
    """Return the refusal of a request that would wait too long."""
    seconds = str(max(1, math.ceil(wait))).encode()
    return Problem(
        429,
        f"The server is at capacity: the expected wait is {wait * 1e3:.0f} ms. Try again later.",
        ((b"retry-after", seconds),),
    )


def invalid(error: msgspec.ValidationError, kind: Any) -> Problem:
    """Return the refusal of JSON, or of a query, with other fields or values than `kind` has."""
    text = PLACE.sub("", str(error))
    place = found[1] if (found := PLACE.search(str(error))) else ""
    name = found[1] if (found := NAMED.search(text)) else ""
    where = f" at `{place}`" if place else ""
    hint = ""
    if "unknown field" in text:
        hint = f" {did_you_mean(name, _fields(kind))}"
    elif found := VALUE.search(text):
        hint = f" {did_you_mean(found[1], _fields(kind)[place.rpartition('.')[2]])}"
    return Problem(422, f"{text}{where}.{hint}", field=".".join(filter(None, (place, name))))


# inside ------------------------------------------------------------------------------------------


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a type and of those in it, each with the values it is chosen from."""
    found, ahead = dict[str, tuple[Any, ...]](), [inspect.type_info(kind)]
    while ahead:
        info = ahead.pop()
        if isinstance(info, inspect.UnionType):
            ahead += info.types
        elif isinstance(info, inspect.ListType):
            ahead.append(info.item_type)
        elif isinstance(info, inspect.Metadata):
            ahead.append(info.type)
        elif isinstance(info, inspect.StructType):
            for field in info.fields:
                each = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
                found[field.name] = each.values if isinstance(each, inspect.LiteralType) else ()
                ahead.append(each)
    return found
