"""Layer-wise: the loss of a tree is the sum of the losses of its levels.

The label of an item on a level is its ancestor there. Shapes: B rows, N nodes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from softdex.objective.sampled import MASKED_SCORE


def level_softmax(pos: Tensor, scores: Tensor) -> Tensor:
    """Cross-entropy of the label against all nodes of a level.

        loss_b = -o_y + log sum_n exp o_n                                          [DTR, Eq. 9]

    Args:
        pos: scores of the labels o_y (B,).
        scores: scores of all nodes (B, N), -inf for empty ones.

    Returns:
        loss (B,); the caller reduces.

    Relations: at its minimiser exp o_n is proportional to the probability of the items below n
    (DTR, Eq. 12), with which beam search need not be optimal (DTR, Proposition 1).
    """
    return scores.clamp(min=MASKED_SCORE).logsumexp(1) - pos


def level_binary(
    pos: Tensor, neg: Tensor, hit: Tensor, label: Tensor | float = 1.0, there: Tensor | float = 1.0
) -> Tensor:
    """Binary cross-entropy of the label and of other nodes of a level, summed.

        loss_b = -z log sigmoid(o_y) - (1 - z) log(1 - sigmoid(o_y)) - sum_n log(1 - sigmoid(o_n))

    Args:
        pos: scores of the labels o_y (B,).
        neg: scores of other nodes o_n (B, N).
        hit: True where such a node is the label, or is empty (B, N); it is ignored.
        label: z, the target of the label (B,); 0 makes it one of the others.
        there: weight of the label's term (B,): 0 where the search did not visit it. If other nodes
            are only trained where a search visits them, the label must be too: the score of a node
            that is never a negative and sometimes a positive grows without bound.

    Returns:
        loss (B,); the caller reduces.

    Relations: with all siblings along the path as the others, the product of the sigmoids along a
    path is the probability of its node (probabilistic label trees).
    """
    own = label * softplus(-pos) + (1 - label) * softplus(pos)
    return there * own + (softplus(neg.clamp(min=MASKED_SCORE)) * ~hit).sum(1)
