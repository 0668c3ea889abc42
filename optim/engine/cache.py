"""What a request leaves behind: MLA's latents, KDA's states, and how the host tells the device where they lie.

`Cache` is memory; `Metadata` is what a decode step reads to find its way in it. The host refills the metadata between
two steps, since a captured graph reads only from fixed addresses.
"""

import torch

from ling_prof.errors import UserError
from optim.engine.config import Config
from optim.kernels.mla.naive import MAX_SPLITS

REQUEST, SCRATCH = 1, 0  # rows of KDA state: the one request's, and one for warm-up runs
SPLIT_TOKENS = 128  # the least context that is worth a split of its own


class Cache:
    """Memory for one request of up to `capacity` tokens. Raises UserError where the model has fewer positions.

    latent (MLA layers, capacity + 1, kv_lora + rope), its last slot scratch; conv (KDA layers, rows, 3 * heads * d for
    q k v, conv), rings of the last inputs; both in the model dtype. state (KDA layers, rows, heads, d_v, d_k) fp32.
    slots (capacity) int32: where the latent of each token of the request lies.
    """

    def __init__(self, c: Config, capacity: int, dtype: torch.dtype, device: str):
        if capacity > c.max_positions:
            raise UserError(f"{c.name} has {c.max_positions} positions, fewer than the {capacity} asked for.")
        d, rows = c.kda_width, 2
        self.capacity = capacity
        self.latent = torch.zeros(c.mla_layers, capacity + 1, c.kv_lora + c.rope, dtype=dtype, device=device)
        self.conv = torch.zeros(c.kda_layers, rows, 3 * d, c.conv, dtype=dtype, device=device)
        self.state = torch.zeros(c.kda_layers, rows, c.heads, c.kda_dim, c.kda_dim, device=device)
        self.slots = torch.arange(capacity, dtype=torch.int32, device=device)

    def clear(self) -> None:
        """Forgets the request; its latents need no clearing, since the length says how many count."""
        self.conv.zero_()
        self.state.zero_()

    def saved(self) -> tuple[torch.Tensor, ...]:
        """What a step overwrites of the request."""
        return self.conv[:, REQUEST].clone(), self.state[:, REQUEST].clone()

    def restore(self, saved: tuple[torch.Tensor, ...]) -> None:
        self.conv[:, REQUEST].copy_(saved[0])
        self.state[:, REQUEST].copy_(saved[1])


class Metadata:
    """Where the token of a decode step stands; every tensor keeps its address.

    position (1) int64, slot (1) int32: where its latent goes; length (1) int32: tokens to attend to, itself included;
    slots (capacity) int32: where those lie; splits (1) int32: parts the context is cut into; row (1) int32: KDA state;
    parked (1) int32: 1 while it points at scratch memory and is to stay so.
    """

    def __init__(self, cache: Cache):
        device = cache.latent.device
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.slot, self.length, self.splits, self.row, self.parked = torch.zeros(5, 1, dtype=torch.int32, device=device)
        self.slots = torch.zeros(cache.capacity, dtype=torch.int32, device=device)

    def refill(self, cache: Cache, seen: int) -> None:
        """For the token after the first `seen`."""
        self.position.fill_(seen)
        self.length.fill_(seen + 1)
        self.row.fill_(REQUEST)
        self.slot.copy_(cache.slots[seen : seen + 1])
        self.slots[: seen + 1].copy_(cache.slots[: seen + 1])
        self.splits.fill_(min(MAX_SPLITS, -(-(seen + 1) // SPLIT_TOKENS)))

    def refill_on_device(self, cache: Cache, seen: torch.Tensor) -> None:
        """The same from `seen` (1) int64 on the device: no number of it passes through the host."""
        self.position.copy_(seen)
        self.length.copy_(seen + 1)
        self.row.fill_(REQUEST)
        self.slot.copy_(cache.slots[seen.clamp(max=cache.capacity - 1)])
        self.slots.copy_(cache.slots)
        self.splits.copy_(((self.length + SPLIT_TOKENS - 1) // SPLIT_TOKENS).clamp(max=MAX_SPLITS))

    def park(self, cache: Cache) -> None:
        """Points at scratch memory: a step run now leaves the request as it is."""
        self.position.zero_()
        self.length.fill_(1)
        self.splits.fill_(1)
        self.row.fill_(SCRATCH)
        self.slot.fill_(cache.capacity)
        self.parked.fill_(1)

    def leave(self) -> None:
        """Ends `park`."""
        self.parked.zero_()
