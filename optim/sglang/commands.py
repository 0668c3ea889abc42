"""The commands `bench sglang` and `record sglang`, and what `ablate` and `passes` do with --target sglang.

Nothing heavy is imported before they run.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ling_prof.cli import AsJson, LayersFrom, Top, answer, print_json, print_parts, report_on, view_options
from ling_prof.errors import UserError
from ling_prof.units import one_line

Url = Annotated[str | None, typer.Option(metavar="URL", help="A server that runs, such as http://127.0.0.1:30000.")]
Launch = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Start a server of it; its own arguments stand after --.")
]
Isl = Annotated[int, typer.Option(help="Tokens of the prompt.")]
ANY = {"allow_extra_args": True}  # of the server, after --


def bench(
    context: typer.Context,
    url: Url = None,
    launch: Launch = None,
    isl: Isl = 8192,
    osl: Annotated[int, typer.Option(help="Tokens to generate.")] = 1024,
    runs: Annotated[int, typer.Option(help="Requests to time, one after the other.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the prompt.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token (greedy).")] = 0.0,
    as_json: AsJson = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON there as well.")] = None,
) -> None:
    """Times single-request decoding of a SGLang server without a profiler: TPOT, ITL, throughput, accept length.

    The server should serve nothing else meanwhile; its prefix cache is flushed before each request.
    """
    from ling_prof.plain_file import check_writable
    from ling_prof.render.progress import bar
    from optim.cli import show_bench
    from optim.sglang.options import BenchOptions

    chosen: dict[str, Any] = {"url": url, "launch": launch, "args": tuple(context.args), "isl": isl, "osl": osl}
    options = BenchOptions(**chosen, runs=runs, seed=seed, temperature=temperature)
    if output is not None:
        check_writable(output)
    from optim.sglang.bench import run

    with bar(f"decoding with {url or launch}") as progress:
        found = run(options, progress)
    show_bench(found, as_json, output)


def record(
    context: typer.Context,
    url: Url = None,
    launch: Launch = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="New; the server has to write there too.")
    ] = Path("sglang-profile"),
    steps: Annotated[int, typer.Option(help="Forward passes to record.")] = 12,
    drive: Annotated[
        bool, typer.Option("--drive", help="Send the request that is recorded, and time it before.")
    ] = False,
    isl: Isl = 8192,
    stacks: Annotated[bool, typer.Option(help="Record Python stacks: they name the function of every stall.")] = True,
    shapes: Annotated[bool, typer.Option(help="Record the shapes of operators.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Record a second server with graphs off, which names the layers.")
    ] = False,
    layers_from: LayersFrom = None,
    by_stage: Annotated[bool, typer.Option("--by-stage", help="For servers with SGLANG_PROFILE_V2=1.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds to wait for the files.")] = 300.0,
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Records a SGLang server with its own profiler, waits for the file of every rank, then reports on the first."""
    from ling_prof.render.progress import bar
    from optim.sglang.options import RecordOptions

    if layers_from is not None and not os.access(layers_from, os.R_OK):
        raise UserError(f"{layers_from} cannot be read, which --layers-from names; nothing was recorded.")
    chosen: dict[str, Any] = {"url": url, "launch": launch, "args": tuple(context.args), "isl": isl, "output": output}
    chosen |= {"stacks": stacks, "shapes": shapes, "by_stage": by_stage, "layers": layers, "drive": drive}
    options = RecordOptions(**chosen, steps=steps, timeout=timeout)
    from optim.sglang.record import record as run

    with bar(f"recording {url or launch}") as progress:
        found = run(options, progress)
    print(f"recorded {', '.join(one_line(str(path)) for path in found.files)}", file=sys.stderr)
    tpot = None if found.tpot_ms is None else f"{found.tpot_ms:.6f}ms"
    seen = view_options(tpot, accept_length=found.accept_length)
    answer("report", report_on(found.files[0], seen, layers_from=layers_from or found.layers_from), top, as_json)


def ablate(asked: dict[str, Any], as_json: bool) -> None:
    """An ablation of SGLang as a plan.Plan of these values; every step is told on stderr."""
    from ling_prof.render.ablation import render
    from optim.sglang import ablate as ablation
    from optim.sglang.plan import Plan

    if "passes" not in asked:
        raise UserError("--target sglang needs --passes A,B; ling-prof passes --target sglang lists them.")
    plan, began, say = Plan(**asked), time.monotonic(), partial(print, file=sys.stderr, flush=True)
    found = ablation.measured(plan, lambda line: say(f"{time.monotonic() - began:6.0f} s  {line}"))
    try:
        ablation.save(found, plan)
    finally:  # a long run is never lost to a full disk
        print_json(found) if as_json else print_parts(render(found))


def passes(trace: Path | None, as_json: bool) -> None:
    """What a SGLang server can be switched by."""
    from optim.sglang.registry import rows
    from optim.show import switches

    if trace is not None:
        says = "ling-prof passes TRACE tells what the engine's would change"
        raise UserError(f"--target sglang takes no recording; {says}.")
    if as_json:
        print_json({"schema": "ling-prof.sglang-passes/1", "passes": rows()})
    else:
        print_parts(*switches(rows()))
