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
RECORD_KIND = {
    "stream_wait": re.compile(r"StreamWaitEvent"),
    "stream": re.compile(r"StreamSynchronize"),
    "event": re.compile(r"EventSynchronize"),
    "device": re.compile(r"(Device|Ctx|Thread)Synchronize"),
}
GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
LAUNCH = re.compile(r"^(cuda|cu|hip)(GraphLaunch|(Ext|Module|ExtModule)?Launch(Cooperative)?Kernel)")


def bare_name(name: str) -> str:
    """A CUDA call without its suffixes: cudaLaunchKernel_ptsz_v7000 -> cudaLaunchKernel."""
    return re.sub(r"(_ptsz|_ptds|_v\d+)+$", "", name)


def _kind(name: str) -> str:
    return next((kind for kind, pattern in BLOCKING.items() if pattern.match(name)), "")


def sync_kinds(names: pd.Categorical) -> pd.Categorical:
    """The `sync_kind` of each call by its name alone; asynchronous copies of pageable memory are told by their copy."""
    kinds = np.array([_kind(n) for n in names.categories] or [""], object)
    return pd.Categorical(kinds[names.codes] if len(names) else [], categories=["", *BLOCKING])


def record_kinds(recorded: pd.Categorical, api: pd.DataFrame | None, row: np.ndarray) -> pd.Categorical:
    """The kind of synchronisation records, by the call that made each (`row` of api, -1: unknown) where it tells:
    CUPTI of CUDA 13 calls a cudaStreamSynchronize a stream wait."""
    kinds = np.asarray(recorded, object)
    if api is not None and len(api):
        names = api["name"].array
        of_call = np.array([_record_kind(n) for n in names.categories], object)[names.codes[row]]
        kinds = np.where((row >= 0) & (of_call != ""), of_call, kinds)
    return pd.Categorical(kinds)


def _record_kind(name: str) -> str:
    return next((kind for kind, pattern in RECORD_KIND.items() if pattern.search(name)), "")


def matching(names: pd.Categorical, pattern: re.Pattern) -> np.ndarray:
    """Which rows have a name that `pattern` finds itself in; tested once per distinct name."""
    return np.array([bool(pattern.search(n)) for n in names.categories] or [False])[names.codes]
