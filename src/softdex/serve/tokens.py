"""Bearer tokens from a file: who may ask, and who may reload.

Each line is `read TOKEN` or `admin TOKEN`; `#` starts a comment.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Literal, final

from softdex.errors import SoftdexError
from softdex.serve.problems import Problem

SHORTEST = 16  # characters
Role = Literal["read", "admin"]


@final
class Tokens:
    """Hashes of tokens; the tokens themselves are not kept.

    Args:
        lines: of the file.
        where: name of the file, for errors.
    """

    def __init__(self, lines: list[str], where: str) -> None:
        self._known: list[tuple[bytes, Role]] = []
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or words[0] not in ("read", "admin"):
                raise SoftdexError(
                    f"serve: line {number} of {where} is not `read TOKEN` or `admin TOKEN`."
                )
            if len(words[1]) < SHORTEST:
                raise SoftdexError(
                    f"serve: the token in line {number} of {where} is shorter than {SHORTEST} "
                    "characters. Make one with: openssl rand -hex 32"
                )
            role: Role = "admin" if words[0] == "admin" else "read"
            self._known.append((_hash(words[1].encode()), role))
        if not self._known:
            raise SoftdexError(f"serve: {where} holds no token. Expected lines `read TOKEN`.")

    def role(self, header: bytes | None) -> Role | None:
        """Return what the bearer of an Authorization header may do; every token is compared."""
        kind, _, token = (header or b"").partition(b" ")
        given, found = _hash(token.strip()), None
        for known, role in self._known:
            if hmac.compare_digest(known, given) and found != "admin":
                found = role
        return found if kind.lower() == b"bearer" else None


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens."""
    try:
        return Tokens(path.read_text(encoding="utf-8").splitlines(), str(path))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SoftdexError(f"serve: cannot read the tokens in {path} ({why}).") from None


def check_access(tokens: Tokens | None, access: str, header: bytes | None) -> None:
    """Refuse a request whose Authorization header does not open an endpoint of this access."""
    if access == "open" or (tokens is None and access == "read"):
        return
    if tokens is None:
        raise Problem(403, "This needs an admin token. Start the server with --tokens FILE.")
    role = tokens.role(header)
    if role is None:
        why = "The token is not known." if header else "Expected Authorization: Bearer TOKEN."
        raise Problem(401, why, ((b"www-authenticate", b"Bearer"),))
    if access == "admin" and role != "admin":
        raise Problem(403, "This needs an admin token.")


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
