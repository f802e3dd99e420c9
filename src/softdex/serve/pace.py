"""How long a model takes per batch: measured at start, and followed while it serves."""

from __future__ import annotations

from typing import final

MOST = 64  # users per batch, at most
BATCH_SECONDS = 0.02  # a batch takes no longer, where that is possible
SLICE, SLICE_SECONDS = 32, 0.01  # users of a slice of bulk work, and what it takes, at most
FOLLOW = 0.1  # weight of the latest batch


@final
class Pace:
    """Seconds per batch: fixed + each * users, times a factor that follows what is seen.

    Args:
        one: seconds of a batch of one user.
        many: seconds of a batch of `users` users.
        users: at least two.
    """

    def __init__(self, one: float = 1e-3, many: float = 1e-3 + 63e-4, users: int = MOST) -> None:
        self.each = max((many - one) / (users - 1), 1e-6)
        self.fixed = max(one - self.each, 0.0)
        self.factor = 1.0
        efficient = max(self.fixed, BATCH_SECONDS - self.fixed) / self.each
        self.most = int(min(max(efficient, 1), MOST))
        self.capacity = self.most / (self.fixed + self.each * self.most)

    @property
    def slice(self) -> int:
        """Return the users of a slice of bulk work, for which single requests wait."""
        return int(min(max((SLICE_SECONDS / self.factor - self.fixed) / self.each, 1), SLICE))

    def seconds(self, users: int) -> float:
        """Predict the seconds of a batch."""
        return self.factor * (self.fixed + self.each * users)

    def share(self, users: int) -> float:
        """Predict what a request adds to the wait of those behind it, in full batches."""
        return self.factor * (self.each * users + self.fixed / self.most)

    def saw(self, users: int, seconds: float) -> None:
        """Follow what a batch took."""
        ratio = seconds / (self.fixed + self.each * max(1, users))
        self.factor += FOLLOW * (min(max(ratio, 0.1), 20.0) - self.factor)
