"""The forward pass. One function for prompt and decode: only how a layer attends differs, and the caller says how."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from optim.engine import kda, mla, moe
from optim.engine.cache import REQUEST, Cache, Metadata
from optim.engine.config import Config
from optim.engine.marks import mark

Attend = Callable[[int, torch.Tensor], torch.Tensor]  # layer, x (T, hidden) -> (T, hidden)


class Model:
    """Weights, memory and kernels of one model, ready to run.

    `w` as weights.build makes it; its head and routers may have another dtype than the rest: the input follows.
    `decode_ops` and `prefill_ops` begin as the same operations and may be exchanged one by one.
    """

    def __init__(self, c: Config, w: SimpleNamespace, cache: Cache, ops: SimpleNamespace):
        self.c, self.w, self.cache = c, w, cache
        ops.routed = moe.routed
        self.decode_ops, self.prefill_ops = ops, SimpleNamespace(**vars(ops))
        self.rope_table = mla.rope_table(c, cache.capacity, str(cache.latent.device))
        kinds = [c.is_mla(i) for i in range(c.layers)]
        self.rank = [kinds[:i].count(kinds[i]) for i in range(c.layers)]  # of a layer among those of its kind

    def decode(self, token: torch.Tensor, meta: Metadata) -> torch.Tensor:
        """token (1) int64 -> logits (vocab) of the next one; reads and writes the cache where `meta` says."""
        x, residual = self._layers(token, lambda layer, x: self._attend_one(layer, x, meta), self.decode_ops)
        return self._head(x, residual, self.decode_ops)[0]

    def prefill(self, tokens: torch.Tensor, seen: int) -> torch.Tensor:
        """tokens (T) int64, the prompt's from number `seen` on -> logits (vocab) after the last."""
        row = torch.tensor([REQUEST], dtype=torch.int32, device=tokens.device)
        x, residual = self._layers(tokens, lambda layer, x: self._attend_many(layer, x, seen, row), self.prefill_ops)
        return self._head(x[-1:], residual[-1:], self.prefill_ops)[0]

    def _layers(self, tokens: torch.Tensor, attend: Attend, ops) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens (T) -> the last branch and the residual stream before it, (T, hidden) each."""
        c, w = self.c, self.w
        with mark("embed"):
            x = F.embedding(tokens, w.embed)
        residual: Any = None
        for i, layer in enumerate(w.layers):
            with mark(f"layer {i} {'mla' if c.is_mla(i) else 'kda'}"):
                x, residual = self._join(x, residual, layer.attn_norm, ops)
                x = attend(i, x)
            with mark(f"layer {i} {'mlp' if c.is_dense(i) else 'moe'}"):
                x, residual = self._join(x, residual, layer.mlp_norm, ops)
                x = moe.mlp(x, layer, ops) if c.is_dense(i) else moe.moe(x, layer, i, c, ops)
        return x, residual

    def _head(self, x: torch.Tensor, residual: torch.Tensor, ops) -> torch.Tensor:
        """Last branch and residual stream (T, hidden) -> logits (T, vocab) fp32."""
        with mark("head"):
            x, _ = self._join(x, residual, self.w.norm, ops)
            return ops.linear(x.to(self.w.head.dtype), self.w.head).float()

    def _join(self, x, residual, weight, ops) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the branch x to the residual stream -> (its norm, the stream)."""
        if residual is None:
            return ops.rms_norm(x, weight, self.c.eps), x
        return ops.add_rms_norm(x, residual, weight, self.c.eps)

    def _attend_one(self, layer: int, x: torch.Tensor, meta: Metadata) -> torch.Tensor:
        c, w, n, cache, ops = self.c, self.w.layers[layer], self.rank[layer], self.cache, self.decode_ops
        if c.is_mla(layer):
            return mla.decode(x, w, cache.latent[n], self.rope_table, meta, c, ops)
        return kda.decode(x, w, cache.conv[n], cache.state[n], meta.row, c, ops)

    def _attend_many(self, layer: int, x: torch.Tensor, seen: int, row: torch.Tensor) -> torch.Tensor:
        c, w, n, cache, ops = self.c, self.w.layers[layer], self.rank[layer], self.cache, self.prefill_ops
        if c.is_mla(layer):
            return mla.prefill(x, w, cache.latent[n], self.rope_table, cache, seen, c, ops)
        return kda.prefill(x, w, cache.conv[n], cache.state[n], row, c, ops)
