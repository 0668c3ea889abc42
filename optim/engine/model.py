"""The forward pass. One function for prompt and decode: only how a layer attends differs, and the caller says how."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from optim.engine import compose, kda, mla, moe
from optim.engine.cache import REQUEST, Cache, Metadata
from optim.engine.config import Config
from optim.engine.marks import mark

Attend = Callable[[int, torch.Tensor, Any], Any]  # layer, branch, stream (T, hidden) -> the next two


class Model:
    """Weights, memory and kernels of one model, ready to run.

    `w` as weights.build makes it; its head and routers may have another dtype than the rest: the input follows.
    `decode_ops` and `prefill_ops` begin as the same operations and may be exchanged one by one.
    """

    def __init__(self, c: Config, w: SimpleNamespace, cache: Cache, ops: SimpleNamespace):
        self.c, self.w, self.cache = c, w, cache
        compose.complete(ops)
        self.decode_ops, self.prefill_ops = ops, SimpleNamespace(**vars(ops))
        self.rope_table = mla.rope_table(c, cache.capacity, str(cache.latent.device))
        kinds = [c.is_mla(i) for i in range(c.layers)]
        self.rank = [kinds[:i].count(kinds[i]) for i in range(c.layers)]  # of a layer among those of its kind

    def decode(self, token: torch.Tensor, meta: Metadata) -> tuple[torch.Tensor, torch.Tensor | None]:
        """token (1) int64 -> logits (vocab) of the next one, and `best` of compose.head.

        Reads and writes the cache where `meta` says.
        """
        ops = self.decode_ops
        x, residual = self._layers(token, partial(self._attend_one, meta), ops)
        logits, best = self._head(x, residual, ops)
        return logits[0], best

    def prefill(self, tokens: torch.Tensor, seen: int) -> torch.Tensor:
        """tokens (T) int64, the prompt's from number `seen` on -> logits (vocab) after the last."""
        row = torch.tensor([REQUEST], dtype=torch.int32, device=tokens.device)
        x, residual = self._layers(tokens, partial(self._attend_many, seen, row), self.prefill_ops)
        return self._head(x[-1:], residual[-1:], self.prefill_ops)[0][0]

    def _layers(self, tokens: torch.Tensor, attend: Attend, ops) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens (T) -> the last branch and the residual stream before it, (T, hidden) each."""
        c, w = self.c, self.w
        with mark("embed"):
            x = ops.embed(tokens, w.embed)
        residual: Any = None
        for i, layer in enumerate(w.layers):
            with mark(f"layer {i} {'mla' if c.is_mla(i) else 'kda'}"):
                x, residual = attend(i, x, residual)
            with mark(f"layer {i} {'mlp' if c.is_dense(i) else 'moe'}"):
                dense = c.is_dense(i)
                x, residual = moe.mlp(x, residual, layer, c, ops) if dense else moe.moe(x, residual, layer, i, c, ops)
        return x, residual

    def _head(self, x: torch.Tensor, residual: torch.Tensor, ops) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Last branch and residual stream (T, hidden) -> logits (T, vocab) fp32 and perhaps the likeliest token."""
        with mark("head"):
            return ops.head(x, residual, self.w.norm, self.w.head, self.c.eps, ops)

    def _attend_one(self, meta: Metadata, layer: int, x: torch.Tensor, residual):
        c, w, n, cache, ops = self.c, self.w.layers[layer], self.rank[layer], self.cache, self.decode_ops
        if c.is_mla(layer):
            return mla.decode(x, residual, w, cache.latent[n], self.rope_table, meta, c, ops)
        return kda.decode(x, residual, w, cache.conv[n], cache.state[n], meta, c, ops)

    def _attend_many(self, seen: int, row: torch.Tensor, layer: int, x: torch.Tensor, residual):
        c, w, n, cache, ops = self.c, self.w.layers[layer], self.rank[layer], self.cache, self.prefill_ops
        if c.is_mla(layer):
            return mla.prefill(x, residual, w, cache.latent[n], self.rope_table, cache, seen, c, ops)
        return kda.prefill(x, residual, w, cache.conv[n], cache.state[n], row, seen, c, ops)
