"""The forward pass. One function for prompt and decode: only how a layer attends differs, and the caller says how."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from optim.engine import kda, mla
from optim.engine.cache import REQUEST, Cache, Metadata
from optim.engine.config import Config
from optim.engine.marks import mark
from optim.engine.moe import mlp, moe

Attend = Callable[[int, torch.Tensor], torch.Tensor]  # layer, x (T, hidden) -> (T, hidden)


class Model:
    """Weights, memory and kernels of one model, ready to run.

    `w` as weights.build makes it; its head and routers may have another dtype than the rest: the input follows.
    """

    def __init__(self, c: Config, w, cache: Cache, ops):
        self.c, self.w, self.cache, self.ops = c, w, cache, ops
        self.rope_table = mla.rope_table(c, cache.capacity, str(cache.latent.device))
        kinds = [c.is_mla(i) for i in range(c.layers)]
        self.rank = [kinds[:i].count(kinds[i]) for i in range(c.layers)]  # of a layer among those of its kind

    def decode(self, token: torch.Tensor, meta: Metadata) -> torch.Tensor:
        """token (1) int64 -> logits (vocab) of the next one; reads and writes the cache where `meta` says."""
        return self._forward(token, lambda layer, x: self._attend_one(layer, x, meta))[0]

    def prefill(self, tokens: torch.Tensor, seen: int) -> torch.Tensor:
        """tokens (T) int64, the prompt's from number `seen` on -> logits (vocab) after the last."""
        row = torch.tensor([REQUEST], dtype=torch.int32, device=tokens.device)
        return self._forward(tokens, lambda layer, x: self._attend_many(layer, x, seen, row), last_only=True)[0]

    def _forward(self, tokens: torch.Tensor, attend: Attend, last_only: bool = False) -> torch.Tensor:
        """tokens (T) -> logits (T, vocab), or (1, vocab) of the last."""
        c, w, ops = self.c, self.w, self.ops
        with mark("embed"):
            x = F.embedding(tokens, w.embed)
        residual = None
        for i, layer in enumerate(w.layers):
            with mark(f"layer {i} {'mla' if c.is_mla(i) else 'kda'}"):
                x, residual = self._join(x, residual, layer.attn_norm)
                x = attend(i, x)
            with mark(f"layer {i} {'mlp' if c.is_dense(i) else 'moe'}"):
                x, residual = self._join(x, residual, layer.mlp_norm)
                x = mlp(x, layer, ops) if c.is_dense(i) else moe(x, layer, i, c, ops)
        with mark("head"):
            x, _ = self._join(x, residual, w.norm)
            x = x[-1:] if last_only else x
            return F.linear(x.to(w.head.dtype), w.head).float()

    def _join(self, x, residual, weight) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the branch x to the residual stream -> (its norm, the stream)."""
        if residual is None:
            return self.ops.rms_norm(x, weight, self.c.eps), x
        return self.ops.add_rms_norm(x, residual, weight, self.c.eps)

    def _attend_one(self, layer: int, x: torch.Tensor, meta: Metadata) -> torch.Tensor:
        w, n, cache = self.w.layers[layer], self.rank[layer], self.cache
        if self.c.is_mla(layer):
            return mla.decode(x, w, cache.latent[n], self.rope_table, meta, self.c, self.ops)
        return kda.decode(x, w, cache.conv[n], cache.state[n], meta.row, self.c, self.ops)

    def _attend_many(self, layer: int, x: torch.Tensor, seen: int, row: torch.Tensor) -> torch.Tensor:
        w, n, cache = self.w.layers[layer], self.rank[layer], self.cache
        if self.c.is_mla(layer):
            return mla.prefill(x, w, cache.latent[n], self.rope_table, cache, seen, self.c, self.ops)
        return kda.prefill(x, w, cache.conv[n], cache.state[n], row, self.c, self.ops)
