"""A piece of device work as one CUDA graph, and what any kept graph holds."""

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
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


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of the CUDA driver."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class Edge(NamedTuple):
    """Two nodes of a graph, one after the other: the names of their kernels, '' for a node that is no kernel.

    programmatic: the second may begin while the first still runs.
    """

    before: str
    after: str
    programmatic: bool


def _done(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver cannot say what a graph holds: error {status}")


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

    def edges(self) -> list[Edge]:
        """Every edge of the graph."""
        return edges(self.graph)

    def __call__(self, *_: object) -> None:
        """Arguments change nothing: a graph reads only its tensors."""
        self.graph.replay()


def edges(graph: torch.cuda.CUDAGraph) -> list[Edge]:
    """Every edge of a graph that was kept when it was captured (cuGraphGetEdges_v2)."""
    count, raw, driver = ctypes.c_size_t(), ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.CDLL("libcuda.so.1")
    _done(driver.cuGraphGetEdges_v2(raw, None, None, None, ctypes.byref(count)))
    nodes, data = (ctypes.c_void_p * count.value * 2)(), (EdgeData * count.value)()
    _done(driver.cuGraphGetEdges_v2(raw, nodes[0], nodes[1], data, ctypes.byref(count)))
    names = {node: _kernel_of(driver, ctypes.c_void_p(node)) for node in {*nodes[0], *nodes[1]}}
    rows = zip(*nodes, data, strict=True)
    return [Edge(names[before], names[after], edge.type == PROGRAMMATIC) for before, after, edge in rows]


def kernels(graph: torch.cuda.CUDAGraph) -> Counter[str]:
    """How often each kernel is a node of such a graph (cuGraphGetNodes)."""
    count, raw, driver = ctypes.c_size_t(), ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.CDLL("libcuda.so.1")
    _done(driver.cuGraphGetNodes(raw, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _done(driver.cuGraphGetNodes(raw, nodes, ctypes.byref(count)))
    found = Counter(_kernel_of(driver, ctypes.c_void_p(node)) for node in nodes)
    return Counter({name: times for name, times in found.items() if name})


def _kernel_of(driver: Any, node: ctypes.c_void_p) -> str:
    """The name of a node's kernel; '' for a node that is none, or whose name the driver does not know."""
    kind, params, name = ctypes.c_int(), KernelParams(), ctypes.c_char_p()
    _done(driver.cuGraphNodeGetType(node, ctypes.byref(kind)))
    if kind.value != KERNEL:
        return ""
    _done(driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(params)))
    if params.func:
        driver.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(params.func))
    else:
        driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(params.kern))
    return (name.value or b"").decode()
