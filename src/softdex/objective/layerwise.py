"""Layer-wise: the loss of a tree is the sum of the losses of its levels.

An item's label on a level is its ancestor there. Shapes: B rows, N nodes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from softdex.objective.sampled import FLOOR


def level_softmax(pos: Tensor, scores: Tensor) -> Tensor:
    """Cross-entropy of the label against all nodes of a level, those that are empty at -inf.

        loss_b = -o_y + log sum_n exp o_n                                            [S0, Eq. 9]

    Args:
        pos: scores of the labels (B,).
        scores: of all nodes (B, N).

    Returns:
        loss (B,). Its minimiser puts exp o_n in proportion to the probability of the items below n
        (Eq. 12), by which a beam search need not be optimal (Proposition 1).
    """
    return scores.clamp(min=FLOOR).logsumexp(1) - pos


def level_binary(
    pos: Tensor, neg: Tensor, hit: Tensor, label: Tensor | float = 1.0, there: Tensor | float = 1.0
) -> Tensor:
    """Is this node the label's, yes or no, of the label and of the others, summed.

        loss_b = -z log sigmoid(o_y) - (1 - z) log(1 - sigmoid(o_y)) - sum_n log(1 - sigmoid(o_n))

    Args:
        pos: scores of the labels (B,).
        neg: scores of other nodes (B, N).
        hit: where such a node is the label, or empty (B, N).
        label: z, what the label counts (B,): of 0 it is like the others.
        there: whether it is asked about (B,). If others are asked only where a search comes by
            them, it must be so for the label: nodes that are never denied and sometimes affirmed
            rise without end.

    Returns:
        loss (B,). With all siblings of the path as the others, the product of the sigmoids along a
        path is the probability of its node (probabilistic label trees).
    """
    own = label * softplus(-pos) + (1 - label) * softplus(pos)
    return there * own + (softplus(neg.clamp(min=FLOOR)) * ~hit).sum(1)
