"""Dispatch: compiled kernels where there are some for a device and dtype, plain torch elsewhere."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import prelu


def fused_for(tensor: Tensor) -> Any:
    """Return the module of fused row kernels for tensors on a GPU with Triton, else None."""
    return _optional("softdex.kernels.rows_gpu") if tensor.is_cuda else None


def products_for(tensor: Tensor) -> Any:
    """Return the module of compiled products with rows of a table, None where there is none."""
    if tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64):
        return importlib.import_module("softdex.kernels.rows_cpu")  # loads numba
    return fused_for(tensor)


def attend(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> Tensor:
    """Compute the attention weight of each history item for each node, by a small network.

        hidden_bnka = attention_bka + own_bna + sum over d of vectors_bkd nodes_bnd see_da
        weight_bnk = real_bk prelu(sum over a of weigh_a prelu(hidden_bnka) + bias)

    The hidden units take A times the memory of the weights. The kernels never store them: the
    gradient recomputes them. Shapes: B histories of L items, N nodes, A hidden units.

    Args:
        vectors: history items (B, L, D).
        attention: share of the history items in the hidden units (B, L, A).
        nodes: vectors (B, N, D), or (N, D) for all histories.
        see: weights of the products of item and node (D, A).
        own: share of the nodes in the hidden units, (B, N, A) or (N, A) like `nodes`.
        slope: of each hidden unit below 0 (A,).
        weigh: output weight of each hidden unit (A,).
        bias: of the output ().
        last_slope: of the output below 0 ().
        real: whether the position holds an item (B, L).

    Returns:
        weights (B, N, L), 0 where `real` is False. Under autocast a GPU kernel multiplies in bf16.
    """
    given = vectors, attention, nodes, see, own, slope, weigh, bias, last_slope
    short = torch.is_autocast_enabled(vectors.device.type)
    if short:
        given = tuple(t.float() for t in given)  # type: ignore[assignment]
    kernels = _attend_kernels(given, short)
    if kernels is None:
        return attend_plain(*given, real)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return _Attend.apply(kernels, *given, real)  # type: ignore[no-untyped-call]
    return kernels.weights(*given, real)


def attend_plain(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> Tensor:
    """Compute `attend` step by step in torch, for any device and dtype."""
    (size, length, _), (count, width) = vectors.shape, (nodes.shape[-2], see.shape[1])
    products = (nodes.unsqueeze(-1) * see).transpose(-3, -2)  # (.., D, N, A)
    hidden = vectors @ products.reshape(*products.shape[:-2], count * width)
    hidden = hidden.view(size, length, count, width) + attention.unsqueeze(2)
    hidden = hidden + (own if own.ndim == 2 else own.unsqueeze(1))
    weight = prelu(hidden.flatten(0, 2), slope) @ weigh + bias
    weight = prelu(weight, last_slope).view(size, length, count)
    return (weight * real.unsqueeze(2)).transpose(1, 2)


class _AttendKernels(NamedTuple):
    """Compute the weights, and the gradients of every argument."""

    weights: Callable[..., Tensor]
    grads: Callable[..., tuple[Tensor, ...]]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: _AttendKernels, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        ctx.kernels = kernels
        return kernels.weights(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.kernels.grads(grads[0], *ctx.saved_tensors), None


def _attend_kernels(given: tuple[Tensor, ...], short: bool) -> _AttendKernels | None:
    """Return the kernels for the device and dtype of the arguments, None where there are none."""
    kinds = {(t.device.type, t.dtype) for t in given}
    if kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)}):
        from softdex.kernels import attend_cpu  # loads numba

        return _AttendKernels(attend_cpu.forward, attend_cpu.backward)
    fused = _optional("softdex.kernels.attend_gpu") if kinds == {("cuda", torch.float32)} else None
    if fused is None or not fused.fits(given[3]):
        return None
    both = fused.forward, fused.backward
    return _AttendKernels(*(functools.partial(each, exact=not short) for each in both))


@functools.cache
def _optional(module: str) -> Any:
    """Import a module of GPU kernels, None where Triton is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
