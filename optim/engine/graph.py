"""A piece of device work as one CUDA graph."""

from collections.abc import Callable

import torch

WARM_UP = 2  # runs before capture: compilation, handles and workspaces come into being there


class Graph:
    """Captures `run`, which must read and write only tensors that keep their address, and replays it when called.

    `run` is executed a few times before and once after, so what it writes must be scratch then: the first replay is
    slow, since the device takes the graph in. `generator` is what it draws from, if it does.
    """

    def __init__(self, run: Callable[[], None], generator: torch.Generator | None = None):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            run()
        self.graph.replay()

    def __call__(self) -> None:
        self.graph.replay()
