"""Which CUDA and HIP calls can make the host wait for the device."""

import re

import numpy as np
import pandas as pd

BLOCKING = {
    "device": re.compile(
        r"^(cudaDeviceSynchronize|cudaThreadSynchronize|cuCtxSynchronize|hipDeviceSynchronize|hipCtxSynchronize)"
    ),
    "stream": re.compile(r"^(cuda|cu|hip)StreamSynchronize"),
    "event": re.compile(r"^(cuda|cu|hip)EventSynchronize"),
    "copy": re.compile(r"^(cuda|cu|hip)(Memcpy(?!.*Async)(?!.*Batch)\w*|MemcpyWithStream)$"),
    "free": re.compile(
        r"^(cuda|hip)(Free|FreeHost|FreeArray|HostFree|HostUnregister)$|^cuMem(Free|FreeHost|HostUnregister)$"
    ),
}
COPY_CALL = re.compile(r"^(cuda|cu|hip)Memcpy")
GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")


def _kind(name: str) -> str:
    return next((kind for kind, pattern in BLOCKING.items() if pattern.match(name)), "")


def sync_kinds(names: pd.Categorical) -> pd.Categorical:
    """The `sync_kind` of each call by its name alone; asynchronous copies of pageable memory are told by their copy."""
    kinds = np.array([_kind(n) for n in names.categories] or [""], object)
    return pd.Categorical(kinds[names.codes] if len(names) else [], categories=["", *BLOCKING])
