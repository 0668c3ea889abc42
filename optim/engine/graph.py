"""A piece of device work as one CUDA graph."""

import ctypes
from collections.abc import Callable

import torch

PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
WARM_UP = 2  # runs before capture: compilation, handles and workspaces come into being there


class EdgeData(ctypes.Structure):
    """CUgraphEdgeData of the CUDA driver."""

    _fields_ = [
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    ]


def _done(status: int) -> None:
    if status:
        raise RuntimeError(f"cuGraphGetEdges_v2 failed with CUDA error {status}")


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
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            run()
        self.graph.instantiate()
        self.graph.replay()

    def edges(self) -> tuple[int, int]:
        """How many edges the graph has, and how many are programmatic (cuGraphGetEdges_v2)."""
        count = ctypes.c_size_t()
        graph = ctypes.c_void_p(self.graph.raw_cuda_graph())
        driver = ctypes.CDLL("libcuda.so.1")
        _done(driver.cuGraphGetEdges_v2(graph, None, None, None, ctypes.byref(count)))
        nodes, data = (ctypes.c_void_p * count.value * 2)(), (EdgeData * count.value)()
        _done(driver.cuGraphGetEdges_v2(graph, nodes[0], nodes[1], data, ctypes.byref(count)))
        return count.value, sum(edge.type == PROGRAMMATIC for edge in data)

    def __call__(self, *_: object) -> None:
        """Arguments change nothing: a graph reads only its tensors."""
        self.graph.replay()
