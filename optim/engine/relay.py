"""Decoding one launch ahead of what the host knows."""

import torch

DEPTH = 2  # launches in flight


class Relay:
    """Stands for Engine.advance: a call launches the step after the one whose token it returns.

    The token of each step is copied to pinned memory on a side stream, behind an event; the lengths the host counts
    itself. What was launched ahead when a request ends is overwritten by the next prompt.
    """

    def __init__(self, engine):
        self.engine = engine
        device = engine.token.device
        self.side = torch.cuda.Stream(device)
        self.kept = torch.zeros(DEPTH, dtype=torch.int64, device=device)
        self.pinned = torch.zeros(DEPTH, dtype=torch.int64, pin_memory=True)
        self.done = [torch.cuda.Event() for _ in range(DEPTH)]
        self.arrived = [torch.cuda.Event() for _ in range(DEPTH)]
        self.request, self.launched = -1, 0

    def __call__(self) -> int:
        engine = self.engine
        if self.request != engine.request:
            self.request, self.launched = engine.request, engine.steps
        while self.launched <= engine.steps + 1 and engine.prompt_tokens + self.launched < engine.cache.capacity:
            self._launch()
        if self.launched <= engine.steps:
            engine.launch(engine.prompt_tokens + self.launched)  # says that the cache is full
        slot = engine.steps % DEPTH
        self.arrived[slot].synchronize()
        return int(self.pinned[slot])

    def _launch(self) -> None:
        slot = self.launched % DEPTH
        self.engine.launch(self.engine.prompt_tokens + self.launched)
        self.kept[slot].copy_(self.engine.token[0])
        self.done[slot].record()
        with torch.cuda.stream(self.side):
            self.done[slot].wait()
            self.pinned[slot].copy_(self.kept[slot], non_blocking=True)
            self.arrived[slot].record()
        self.launched += 1
