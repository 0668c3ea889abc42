"""A rank of SGLang seen from inside, after its CUDA graphs are captured: what the passes prove themselves by."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from optim.sglang.registry import NotThere

PLAIN = "SGLang runs without speculative decoding"


class Rank:
    """The scheduler of one rank, its models, and the graphs of its smallest batch.

    Graphs can be looked into if they were captured inside `kept_graphs`.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.runner = scheduler.tp_worker.model_runner

    @property
    def speculator(self) -> Any:
        """What drafts; None without speculative decoding."""
        worker = getattr(self.scheduler, "draft_worker", None)
        return getattr(worker, "_draft_worker", worker)

    @property
    def models(self) -> list[Any]:
        """The model that serves, then the one that drafts."""
        drafts = getattr(self.speculator, "draft_runner", None)
        return [self.runner.model, *([drafts.model] if drafts is not None else [])]

    def modules(self, kind: str) -> list[Any]:
        """The modules of all models whose class is named `kind`."""
        return [one for model in self.models for one in model.modules() if type(one).__name__ == kind]

    @property
    def attention(self) -> Any:
        """The backend of full attention."""
        return getattr(self.runner.attn_backend, "full_attn_backend", self.runner.attn_backend)

    @property
    def linear_attention(self) -> Any:
        """The backend of linear attention. Raises NotThere where the model has none."""
        if (found := getattr(self.runner.attn_backend, "linear_attn_backend", None)) is None:
            raise NotThere("this model has no linear attention")
        return found

    @property
    def graphs(self) -> dict[str, Any]:
        """decode (or verify), draft and extend -> the captured graph, of those there are."""
        runners = {
            "verify" if self.speculator is not None else "decode": self.runner.decode_cuda_graph_runner,
            "draft": getattr(self.speculator, "cuda_graph_runner", None),
            "extend": getattr(self.speculator, "cuda_graph_runner_for_draft_extend", None),
        }
        captured = {
            name: getattr(getattr(runner, "backend", None), "_graphs", None) for name, runner in runners.items()
        }
        return {name: of[min(of, key=lambda key: key.size)] for name, of in captured.items() if of}

    @cached_property
    def edges(self) -> dict[str, list[Any]]:
        """optim.engine.graph.Edge by graph. Raises NotThere where none can be looked into."""
        from optim.engine.graph import edges

        return self._looked_into(edges)

    @cached_property
    def kernels(self) -> dict[str, Counter[str]]:
        """Names of kernels, C++ ones mangled, and how often each is launched, by graph. Raises as `edges`."""
        from optim.engine.graph import kernels

        return self._looked_into(kernels)

    def _looked_into(self, look: Any) -> dict[str, Any]:
        if not self.graphs:
            raise NotThere("no CUDA graph is captured")
        try:
            return {name: look(graph) for name, graph in self.graphs.items()}
        except (RuntimeError, OSError, AttributeError) as error:
            raise NotThere(f"the captured graphs cannot be looked into ({error})") from None

    def launches(self, part: str) -> int:
        """How many kernels of all graphs have `part` in their name. Raises as `kernels`."""
        return sum(times for of in self.kernels.values() for name, times in of.items() if part in name)


@contextmanager
def kept_graphs() -> Iterator[None]:
    """What is captured inside keeps its nodes, for a look into it."""
    import torch

    plain = torch.cuda.CUDAGraph

    class Kept(plain):  # type: ignore[misc, valid-type]
        def __new__(cls, keep_graph: bool = True) -> Any:
            return super().__new__(cls, keep_graph)

        def __init__(self, keep_graph: bool = True):
            super().__init__(keep_graph)  # which torch 2.9 to 2.13 heed, and not what __new__ is given

    torch.cuda.CUDAGraph = Kept  # type: ignore[misc]
    try:
        yield
    finally:
        torch.cuda.CUDAGraph = plain  # type: ignore[misc]
