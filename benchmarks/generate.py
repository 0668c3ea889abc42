"""A made-up Kineto recording: the text torch 2.11 writes for an eager decode loop with stacks and shapes.

    python benchmarks/generate.py OUT.json --megabytes 200

The layout, the order of the sections and the shares of the event kinds are those of real recordings; names, times
and the model are invented. The same arguments give the same bytes.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import IO

from kineto_text import (
    BEGIN,
    DEVICE,
    DRIVER_LAUNCHED,
    GPU,
    HEAD,
    HOST,
    INPUTS,
    KERNELS,
    OPS,
    STREAM,
    TAIL,
    VARIANTS,
    event,
    flow,
    labels,
    micros,
)

LAYERS = 2


class Recorder:
    """Runs the invented program on a made-up clock and keeps the text of its events, section by section."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.clock = self.free = BEGIN
        self.corr = self.index = self.external = self.frame_id = 0
        self.parent = 1
        self.ops: list[str] = []
        self.frames: list[str] = []
        self.device: list[str] = []
        self.on_gpu: list[str] = []

    def tick(self) -> int:
        """Host time passes: mostly a few hundred ns, now and then a few us."""
        self.clock += 150 + int(6000 * self.random.random() ** 6)
        return self.clock

    @contextmanager
    def host(self, out: list[str], cat: str, name: str, args: str) -> Iterator[None]:
        at, start = len(out), self.tick()
        self.index += 1
        args += f'"Ev Idx": {self.index}'
        out.append("")
        yield
        out[at] = event(cat, name, HOST, start, self.tick() - start, args)

    @contextmanager
    def frame(self, name: str, module: str = "") -> Iterator[None]:
        self.frame_id += 1
        above, self.parent = self.parent, self.frame_id
        args = f'"Python parent id": {above}, "Python id": {self.frame_id}, {module}'
        with self.host(self.frames, "python_function", name, args):
            yield
        self.parent = above

    @contextmanager
    def module(self, name: str, number: int, line: int) -> Iterator[None]:
        with (
            self.frame(f"nn.Module: {name}_{number}", f'"Python module id": {number}, '),
            self.frame("nn/modules/module.py(1783): _call_impl"),
        ):
            self.leaf("<built-in method _get_tracing_state of PyCapsule object at 0x7f0000000900>")
            with self.frame(f"tiny/modeling_tiny.py({line}): forward"):
                self.leaf("nn/modules/module.py(1955): __getattr__")
                yield

    def leaf(self, name: str) -> None:
        with self.frame(name):
            pass

    def op(self, name: str) -> None:
        op, variant = OPS[name], int(self.random.random() * VARIANTS)
        self.external += 1
        args = f'"External id": {self.external},"Record function id": 0, {INPUTS[name, variant]}, '
        with self.host(self.ops, "cpu_op", name, args):
            for called in op.calls:
                self.op(called)
            if op.kernel:
                self.launch(op.kernel)

    def call(self, name: str, *ops: str) -> None:
        """Operators under a built-in of their own, as Python reaches them."""
        place = int(self.random.random() * 24) << 6
        with self.frame(f"<built-in method {name} of Tensor object at 0x7f00000{place:05x}>"):
            for op in ops:
                self.op(op)

    def runtime(self, name: str, cbid: int, length: int, cat: str = "cuda_runtime") -> tuple[int, str]:
        self.corr += 3
        start = self.tick()
        self.clock += length
        args = f'"External id": {self.external},      "cbid": {cbid}, "correlation": {self.corr}'
        return start, event(cat, name, HOST, start, length, args)

    def launch(self, kind: str) -> None:
        length = 4000 + int(self.random.random() * 6000)
        driver = kind in DRIVER_LAUNCHED
        name, cbid = ("cuLaunchKernelEx", 652) if driver else ("cudaLaunchKernel", 211)
        called, text = self.runtime(name, cbid, length, "cuda_driver" if driver else "cuda_runtime")
        start, busy = self.enqueue(called + length, 900 + int(self.random.random() ** 3 * 9000))
        blocks, threads = 1 + int(self.random.random() * 32), 128
        args = (
            f'"External id": {self.external},      "queued": 0, "device": {GPU}, "context": 1,      '
            f'"stream": {STREAM}, "correlation": {self.corr},      "registers per thread": {16 + 2 * blocks},      '
            f'"shared memory": {blocks * 64},      "blocks per SM": {blocks / 132:.6f},      '
            f'"warps per SM": {blocks * threads / 32 / 132:.6f},      "grid": [{blocks}, 1, 1],      '
            f'"block": [{threads}, 1, 1],      "est. achieved occupancy %": 0'
        )
        variant = int(self.random.random() * 9)
        self._launched(event("kernel", KERNELS[kind, variant], DEVICE, start, busy, args), start, called, text)

    def _launched(self, op: str, start: int, called: int, call: str) -> None:
        ends = flow("f", self.corr, DEVICE, start, ', "bp": "e"')
        self.device += [op, ends, call, flow("s", self.corr, HOST, called)]

    def enqueue(self, ready: int, busy: int) -> tuple[int, int]:
        """When the device starts an op that is launched at `ready`, and how long it takes."""
        start = max(ready + 1200, self.free + 700)
        self.free = start + busy
        return start, busy

    def read_back(self) -> None:
        """aten::item: a copy to pinned memory and the wait for it."""
        self.external += 1
        args = f'"External id": {self.external},"Record function id": 0, {INPUTS["aten::view", 0]}, '
        item = self.frame("<built-in method item of Tensor object at 0x7f0000000a00>")
        with item, self.host(self.ops, "cpu_op", "aten::item", args):
            self._copy_to_host()
            self.device.append(self.runtime("cudaStreamSynchronize", 131, max(900, self.free - self.clock))[1])

    def _copy_to_host(self) -> None:
        called, text = self.runtime("cudaMemcpyAsync", 41, 7000)
        start, busy = self.enqueue(called + 7000, 1440)
        args = (
            f'"External id": {self.external},      "device": {GPU}, "context": 1,      "stream": {STREAM}, '
            f'"correlation": {self.corr},      "bytes": 8, "memory bandwidth (GB/s)": 0.005555555555555556'
        )
        copy = event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", DEVICE, start, busy, args)
        self._launched(copy, start, called, text)

    def annotate_gpu(self, name: str, began: int) -> None:
        args = f'"External id": {self.external}'
        self.on_gpu.append(event("gpu_user_annotation", name, DEVICE, began, self.free - began, args))

    def flush(self, files: tuple[IO[str], ...]) -> int:
        """Moves the finished text into the section files; returns its size."""
        size = 0
        for file, texts in zip(files, (self.ops, self.frames, self.device), strict=True):
            size += file.write("".join(texts))
            texts.clear()
        return size


def decode_step(rec: Recorder, number: int) -> None:
    """One token of a small transformer."""
    name = f"decode_step_{number}"
    rec.external += 1
    rec.leaf("tiny/ranges.py(27): range_push")
    began = max(rec.clock, rec.free)
    args = f'"External id": {rec.external},"Record function id": 0, '
    with (
        rec.host(rec.ops, "user_annotation", name, args),
        rec.frame("tiny/generate.py(88): step"),
        rec.module("TinyForCausalLM", 0, 210),
    ):
        rec.call("embedding", "aten::embedding")
        for layer in range(LAYERS):
            decoder_layer(rec, layer)
        with rec.module("Linear", 4 * LAYERS, 131):
            rec.call("linear", "aten::linear")
        rec.call("argmax", "aten::argmax")
        rec.read_back()
    rec.annotate_gpu(name, began)


def decoder_layer(rec: Recorder, layer: int) -> None:
    with rec.module("TinyDecoderLayer", layer, 164):
        with rec.module("TinyNorm", layer, 40):
            rec.call("to", "aten::to")
            rec.call("mean", "aten::mean")
            rec.call("mul", "aten::unsqueeze", "aten::mul")
        with rec.module("TinyAttention", layer, 96):
            for _ in range(3):
                rec.leaf("<built-in function isinstance>")
                rec.leaf("<built-in method get of dict object at 0x7f0000000d00>")
            rec.call("linear", "aten::linear", "aten::slice")
            rec.call("decode_attention", "aten::view", "tiny::decode_attention")
            rec.call("linear", "aten::linear")
        with rec.module("TinyMLP", layer, 61):
            rec.leaf("<built-in function len>")
            rec.call("linear", "aten::linear")
            rec.call("mul", "aten::mul")


def write(path: Path, megabytes: float, seed: int = 0) -> int:
    """Writes about `megabytes` (10**6 bytes) of trace; returns the number of decode steps."""
    rec, steps, size = Recorder(seed), 0, 0
    rec.frame_id = 1
    with ExitStack() as stack:
        files = tuple(stack.enter_context(tempfile.TemporaryFile("w+", dir=path.parent)) for _ in range(3))
        while size < megabytes * 1e6:
            decode_step(rec, steps)
            steps += 1
            size += rec.flush(files)
        _join(path, rec, files)
    return steps


def _join(path: Path, rec: Recorder, files: tuple[IO[str], ...]) -> None:
    ops, frames, device = files
    length = rec.clock - BEGIN
    outer = '"Python parent id": null, "Python id": 1, "Ev Idx": 0'
    with open(path, "w") as out:
        out.write(HEAD)
        _append(out, ops)
        out.write(event("python_function", "generate.py(12): <module>", HOST, BEGIN, length + 1000, outer))
        _append(out, frames)
        _append(out, device)
        out.writelines(rec.on_gpu)
        out.write(labels(micros(BEGIN)))
        out.write(TAIL.format(start=micros(BEGIN), length=micros(length), end=micros(BEGIN + length)))


def _append(out: IO[str], section: IO[str]) -> None:
    section.seek(0)
    while text := section.read(1 << 20):
        out.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=200, help="10**6 bytes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    steps = write(args.out, args.megabytes, args.seed)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB, {steps} decode steps")


if __name__ == "__main__":
    main()
