"""A made-up Nsight Systems export: the tables and columns of schema 3.20 with as many kernels and calls as asked.

    python benchmarks/generate_nsys.py OUT.sqlite --kernels 1000000

Every kernel has one runtime call. Names, times and shapes are invented; the same arguments give the same rows.
"""

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

PID = 4242
GLOBAL_PID = 1 << 48 | PID << 24
NAMES = 120
CALLS = ("cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060")

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
    nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'Local', 'CudaDriverVersion', 0, '13000');
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000, '', '');
INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H200');
INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node');
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'), ('EXPORT_SCHEMA_VERSION', '3.20.3');
"""


def strings() -> Iterator[tuple[int, str]]:
    """Ids 0..: the calls, then short, demangled and mangled name of each kernel."""
    yield from enumerate(CALLS)
    for i in range(NAMES):
        short = f"made_elementwise_kernel_{i}"
        loop = f"made::native::gpu_kernel_impl<made::native::functor_{i}<float>>(made::TensorIteratorBase&)"
        demangled = f"void made::native::{short}<128, {i % 8}, {loop}::{{lambda(int)#1}}>(int, {loop})"
        yield from enumerate((short, demangled, f"_ZN4made6native{len(short)}{short}Eif"), len(CALLS) + 3 * i)


def calls(kernels: int, seed: int) -> Iterator[tuple]:
    random, clock = Random(seed), 20_000_000
    for i in range(kernels):
        clock += 900 + int(random.random() ** 4 * 20_000)
        length = 3000 + int(random.random() * 4000)
        yield clock, clock + length, 0, GLOBAL_PID | PID, 40 + 3 * i, i % 17 % len(CALLS), 0, None
        clock += length


def kernels_of(rows: Iterator[tuple], seed: int) -> Iterator[tuple]:
    random, free = Random(seed + 1), 0
    for i, (_, called, _, _, corr, *_) in enumerate(rows):
        start = max(called + 1200, free + 700)
        free = start + 900 + int(random.random() ** 3 * 9000)
        name = len(CALLS) + 3 * int(random.random() * NAMES)
        blocks = 1 + int(random.random() * 48)
        where = (0, 1, None, 7, corr, GLOBAL_PID, name + 1, name, name + 2, 1, 1)
        shape = (16 + 2 * blocks, blocks, 1 + blocks % 3, 1, 128 << blocks % 3, 1, 1)
        shared = (64 * (blocks % 5), 1024 * (blocks % 7))
        yield start, free, *where, *shape, *shared, 0, 250871808, i + 1, 32768, None, 0


def write(path: Path, kernels: int, seed: int = 0) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, ?)", (PID,))
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", strings())
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({marks(8)})", calls(kernels, seed))
        rows = kernels_of(calls(kernels, seed), seed)
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks(28)})", rows)
        db.commit()


def marks(columns: int) -> str:
    return ", ".join("?" * columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.out, args.kernels, args.seed)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB, {args.kernels:,} kernels and as many runtime calls")


if __name__ == "__main__":
    main()
