"""The ling-prof command. One small function a command; its docstring is its help. Heavy imports happen inside."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from ling_prof.errors import UserError

if TYPE_CHECKING:
    from ling_prof.report import Report
    from ling_prof.trace import Trace
    from ling_prof.view import Options, View

app = typer.Typer(
    name="ling-prof",
    help="Where every microsecond of an LLM decode step goes, from a torch-profiler or Nsight Systems trace.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

WIDTH = 120  # a narrower terminal wraps lines: numbers are never cut
SIGPIPE = 141

TracePath = Annotated[
    Path, typer.Argument(metavar="TRACE", help="Kineto .json/.json.gz/.zip, Nsight .sqlite(.gz) or .nsys-rep.")
]
Steps = Annotated[str | None, typer.Option("--steps", metavar="REGEX", help="Take ranges whose name matches as steps.")]
Device = Annotated[int | None, typer.Option(help="GPU; default: all that worked (report) or the busiest.")]
Stream = Annotated[int | None, typer.Option(help="Look at one stream only.")]
Skip = Annotated[int, typer.Option(help="Leave out that many decode steps at the start.")]
Focus = Annotated[str, typer.Option(help="prefill or decode.")]
Tpot = Annotated[
    str | None,
    typer.Option("--unprofiled-tpot", metavar="TIME", help="Time per output token without a profiler, such as 2.13ms."),
]
Accept = Annotated[float, typer.Option("--accept-length", help="Tokens a step commits (speculative decoding).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md).")]
Partial = Annotated[bool, typer.Option("--partial", help="Accept a JSON file that was cut off.")]
LayersFrom = Annotated[
    Path | None,
    typer.Option("--layers-from", metavar="TRACE", help="A recording of the same model with graphs off: names layers."),
]
Top = Annotated[int, typer.Option(min=1, help="Rows to show in each table.")]


class ReaderGone(Exception):
    """What reads our output (head, less) has closed it: nothing more to say."""


def main() -> None:
    """Runs the command line; a UserError ends in its sentence on stderr and exit code 2."""
    try:
        whole_app()()
    except UserError as error:
        from ling_prof.units import one_line

        print(f"ling-prof: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except ReaderGone:
        sys.exit(SIGPIPE)


@cache
def whole_app() -> typer.Typer:
    """The app with the commands of other installed packages; UserError for a broken one, see ling_prof.commands."""
    from ling_prof.commands import join

    join(app)
    return app


def _say(text: str) -> None:
    """Writes to stdout. Raises UserError when that fails: an exit code of 1 is for `check` alone."""
    if sys.stdout is None:
        raise UserError("the output cannot be written (standard output is closed).")
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer must not be tried again at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise UserError(f"the output cannot be written ({error.strerror}).") from None


def view_options(unprofiled_tpot: str | None = None, **others: Any) -> "Options":
    from ling_prof.units import parse_time
    from ling_prof.view import Options

    unprofiled = None if unprofiled_tpot is None else parse_time(unprofiled_tpot, "--unprofiled-tpot")
    return Options(unprofiled_tpot=unprofiled, **others)


def pair_options(unprofiled_tpot: str | None, accept_length: str, **others: Any) -> "tuple[Options, Options]":
    """As `view_options`, for two recordings; the first two hold a value for each, with a comma between them."""
    from ling_prof.units import parse_pair

    times = (None, None) if unprofiled_tpot is None else parse_pair(unprofiled_tpot, "--unprofiled-tpot")
    try:
        lengths = [float(length) for length in parse_pair(accept_length, "--accept-length")]
    except ValueError:
        raise UserError(f"--accept-length {accept_length!r} is not two numbers, such as 1,2.6.") from None
    one, other = (view_options(time, accept_length=x, **others) for time, x in zip(times, lengths, strict=True))
    return one, other


def load_trace(path: Path, partial: bool = False) -> "Trace":
    from ling_prof.load import load
    from ling_prof.render.progress import bar

    with bar(f"reading {path.name}") as progress:
        return load(path, partial, progress)


def load_named(path: Path, options: "Options", partial: bool, layers_from: Path | None) -> "Trace":
    """As `load_trace`; the layers of replayed kernels come from another recording, when given."""
    trace = load_trace(path, partial)
    if layers_from is None:
        return trace
    from ling_prof.layer_map import named_from

    return named_from(trace, load_trace(layers_from), options)


def report_on(path: Path, options: "Options", partial: bool = False, layers_from: Path | None = None) -> "Report":
    return seen_and_found(path, options, partial, layers_from)[1]


def seen_and_found(
    path: Path, options: "Options", partial: bool, layers_from: Path | None = None
) -> "tuple[list[View], Report]":
    """The devices of a recording that are looked at, and the report on them."""
    from ling_prof.render.progress import bar
    from ling_prof.report import report_of
    from ling_prof.view import views

    seen = views(load_named(path, options, partial, layers_from), options)
    with bar("analysing") as progress:
        return seen, report_of(seen, options, progress)


def print_parts(*parts: Any) -> None:
    import io

    from rich.console import Console

    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = max(WIDTH, shutil.get_terminal_size().columns) if terminal else 160
    page = io.StringIO()
    Console(file=page, width=width, force_terminal=terminal, highlight=False).print(*parts, sep="\n")
    _say(page.getvalue().rstrip("\n"))


def print_json(data: Any) -> None:
    import json

    _say(json.dumps(data, indent=1, allow_nan=False))


SECTIONS: dict[str, tuple[str, ...]] = {
    "report": (),
    "ledger": (),
    "syncs": ("syncs", "seams"),
    "gaps": ("gaps",),
    "kernels": ("kernels", "layers", "copies"),
    "steps": ("steps",),
    "launches": ("launches", "graphs"),
}
HELP = {
    "report": "The decode steps: ledger, roles, blocking calls, launches, gaps, and what the trace cannot say.",
    "ledger": "Mean, p50 and p99 of each class; the means add up to the wall time.",
    "syncs": "Calls that make the host wait, with their site, and host code that keeps the device waiting.",
    "gaps": "The largest idle gaps, the kernels around them, and why.",
    "kernels": "Busy time by role, kernel and layer; copies and casts.",
    "steps": "How steps were found, and each one with its wall and busy time.",
    "launches": "Launches, run-ahead, and CUDA graphs.",
}


def answer(name: str, found: "Report", top: int, as_json: bool) -> None:
    """Prints the part of a report that a command is for; as JSON all of it."""
    if as_json:
        _say(found.to_json(indent=1))
        return
    from ling_prof.render import tables, text

    if name == "report":
        print_parts(text.render(found, top))
        return
    parts = [text.header(found)]
    for summary in found["summary"] if name in ("ledger", "kernels") else ():
        parts.append(text.device_heading(summary))
        if summary["rounds"]:
            parts += text.shown((tables.ledger if name == "ledger" else tables.roles)(summary))
    for key in SECTIONS[name]:
        parts += text.section(key, found, top)
    print_parts(*parts, *text.cannot_say(found))


def _reader(name: str) -> Callable[..., None]:
    """A command that reads a trace and answers with some tables of the report."""

    def command(
        trace: TracePath,
        steps: Steps = None,
        device: Device = None,
        stream: Stream = None,
        skip: Skip = 0,
        focus: Focus = "decode",
        unprofiled_tpot: Tpot = None,
        accept_length: Accept = 1.0,
        layers_from: LayersFrom = None,
        partial: Partial = False,
        top: Top = 20,
        as_json: AsJson = False,
    ) -> None:
        chosen = {"steps": steps, "device": device, "stream": stream, "skip": skip, "focus": focus}
        options = view_options(unprofiled_tpot, accept_length=accept_length, **chosen)
        answer(name, report_on(trace, options, partial, layers_from), top, as_json)

    return command


@app.command("report", help=HELP["report"])
def report_(
    trace: TracePath,
    steps: Steps = None,
    device: Device = None,
    stream: Stream = None,
    skip: Skip = 0,
    focus: Focus = "decode",
    unprofiled_tpot: Tpot = None,
    accept_length: Accept = 1.0,
    layers_from: LayersFrom = None,
    partial: Partial = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page with figures instead.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows to show in each table: 5, on a page 12.")] = None,
    as_json: AsJson = False,
) -> None:
    chosen = {"steps": steps, "device": device, "stream": stream, "skip": skip, "focus": focus}
    options = view_options(unprofiled_tpot, accept_length=accept_length, **chosen)
    if html is None:
        answer("report", report_on(trace, options, partial, layers_from), top or 5, as_json)
        return
    from ling_prof.plain_file import check_writable
    from ling_prof.render.html import ROWS, page
    from ling_prof.window import median_windows

    check_writable(html)
    seen, found = seen_and_found(trace, options, partial, layers_from)
    _write_page(page(found, median_windows(seen), top or ROWS), html, as_json)


def _write_page(text: str, path: Path, as_json: bool) -> None:
    from ling_prof.plain_file import write_text

    write_text(text, path)
    if as_json:
        print_json({"schema": "ling-prof.export/1", "folder": str(path.parent), "files": [path.name]})
    else:
        _say(f"{path}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser")


for _name in SECTIONS:
    if _name != "report":
        app.command(_name, help=HELP[_name])(_reader(_name))


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        from ling_prof import __version__

        _say(__version__)
        raise typer.Exit


@app.command()
def check(
    trace: TracePath,
    max_class: Annotated[
        list[str],
        typer.Option(
            "--max-class", metavar="CLASS=TIME", help="Most a step may spend in a class, or in wall; repeatable."
        ),
    ],
    steps: Steps = None,
    device: Device = None,
    skip: Skip = 0,
    focus: Focus = "decode",
    unprofiled_tpot: Tpot = None,
    accept_length: Accept = 1.0,
    as_json: AsJson = False,
) -> None:
    """Exits with 1 when the mean step exceeds a limit: for CI."""
    from ling_prof.check import judge, parse_limits

    limits = parse_limits(max_class)
    chosen = {"steps": steps, "device": device, "skip": skip, "focus": focus, "accept_length": accept_length}
    rows = judge(report_on(trace, view_options(unprofiled_tpot, **chosen)), limits)
    if as_json:
        print_json({"schema": "ling-prof.check/1", "limits": rows})
    else:
        _say("\n".join(row["sentence"] for row in rows))
    raise typer.Exit(0 if all(row["ok"] for row in rows) else 1)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The recording to compare with; as TRACE of report.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The recording that is compared.")],
    steps: Steps = None,
    device: Device = None,
    stream: Stream = None,
    skip: Skip = 0,
    focus: Focus = "decode",
    unprofiled_tpot: Annotated[
        str | None,
        typer.Option("--unprofiled-tpot", metavar="A,B", help="Times without a profiler, such as 2.22ms,2.13ms."),
    ] = None,
    accept_length: Annotated[
        str, typer.Option("--accept-length", metavar="A,B", help="Tokens a step of either commits.")
    ] = "1,1",
    partial: Partial = False,
    force: Annotated[bool, typer.Option("--force", help="Compare what is unlike, with warnings.")] = False,
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Where the change of a step between two recordings went: class by class and kernel by kernel, exactly."""
    from ling_prof.diff import diff as compare

    chosen = {"steps": steps, "device": device, "stream": stream, "skip": skip, "focus": focus}
    options = pair_options(unprofiled_tpot, accept_length, **chosen)
    found = compare(load_trace(a, partial), load_trace(b, partial), options, force)
    if as_json:
        print_json(found)
        return
    from ling_prof.render.diff import render

    print_parts(render(found, top))


@app.command()
def whatif(
    trace: TracePath,
    do: Annotated[
        list[str] | None,
        typer.Option(
            "--do", metavar="A,B", help="Passes, wait=REGEX, drop=REGEX, zero=ROLE, ROLE=0.5, -pdl; repeatable."
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Every pass that finds sites, alone and together.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What ling-prof calibrate wrote; default: the GPU's, if known.")
    ] = None,
    steps: Steps = None,
    device: Device = None,
    skip: Skip = 0,
    unprofiled_tpot: Tpot = None,
    accept_length: Accept = 1.0,
    layers_from: LayersFrom = None,
    partial: Partial = False,
    top: Top = 20,
    as_json: AsJson = False,
) -> None:
    """Predicts a step with waits, launches, gaps or kernels changed: replayed together, with a low and a high."""
    from ling_prof.whatif import predict

    if bool(do) == list_all:
        raise UserError("whatif takes --do EDITS or --list, one of them.")
    edits = predict.chosen(predict.asked_for(do or []))  # before the trace is read
    chosen = {"steps": steps, "device": device, "skip": skip, "accept_length": accept_length}
    options = view_options(unprofiled_tpot, **chosen)
    loaded = load_named(trace, options, partial, layers_from)
    if list_all:
        found = predict.listing(loaded, options, calibration)
    else:
        found = predict.whatif(loaded, list(edits), options, calibration)
    if as_json:
        print_json(found)
        return
    from ling_prof.render.whatif import render

    print_parts(*render(found, top))


@app.command()
def doctor(trace: TracePath, partial: Partial = False, as_json: AsJson = False) -> None:
    """What this file holds, what it lacks, and how to record what is missing."""
    from ling_prof.doctor import examine

    found = examine(load_trace(trace, partial))
    if as_json:
        print_json({"schema": "ling-prof.doctor/1", **found})
        return
    from ling_prof.render.text import doctor as show_doctor

    print_parts(*show_doctor(found))


@app.command()
def export(
    trace: TracePath,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write Parquet files into this new folder.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write CSV files into this new folder.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a .json or .json.gz that ui.perfetto.dev opens.")
    ] = None,
    steps: Steps = None,
    device: Device = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Writes the tables and the rows of every analysis as Parquet or CSV, or the trace for Perfetto."""
    if [parquet, csv, perfetto].count(None) != 2:
        raise UserError("export takes --parquet FOLDER, --csv FOLDER or --perfetto FILE, one of them.")
    if perfetto is not None:
        _export_perfetto(load_trace(trace, partial), perfetto, view_options(steps=steps, device=device), as_json)
        return
    folder, kind = (parquet, "parquet") if parquet else (csv, "csv")
    from ling_prof.export import export as write

    assert folder is not None
    files = write(load_trace(trace, partial), folder, kind, view_options(steps=steps, device=device))
    if as_json:
        print_json({"schema": "ling-prof.export/1", "folder": str(folder), "files": files})
    else:
        _say(f"{folder}: {', '.join(files)}")


def _export_perfetto(trace: "Trace", path: Path, options: "Options", as_json: bool) -> None:
    from ling_prof.plain_file import check_writable
    from ling_prof.render.perfetto import export as write

    check_writable(path)
    count = write(trace, path, options)
    if as_json:
        print_json({"schema": "ling-prof.export/1", "folder": str(path.parent), "files": [path.name]})
    else:
        _say(f"{path}: {count:,} events; open it in ui.perfetto.dev")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """The questions ling-prof answers, and the recordings that come with it."""
    from ling_prof.analyses import ANALYSES, question
    from ling_prof.bundled import recordings

    found = {
        "analyses": {name: question(name) for name in ANALYSES},
        "recordings": {r["file"]: r["shows"] for r in recordings()},
    }
    if as_json:
        print_json({"schema": "ling-prof.list/1", **found})
        return
    from ling_prof.render.text import pairs

    print_parts(*(part for title, rows in found.items() for part in pairs(title.capitalize(), rows)))


@app.command()
def demo(top: Top = 5, as_json: AsJson = False) -> None:
    """The report on a bundled H200 recording of a decode loop, calibrated with its unprofiled step time."""
    from ling_prof.bundled import demo as recording

    path, tpot = recording()
    answer("report", report_on(path, view_options(tpot)), top, as_json)


@app.command("app")
def app_(
    trace: Annotated[
        Path | None, typer.Argument(metavar="TRACE", help="What to begin with; default: the demo.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8501, or the next that is free.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Open no browser.")] = False,
) -> None:
    """Opens the dashboard in a browser, on this machine alone; needs ling-prof[app]."""
    from ling_prof.render.app.serve import serve

    serve(trace, port, headless)


class Recorders(typer.core.TyperGroup):
    """The recorder stands right behind `record`; where none does, what stands there is a command for nsys to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args[:1] == ["--help"] or (args[:1] and args[0] in self.commands)
        return super().parse_args(ctx, args if known else ["nsys", *args])


recorders = typer.Typer(cls=Recorders, help="Records, then reports: ling-prof record -- python decode.py")
app.add_typer(recorders, name="record")


@recorders.command("nsys", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def record(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the .nsys-rep goes.")] = Path("decode.nsys-rep"),
    range_: Annotated[
        str | None, typer.Option("--nvtx-range", help="Record only between the start and end of this NVTX range.")
    ] = None,
    api_range: Annotated[
        bool, typer.Option("--profiler-api", help="Record only between cudaProfilerStart and Stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Runs a command under Nsight Systems with the right flags, then reports: ling-prof record -- python decode.py"""
    from ling_prof.record import nsys

    path = nsys(context.args, output, range_, api_range, quiet=as_json)
    answer("report", report_on(path, view_options()), 5, as_json)


if __name__ == "__main__":
    from ling_prof import cli  # not __main__: other packages' commands import this module by its name

    cli.main()
