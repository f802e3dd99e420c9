"""New items: vectors for items that were not in training, by the softmax over the known users."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import softplus

from softdex.score.contract import Product

BLOCK = 256  # items solved for together
ROUNDS = 60
OTHERS = 20_000  # sampled users without events on new items


def chosen_users(events: sp.csr_matrix, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Users with events on new items, a sample of the others, and the number each stands for."""
    met = np.zeros(size, bool)
    met[events.indices] = True
    others = np.flatnonzero(~met)
    drawn = np.random.default_rng(seed).permutation(others)[:OTHERS]
    users = np.append(np.flatnonzero(met), drawn)
    share = len(others) / max(1, len(drawn))
    return users, np.where(met[users], 1.0, share)


def fit_new_items(
    scorer: Product,
    query: Tensor,
    count: Tensor,
    mass: Tensor,
    events: sp.csr_matrix,
    offsets: Tensor | None,
) -> Tensor:
    """Maximum a posteriori rows of the item table, with everything else held fixed.

    With L_u the log mass of the known items and s = score(u, x), a new item adds to the loss of the
    full softmax

        sum over users of (n_u + c_u) log(1 + exp(s_u - L_u)) - c_u s_u

    The prior is normal, with the means and variances of the known items' vectors.

    Args:
        scorer: the inner product that the items will be scored with.
        query: projected queries (U, D).
        count: events n per user (U,).
        mass: L (U,).
        events: c, new items x users.
        offsets: of the new items (M,), if the scorer has any; not used where the rows of the item
            table determine them (`offsets_of`).
    """
    known = scorer.items.weight
    middle, spread = known.mean(0), known.var(0, correction=0).clamp(min=1e-6)
    if len(known) < 2:
        spread = torch.full_like(middle, 1 / len(middle))
    found = []
    for start in range(0, events.shape[0], BLOCK):
        part = events[start : start + BLOCK].T.toarray().astype(np.float32)
        own = torch.from_numpy(part).to(known.device)
        x = middle.repeat(own.shape[1], 1).requires_grad_()
        given = 0.0 if offsets is None else offsets[start : start + BLOCK]
        of_rows = getattr(scorer, "offsets_of", lambda rows, given=given: given)

        def loss(x: Tensor = x, own: Tensor = own) -> Tensor:
            s = query @ scorer.directions(x).T + of_rows(x)  # noqa: B023
            fit = (softplus(s - mass[:, None]) * (count[:, None] + own) - own * s).sum()
            return fit + ((x - middle).square() / spread).sum() / 2

        search = torch.optim.LBFGS([x], max_iter=ROUNDS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            search.zero_grad()  # noqa: B023
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        search.step(closure)  # type: ignore[no-untyped-call]
        found.append(x.detach())
    return torch.cat(found)
