"""The text of Kineto events as torch 2.11 lays it out, and the invented operators and kernels it speaks of."""

from typing import NamedTuple

PID, GPU, STREAM = 4242, 0, 7
BEGIN = 4_200_000_000_000_000  # ns

HEAD = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }
    ],
      "trace_id": "00000000000000000000000000000000",
      "with_stack": 1,
      "record_shapes": 1,
      "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "pg_count": 1},
      "cuda_driver_version": 13000,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790000000000000000,
  "traceEvents": [
"""
LABEL = """  {{
    "name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": 0,
    "args": {{
      "{key}": {value}
    }}
  }},
"""
TAIL = """  {{
    "ph": "X", "cat": "Trace", "ts": {start}, "dur": {length},
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {{
      "Op count": 0
    }}
  }},
  {{
    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",
    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {start}
  }},
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": {end}
  }}
  ],
  "traceName": "trace.json"
}}
"""


class Op(NamedTuple):
    """An operator: those it calls, whether it launches a kernel, and how many tensors and scalars it takes."""

    calls: tuple[str, ...] = ()
    kernel: str = ""
    tensors: int = 1
    scalars: int = 0


OPS = {
    "aten::as_strided": Op(scalars=3),
    "aten::view": Op(scalars=1),
    "aten::empty_strided": Op(tensors=0, scalars=6),
    "aten::empty": Op(tensors=0, scalars=6),
    "aten::transpose": Op(("aten::as_strided",), scalars=2),
    "aten::unsqueeze": Op(("aten::as_strided",), scalars=1),
    "aten::slice": Op(("aten::as_strided",), scalars=4),
    "aten::t": Op(("aten::transpose",)),
    "aten::reshape": Op(("aten::view",), scalars=1),
    "aten::copy_": Op((), "copy", 2, 1),
    "aten::_to_copy": Op(("aten::empty_strided", "aten::copy_"), scalars=6),
    "aten::to": Op(("aten::_to_copy",), scalars=5),
    "aten::mul": Op((), "mul", 2),
    "aten::mean": Op((), "mean", 1, 3),
    "aten::mm": Op((), "gemm", 2),
    "aten::matmul": Op(("aten::mm",), tensors=2),
    "aten::linear": Op(("aten::t", "aten::matmul"), tensors=3),
    "aten::index_select": Op(("aten::empty",), "gather", 2, 1),
    "aten::embedding": Op(("aten::reshape", "aten::index_select", "aten::view"), tensors=2, scalars=3),
    "tiny::decode_attention": Op(("aten::empty",), "attention", 4, 2),
    "aten::argmax": Op(("aten::empty",), "argmax", 1, 2),
}
DRIVER_LAUNCHED = {"attention"}


def kernel_name(kind: str, variant: int) -> str:
    """Long template names for the element-wise kinds, short ones for the rest, as in a real eager trace."""
    if kind == "gemm":
        return f"made_gemm_sm90_tst_{64 << variant % 3}x{8 << variant % 4}_64x16_{1 + variant}x1_v_bz_TNT"
    if kind in ("attention", "argmax"):
        return f"_made_{kind}_kernel_{variant}"
    loop = f"made::native::{kind}_kernel_cuda(made::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::"
    loop += f"{{lambda()#{variant}}}::operator()() const"
    body = f"made::native::gpu_kernel_impl_nocast<{loop}::{{lambda(float)#1}}>"
    call = f"{body}(made::TensorIteratorBase&, {loop}::{{lambda(float)#1}} const&)::{{lambda(int)#1}}"
    return f"void made::native::elementwise_kernel<128, {variant}, {call}>(int, {call})"


def inputs(op: Op, variant: int) -> str:
    """The recorded arguments of an operator, shapes included."""
    shapes = [f"[1, {1 << variant}, {1024 << (i + variant) % 3}]" for i in range(op.tensors)]
    strides = [f"[{1024 << (i + variant) % 3}, {1024 << (i + variant) % 3}, 1]" for i in range(op.tensors)]
    empty, concrete = ["[]"] * op.scalars, ['""'] * op.tensors + [f'"{i + variant}"' for i in range(op.scalars)]
    types = ['"c10::BFloat16"'] * op.tensors + ['"Scalar"'] * op.scalars
    columns = {"Concrete Inputs": concrete, "Input type": types, "Input Strides": strides + empty}
    columns["Input Dims"] = shapes + empty
    return ", ".join(f'"{key}": [{", ".join(values)}]' for key, values in columns.items())


VARIANTS = 4
INPUTS = {(name, v): inputs(op, v) for name, op in OPS.items() for v in range(VARIANTS)}
KERNELS = {(op.kernel, v): kernel_name(op.kernel, v) for op in OPS.values() if op.kernel for v in range(9)}


def micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def event(cat: str, name: str, where: str, start: int, length: int, args: str) -> str:
    return f"""  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", {where},
    "ts": {micros(start)}, "dur": {micros(length)},
    "args": {{
      {args}
    }}
  }},
"""


def flow(ph: str, corr: int, where: str, at: int, more: str = "") -> str:
    return f"""  {{
    "ph": "{ph}", "id": {corr}, {where}, "ts": {micros(at)},
    "cat": "ac2g", "name": "ac2g"{more}
  }},
"""


HOST = f'"pid": {PID}, "tid": {PID}'
DEVICE = f'"pid": {GPU}, "tid": {STREAM}'


def labels(ts: str) -> str:
    out = ""
    for pid, label, order in [(PID, "CPU", PID), *((i, f"GPU {i}", 5_000_000 + i) for i in range(8))]:
        rows = {"process_name": ("name", '"python3"'), "process_labels": ("labels", f'"{label}"')}
        rows["process_sort_index"] = ("sort_index", str(order))
        for name, (key, value) in rows.items():
            out += LABEL.format(name=name, ts=ts, pid=pid, key=key, value=value)
    return out
