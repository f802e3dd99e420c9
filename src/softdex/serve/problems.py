"""Refusals as RFC 9457 has them (`application/problem+json`), with the library's own sentence."""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import Any

import msgspec

from softdex.errors import SoftdexError, UnknownKey
from softdex.serve.batcher import Full, Late
from softdex.serve.events import EventsError

PLACE = re.compile(r" - at `\$\.?(.*)`$")
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
    if isinstance(error, msgspec.ValidationError):
        return invalid(error)
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


def invalid(error: msgspec.ValidationError) -> Problem:
    """Return the refusal of JSON that has other fields or types than expected."""
    text = PLACE.sub("", str(error))
    place = found[1] if (found := PLACE.search(str(error))) else ""
    name = found[1] if (found := NAMED.search(text)) else ""
    where = f" at `{place}`" if place else ""
    return Problem(422, f"{text}{where}.", field=".".join(filter(None, (place, name))))
