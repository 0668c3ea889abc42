"""How fast and how lean ling_prof reads traces, beside the other readers of the same files.

    python benchmarks/load.py --hta-python HTA/bin/python --traceinsight-python TI/bin/python --json OUT

Generates the files, runs every candidate in fresh processes (interleaved, `--repeats` times), prints the best of each
with ratios, and exits with 1 when a bar is missed. Only ratios within one run mean anything. See benchmarks/README.md.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
Samples = list[dict]


class Job(NamedTuple):
    """A candidate of candidates.py, the Python that runs it and the file it reads."""

    title: str
    python: str
    candidate: str
    path: Path


class Bar(NamedTuple):
    title: str
    value: float | None  # None where not measured
    limit: float
    at_least: bool = False

    @property
    def missed(self) -> bool:
        return self.value is not None and (self.value < self.limit if self.at_least else self.value > self.limit)

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        if self.value is None:
            return f"NOT MEASURED  {self.title} ({side} {self.limit:g})"
        return f"{'MISSED' if self.missed else 'holds '}  {self.title}: {self.value:.2f} ({side} {self.limit:g})"


def run(job: Job) -> dict:
    command = [job.python, "-I", "-B", str(HERE / "candidates.py"), job.candidate, str(job.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{job.title} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(jobs: list[Job], repeats: int) -> dict[str, Samples]:
    """Round after round each job once, so that what else the machine does hits all alike."""
    found: dict[str, Samples] = {job.title: [] for job in jobs}
    for i in range(repeats):
        for job in jobs:
            print(f"  round {i + 1} of {repeats}: {job.title}", file=sys.stderr)
            found[job.title].append(run(job))
    for path in {job.path for job in jobs}:
        counts = {job.title: found[job.title][0]["kernels"] for job in jobs if job.path == path}
        if len(set(counts.values())) > 1:
            raise SystemExit(f"the candidates read different numbers of kernels: {counts}")
    return found


def version(python: str | None, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.check_output([python, "-I", "-c", code], text=True).strip() if python else ""


def best(samples: Samples, key: str) -> float:
    return min(sample[key] for sample in samples)


def over_base(samples: Samples) -> float:
    """Peak memory above what the process held once its imports were done."""
    return min(sample["peak_rss"] - sample["base_rss"] for sample in samples)


def generated(folder: Path, script: str, name: str, *options: str) -> Path:
    """A generated file in a folder of its own; one already there is kept when the same generator wrote it."""
    version = digest([HERE / script, HERE / "kineto_text.py"])
    path = folder / f"{Path(name).stem}-{version}" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, "-B", str(HERE / script), str(part), *options], check=True, capture_output=True)
        part.rename(path)
    return path


def kineto(folder: Path, megabytes: int) -> Path:
    return generated(folder, "generate.py", f"kineto_{megabytes}MB.json", f"--megabytes={megabytes}")


def show(heading: str, found: dict[str, Samples]) -> None:
    """A table: time and memory of each candidate, and both as multiples of the first one's."""
    columns = ("best s", "ratio", "cpu s", "ratio", "peak MB", "ratio", "- imports", "ratio")
    print(f"\n{heading}\n{'':31}" + "".join(f"{column:>10}" for column in columns) + "  all s")
    first = None
    for title, samples in found.items():
        times = best(samples, "load_s"), best(samples, "load_cpu_s")
        row = *times, best(samples, "peak_rss") / 1e6, over_base(samples) / 1e6
        first = first or row
        cells = (f"{value:10.2f}{value / one:9.2f}x" for value, one in zip(row, first, strict=True))
        print(f"{title:31}{''.join(cells)}  " + " ".join(f"{s['load_s']:.2f}" for s in samples))


def compare_kineto(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Samples], list[Bar]]:
    path = kineto(folder, args.compare)
    pythons = {"HolisticTraceAnalysis": args.hta_python, "traceinsight": args.traceinsight_python}
    others = {f"{name} {version(python, name)}".strip(): python for name, python in pythons.items()}
    jobs = [Job("ling_prof.load", sys.executable, "ling_prof_load", path)]
    jobs += [Job(title, python, "hta", path) for title, python in others.items() if python]
    found = measure(jobs, args.repeats)
    size = path.stat().st_size
    show(f"Kineto JSON, {size / 1e6:.0f} MB, into tables", found)
    for title in (title for title, python in others.items() if not python):
        print(f"{title:31} NOT MEASURED: give the Python of its environment (see --help)")
    ours = found["ling_prof.load"]
    ratios = {t: best(samples, "load_s") / best(ours, "load_s") for t, samples in found.items()}
    bars = [Bar(f"{title} / ling_prof, seconds", ratios.get(title), 8, at_least=True) for title in others]
    return found, [*bars, Bar("peak memory of load / size of the file", best(ours, "peak_rss") / size, 2.5)]


def compare_nsys(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Samples], list[Bar]]:
    path = generated(folder, "generate_nsys.py", f"nsys_{args.kernels}.sqlite", f"--kernels={args.kernels}")
    names = {
        "ling_prof.load": "ling_prof_load",
        "pandas.read_sql": "read_sql",
        "pandas.read_sql, names joined": "read_sql_named",
    }
    found = measure([Job(title, sys.executable, name, path) for title, name in names.items()], args.repeats)
    size = path.stat().st_size / 1e6
    show(f"Nsight .sqlite, {args.kernels:,} kernels and as many runtime calls, {size:.0f} MB", found)
    ours, theirs = found["ling_prof.load"], found["pandas.read_sql"]
    return found, [
        Bar("ling_prof / pandas.read_sql, seconds", best(ours, "load_s") / best(theirs, "load_s"), 1),
        Bar("ling_prof / pandas.read_sql, peak memory", best(ours, "peak_rss") / best(theirs, "peak_rss"), 0.5),
    ]


def scaling(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Samples], list[Bar]]:
    """Load alone and load with report at every size, sizes interleaved."""
    paths = {size: kineto(folder, size) for size in args.sizes}
    kinds = {"load": "ling_prof_load", "report": "ling_prof_report"}
    jobs = [
        Job(f"{kind} {size} MB", sys.executable, name, path)
        for size, path in paths.items()
        for kind, name in kinds.items()
    ]
    found = measure(jobs, args.repeats)
    rows = {size: _per_megabyte(found, size, path) for size, path in paths.items()}
    print("\nPer MB of Kineto JSON (report: its own time; the memory of load and report together)")
    columns = list(next(iter(rows.values())))
    print(f"{'':12}" + "".join(f"{column:>18}" for column in columns))
    for size, row in rows.items():
        print(f"{size:8} MB " + "".join(f"{value:18.2f}" for value in row.values()))
    small, large = min(rows), max(rows)
    growth = {column: rows[large][column] / rows[small][column] for column in columns}
    print(f"{f'{large} / {small}':12}" + "".join(f"{value:17.2f}x" for value in growth.values()))
    limits = {"load ms/MB": args.linear, "report ms/MB": args.linear}
    bars = [Bar(f"{c} at {large} MB / at {small} MB", growth[c], limits[c]) for c in limits]
    return found, [*(_report_bar(found, size) for size in args.sizes), *bars]


def _per_megabyte(found: dict[str, Samples], size: int, path: Path) -> dict[str, float]:
    load, both, megabytes = found[f"load {size} MB"], found[f"report {size} MB"], path.stat().st_size / 1e6
    return {
        "load ms/MB": 1e3 * best(load, "load_s") / megabytes,
        "report ms/MB": 1e3 * best(both, "report_s") / megabytes,
        "report / load": best(both, "report_s") / best(load, "load_s"),
        "load peak MB/MB": best(load, "peak_rss") / 1e6 / megabytes,
        "report peak MB/MB": best(both, "peak_rss") / 1e6 / megabytes,
        "above imports": over_base(both) / 1e6 / megabytes,
    }


def _report_bar(found: dict[str, Samples], size: int) -> Bar:
    ratio = best(found[f"report {size} MB"], "report_s") / best(found[f"load {size} MB"], "load_s")
    return Bar(f"report / load at {size} MB, seconds", ratio, 2)


PARTS: dict[str, Callable[[argparse.Namespace, Path], tuple[dict[str, Samples], list[Bar]]]] = {
    "kineto": compare_kineto,
    "nsys": compare_nsys,
    "scaling": scaling,
}


def sources() -> str:
    """A digest of the ling_prof that is measured."""
    spec = importlib.util.find_spec("ling_prof")
    if not spec or not spec.origin:
        raise SystemExit("ling_prof is not installed in this Python: pip install -e .")
    return digest(sorted(Path(spec.origin).parent.rglob("*.py")))


def digest(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def machine() -> dict:
    names = ("ling-prof", "msgspec", "numpy", "pandas", "pyarrow")
    code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    versions = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return {"date": date.today().isoformat(), "cores": os.cpu_count(), "python": platform.python_version(), **versions}


@contextmanager
def workdir(named: Path | None) -> Iterator[Path]:
    """The folder asked for, kept; or else one that is removed afterwards."""
    if named:
        named.mkdir(parents=True, exist_ok=True)
        yield named
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sizes", type=lambda text: [int(s) for s in text.split(",")], default=[50, 100, 200, 400], help="MB of JSON")
    add("--compare", type=int, default=200, help="MB of the JSON file that all Kineto readers read")
    add("--kernels", type=int, default=1_000_000, help="kernels in the .sqlite")
    add("--repeats", type=int, default=5, help="processes per candidate and file; the best counts, all are kept")
    add("--linear", type=float, default=1.25, help="most that a MB of the largest size may cost, in MB of the smallest")
    add("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts to run")
    add("--hta-python", help="Python of the environment of requirements-hta.txt")
    add("--traceinsight-python", help="Python of the environment of requirements-traceinsight.txt")
    add("--workdir", type=Path, help="keep the generated files here (about 1 GB) and use them again")
    add("--json", type=Path, help="write every value here")
    return parser.parse_args()


def main() -> int:
    args, measured = arguments(), sources()
    with workdir(args.workdir) as folder:
        parts = {name: PARTS[name](args, folder) for name in args.only}
    bars = [bar for _, found in parts.values() for bar in found]
    print("\nBars\n" + "\n".join(f"  {bar}" for bar in bars))
    if args.json:
        samples = {name: found for name, (found, _) in parts.items()}
        rows = [{**bar._asdict(), "missed": bar.missed} for bar in bars]
        args.json.write_text(
            json.dumps({"machine": machine(), "sources": measured, "samples": samples, "bars": rows}, indent=1) + "\n"
        )
    if sources() != measured:
        print("\nWARNING: ling_prof was edited while it was measured; run this again")
    missed = [bar.title for bar in bars if bar.missed]
    print(f"\n{len(missed)} missed" + "".join(f"\n  {title}" for title in missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
