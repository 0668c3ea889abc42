"""One device's GPU activity as arrays, each op with the call that launched it: what every analysis starts from."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ling_prof import intervals as iv
from ling_prof.calls import GRAPH_LAUNCH, matching
from ling_prof.errors import UserError
from ling_prof.roles import ROLES, roles
from ling_prof.trace import Trace, thread_key

COMPUTE, COMMUNICATION, COPY = 0, 1, 2
COPY_NAME = re.compile(r"^(memcpy\d*_post|Memcpy|Memset|CopyHost|CopyDevice)", re.I)


@dataclass(frozen=True)
class Ops:
    """GPU ops of one device (and stream, when chosen), sorted by start. All arrays have one entry per op."""

    trace: Trace
    device: int
    row: np.ndarray  # row in trace.gpu

    def _column(self, name: str) -> np.ndarray:
        return self.trace.gpu[name].to_numpy()[self.row]

    def text(self, name: str) -> np.ndarray:
        """A category column of trace.gpu as strings."""
        values = self.trace.gpu[name].array
        return np.asarray(values.categories, object)[values.codes[self.row]]

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def start(self) -> np.ndarray:
        return self._column("start")

    @cached_property
    def end(self) -> np.ndarray:
        return self._column("end")

    @cached_property
    def stream(self) -> np.ndarray:
        return self._column("stream")

    @cached_property
    def names(self) -> pd.Categorical:
        return self.trace.gpu["name"].array.take(self.row)

    def name(self, i: int) -> str:
        return str(self.names[i])

    @cached_property
    def is_kernel(self) -> np.ndarray:
        return self.text("kind") == "kernel"

    @cached_property
    def is_opaque(self) -> np.ndarray:
        return self.text("kind") == "graph"

    @cached_property
    def role(self) -> np.ndarray:
        """Index into roles.ROLES."""
        return roles(self.names).codes.astype(np.int64)

    @cached_property
    def resource(self) -> np.ndarray:
        """COMPUTE, COMMUNICATION or COPY. A graph's copy node that shows as a kernel counts as a copy."""
        is_copy = matching(self.names, COPY_NAME)
        is_comm = self.role == ROLES.index("all_reduce")
        return np.where(is_copy, COPY, np.where(is_comm, COMMUNICATION, COMPUTE))

    @cached_property
    def launch(self) -> np.ndarray:
        """Row in trace.api of the launching call; -1 where none was recorded."""
        return self._column("api_row") if self.trace.has("api") else np.full(len(self), -1)

    def _of_launch(self, name: str) -> np.ndarray:
        if not self.trace.has("api"):
            return np.full(len(self), -1)
        return np.where(self.launch >= 0, self.trace.api[name].to_numpy()[self.launch], -1)

    @cached_property
    def launch_start(self) -> np.ndarray:
        return self._of_launch("start")

    @cached_property
    def launch_end(self) -> np.ndarray:
        return self._of_launch("end")

    @cached_property
    def thread(self) -> np.ndarray:
        """Key of the launching thread, as made by `thread_keys`; -1 where unknown."""
        return np.where(self.launch >= 0, thread_key(self._of_launch("pid"), self._of_launch("tid")), -1)

    @cached_property
    def graph_launch(self) -> np.ndarray:
        """Row in trace.api of the graph launch this op belongs to; -1 for ops launched one by one."""
        if not self.trace.has("api"):
            return np.full(len(self), -1)
        is_graph = matching(self.trace.api["name"].array, GRAPH_LAUNCH)
        return np.where((self.launch >= 0) & is_graph[self.launch], self.launch, -1)

    @cached_property
    def later_node(self) -> np.ndarray:
        """Whether the op is not the first to start of its graph launch, on any stream or device."""
        inside = np.flatnonzero(self.graph_launch >= 0)
        of_launch = pd.Series(np.arange(len(self.trace.gpu))).groupby(self.trace.gpu["api_row"].to_numpy()).first()
        later = np.zeros(len(self), bool)
        later[inside] = self.row[inside] != of_launch.reindex(self.graph_launch[inside]).to_numpy()
        return later

    @cached_property
    def elsewhere(self) -> iv.Union:
        """When other streams of the device were busy; empty unless one stream was chosen."""
        gpu = self.trace.gpu
        others = gpu[(gpu["device"] == self.device) & ~gpu.index.isin(self.row)]
        return iv.union(others["start"].to_numpy(), others["end"].to_numpy())

    @cached_property
    def own_calls(self) -> np.ndarray:
        """Rows of trace.api made by the processes that launched on this device; all where that is unknown."""
        pid = self.trace.api["pid"].to_numpy()
        own = pid[iv.distinct(self.launch[self.launch >= 0])]
        return np.isin(pid, own) if len(own) else np.ones(len(pid), bool)


def devices(trace: Trace) -> list[int]:
    """The devices that worked, busiest first."""
    gpu = trace.gpu
    busy = (gpu["end"] - gpu["start"]).groupby(gpu["device"]).sum().sort_values(ascending=False)
    return [int(d) for d in busy.index]


def select(trace: Trace, device: int | None = None, stream: int | None = None) -> Ops:
    """The ops of a device (default: the busiest) and, when given, of one stream. Raises UserError when none fit."""
    present = devices(trace)
    chosen = present[0] if device is None else device
    if chosen not in present:
        raise UserError(
            f"{trace.path}: no activity on device {chosen}; it has device {', '.join(map(str, sorted(present)))}."
        )
    keep = trace.gpu["device"].to_numpy() == chosen
    if stream is not None:
        streams = np.unique(trace.gpu["stream"].to_numpy()[keep])
        if stream not in streams:
            raise UserError(
                f"{trace.path}: no activity on stream {stream} of device {chosen}; "
                f"it has stream {', '.join(map(str, streams))}."
            )
        keep &= trace.gpu["stream"].to_numpy() == stream
    return Ops(trace, chosen, np.flatnonzero(keep))
