"""What other tools say of the same recordings, beside what is true: writes docs/comparison.md.

    python benchmarks/peers.py                                   every tool that can be had here
    python benchmarks/peers.py --only nsys --output nsys.json    one tool (nsys needs the standard library only)
    python benchmarks/peers.py --with nsys.json                  with what was said elsewhere, or before (ENV/said.json)

Each tool runs with its defaults, in an environment of its own under --env, with a time limit. One that fails, or is not
there, is a row of the page. The recordings: traces/, and ../shared/traces where it lies beside the checkout.
"""

import argparse
import gzip
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ling-prof/peers"
FOLDERS = (ROOT / "traces", ROOT / "traces/ladder", ROOT.parent / "shared/traces", ROOT.parent / "shared/traces/broken")
Outcome = dict  # what a tool said, in a form of its own; or {"error": one line}


class Job(NamedTuple):
    """One recording for one tool. annotation: a step's range and which of that name it is; folder: a scratch one."""

    program: str
    path: Path
    annotation: tuple[str, int]
    folder: Path
    timeout: float


class Tool(NamedTuple):
    reads: str
    package: str  # installed from requirements-PACKAGE.txt; empty: a program on PATH
    program: str
    run: Callable[[Job], Outcome]


def output(command: list[str], job: Job, anyway: bool = False, **variables: str) -> str:
    """What a command prints; `anyway`, also when it fails. Raises RuntimeError, in one line, without that."""
    place = {"cwd": job.folder, "env": {**os.environ, "HOME": str(job.folder), **variables}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=job.timeout, **place)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"stopped after {job.timeout:g} s") from None
    if done.returncode and not (anyway and done.stdout.strip()):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise RuntimeError(f"exit code {done.returncode}: {said}".replace(str(job.folder), ""))
    return done.stdout


def unpacked(job: Job) -> str:
    """The recording as .sqlite in the scratch folder."""
    target = job.folder / job.path.name.removesuffix(".gz")
    with gzip.open(job.path) if job.path.suffix == ".gz" else job.path.open("rb") as source:
        target.write_bytes(source.read())
    return target.name


def run_hta(job: Job) -> Outcome:
    """Once as it is, and for the temporal breakdown once more without rounding times to whole us."""
    name, instance = job.annotation
    script = [job.program, "-I", "-B", str(HERE / "peers_hta.py"), str(job.path), name, str(instance)]
    texts = output(script, job), output([*script, "temporal"], job, HTA_DISABLE_NS_ROUNDING="1")
    said, exact = (json.loads(text.splitlines()[-1]) for text in texts)
    return {**said, "unrounded": exact.get("temporal") or exact["load"]}


def run_nsys_ai(job: Job) -> Outcome:
    file = unpacked(job)
    report = output([job.program, "agent", "analyze", file], job)
    found = json.loads(output([job.program, "diagnose", file, "--format", "json"], job))
    return {"report": report, "findings": [{k: f[k] for k in ("severity", "label", "note")} for f in found["findings"]]}


def run_nsys(job: Job) -> Outcome:
    return {"text": output([job.program, "analyze", unpacked(job)], job, anyway=True)}


TOOLS = {
    "HolisticTraceAnalysis": Tool("kineto", "hta", "python", run_hta),
    "traceinsight": Tool("kineto", "traceinsight", "python", run_hta),
    "nsys-ai": Tool("nsys", "nsys-ai", "nsys-ai", run_nsys_ai),
    "nsys": Tool("nsys", "", "nsys", run_nsys),
}


def form(path: Path) -> str:
    return "nsys" if ".sqlite" in path.name else "kineto"


def recordings() -> list[Path]:
    """Of the ladder only its two ends: its rungs are recordings of one kind."""
    found = [p for folder in FOLDERS for p in sorted(folder.glob("*.gz"))]
    rungs = sorted(p.name for p in FOLDERS[1].glob("*.gz"))
    ends = [name for name in rungs if name[:2] in (rungs[0][:2], rungs[-1][:2])]
    return [p for p in found if p.parent != FOLDERS[1] or p.name in ends]


def environment(folder: Path, package: str) -> Path:
    """The bin folder of a tool's environment, made or remade when its requirements have changed."""
    wanted = HERE / f"requirements-{package}.txt"
    place = folder.absolute() / package
    made = place / hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    if not made.exists():
        print(f"installing {wanted.name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(wanted)], check=True)
        made.touch()
    return place / "bin"


def program(tool: Tool, env: Path) -> str | None:
    """What runs the tool; None where it is not on PATH, or cannot be installed."""
    if not tool.package:
        return shutil.which(tool.program)
    try:
        return str(environment(env, tool.package) / tool.program)
    except subprocess.CalledProcessError as error:
        print(error, file=sys.stderr)
        return None


def version(name: str, tool: Tool, command: str) -> str:
    if not tool.package:
        return subprocess.check_output([command, "--version"], text=True).split()[-1]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.check_output([str(Path(command).parent / "python"), "-c", code], text=True).strip()


def ask(tool: Tool, job: Job) -> Outcome:
    try:
        return tool.run(job)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        return {"error": " ".join(str(error).split())}


def run(name: str, files: list[Path], annotations: dict[str, tuple[str, int]], args: argparse.Namespace) -> dict | None:
    """{"version", "date", "said": {file: outcome}} of one tool over the files it reads; None where it is not there."""
    tool = TOOLS[name]
    command = program(tool, args.env)
    if not command:
        print(f"{name} is left out: it cannot be had here", file=sys.stderr)
        return None
    said = {}
    for path in (p for p in files if form(p) == tool.reads):
        print(f"  {name}: {path.name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(command, path.absolute(), annotations.get(path.name, ("", 0)), Path(folder), args.timeout)
            said[path.name] = ask(tool, job)
    return {"version": version(name, tool, command), "date": date.today().isoformat(), "said": said}


def truths(files: list[Path]) -> dict[str, dict]:
    from peers_truth import truth

    print("ling_prof", file=sys.stderr)
    return {path.name: truth(path) for path in files}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", type=Path, nargs="*", help="recordings; those of traces/ and ../shared/traces unless given")
    add("--env", type=Path, default=CACHE, help="where the environments of the tools are made and kept")
    add("--only", choices=TOOLS, nargs="+", default=list(TOOLS), help="tools to run")
    add("--with", dest="given", type=Path, nargs="+", default=[], help="what tools said elsewhere; they are not run")
    add("--timeout", type=float, default=300, help="seconds one command of a tool may take")
    add("--output", type=Path, default=ROOT / "docs/comparison.md", help=".json: what the tools said; else the page")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    files = args.files or recordings()
    tools = {name: ran for path in args.given for name, ran in json.loads(path.read_text()).items()}
    wanted = [name for name in args.only if name not in tools]
    as_json = args.output.suffix == ".json"
    true = {} if as_json and all(TOOLS[name].reads == "nsys" for name in wanted) else truths(files)
    annotations = {name: row.get("annotation", ("", 0)) for name, row in true.items()}
    for name in wanted:
        if ran := run(name, files, annotations, args):
            tools[name] = ran
    collected = args.output if as_json else args.env / "said.json"
    collected.parent.mkdir(parents=True, exist_ok=True)
    collected.write_text(json.dumps(tools, indent=1) + "\n")
    if not as_json:
        from peers_page import page

        command = shlex.join(["python", "benchmarks/peers.py", *sys.argv[1:]]).replace(str(Path.home()), "~")
        args.output.write_text(page(command, date.today().isoformat(), true, tools))


if __name__ == "__main__":
    main()
