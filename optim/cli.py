"""The commands `bench`, `bench compare`, `bench sglang`, `record sglang`, `ablate`, `trace`, `passes`,
`calibrate`, `score` and `tune`. Only the engine imports torch."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ling_prof.cli import AsJson, Top, answer, load_trace, print_json, print_parts, report_on, view_options
from ling_prof.errors import UserError
from optim.options import DESIGNS, DTYPES, AblateOptions, BenchOptions, TraceOptions, check_folder
from optim.sglang import commands as sglang

if TYPE_CHECKING:
    from ling_prof.bench_report import Bench

NEEDED = ("safetensors", "torch", "triton")
TARGETS = ("engine", "sglang")
OF_ENGINE, OF_SGLANG = {"steps", "dtype", "device", "eager"}, {"alive", "starts", "minutes"}
TABLE = Path(__file__).parent / "kernels/tiles.json"
INSTALL = 'pip install "ling-prof[gpu]"'

MODEL = typer.Option("--model", metavar="NAME_OR_FOLDER", help="A bundled configuration, or a checkpoint folder.")
Model = Annotated[str, MODEL]
Isl = Annotated[int, typer.Option(help="Tokens of the prompt.")]
Dtype = Annotated[str, typer.Option(help=f"Of weights and activations: {' or '.join(DTYPES)}.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; default: a GPU if there is one.")]
Seed = Annotated[int, typer.Option(help="Of random weights, prompt and what is drawn.")]
Switched = Annotated[str | None, typer.Option("--passes", metavar="A,B|all", help="Optimizations to switch on.")]
Players = Annotated[
    str | None, typer.Option("--passes", metavar="A,B,C+D", help="What to switch, C with D; default: all, by rungs.")
]
Eager = Annotated[bool, typer.Option("--eager", help="Launch every kernel by itself: no CUDA graph.")]


def register(app: typer.Typer) -> None:
    """Joins the commands of this package to the ling-prof command."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(bench)
    group.command("compare")(compare)
    group.command("sglang", context_settings=sglang.ANY)(sglang.bench)
    app.add_typer(group, name="bench")
    recorders = typer.Typer()
    recorders.command("sglang", context_settings=sglang.ANY)(sglang.record)
    app.add_typer(recorders, name="record")
    app.command("ablate")(ablate)
    app.command("trace")(trace)
    app.command("passes")(passes)
    app.command("calibrate")(calibrate)
    app.command("score")(score)
    app.command("tune")(tune)


def bench(
    context: typer.Context,
    model: Annotated[str | None, MODEL] = None,
    isl: Isl = 8192,
    osl: Annotated[int, typer.Option(help="Tokens to generate.")] = 1024,
    runs: Annotated[int, typer.Option(help="Requests to time, one after the other.")] = 5,
    seed: Seed = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token (greedy).")] = 0.0,
    dtype: Dtype = "bf16",
    device: Device = None,
    eager: Eager = False,
    passes: Switched = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Memory bandwidth for the floor; default: that of the device.")
    ] = None,
    as_json: AsJson = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON there as well.")] = None,
) -> None:
    """Times single-request decoding without a profiler, beside the floor that memory bandwidth sets."""
    if context.invoked_subcommand:
        _no_options(context)
        return
    if model is None:
        raise UserError("bench needs --model NAME_OR_FOLDER, or compare A B, or sglang.")
    if output is not None:
        from ling_prof.plain_file import check_writable

        check_writable(output)
    lengths: dict[str, Any] = {"isl": isl, "osl": osl, "runs": runs, "seed": seed, "temperature": temperature}
    chosen: dict[str, Any] = {"dtype": dtype, "device": device, "eager": eager, "passes": passes}
    options = BenchOptions(model=model, **lengths, **chosen, bandwidth=bandwidth)
    _measure(options, as_json, output)


def _no_options(context: typer.Context) -> None:
    """`bench --runs 3 compare A B` must not drop --runs in silence."""
    if any(_is_given(context, name) for name in context.params):
        raise UserError(f"bench {context.invoked_subcommand} takes its options after its name, and none of bench.")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _measure(options: BenchOptions, as_json: bool, output: Path | None) -> None:
    from ling_prof.render.progress import bar

    run = _engine("bench", options.device).run
    with bar(f"decoding with {options.model}") as progress:
        found = run(options, progress)
    show_bench(found, as_json, output)


def show_bench(found: "Bench", as_json: bool, output: Path | None) -> None:
    """Keeps a benchmark, where a file is asked for, and prints it."""
    from ling_prof.bench_report import save
    from ling_prof.render.bench import render

    try:
        if output is not None:
            save(found, output)
    finally:  # a long run is never lost to a full disk
        print_json(found) if as_json else print_parts(render(found))


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="What bench --output, bench_serving or one_batch wrote.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    line_a: Annotated[
        int | None, typer.Option("--line-a", metavar="N", help="Of several results in A those made like this one.")
    ] = None,
    line_b: Annotated[int | None, typer.Option("--line-b", metavar="N", help="The same for B.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare what was measured differently, with warnings.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Decides between two benchmarks by mean TPOT x accept length; refuses those that were not measured alike."""
    from ling_prof.bench_compare import compare as decide
    from ling_prof.bench_compare import measured
    from ling_prof.render.bench import compare as show

    found = decide(measured(a, line_a), measured(b, line_b), force, (str(a), str(b)))
    print_json(found) if as_json else print_parts(show(found))


def ablate(
    context: typer.Context,
    model: Model,
    target: Annotated[str, typer.Option(help=f"What decodes: {' or '.join(TARGETS)}.")] = TARGETS[0],
    passes: Players = None,
    design: Annotated[str, typer.Option(help=f"{', '.join(DESIGNS[:-1])} or {DESIGNS[-1]}.")] = DESIGNS[0],
    isl: Isl = 8192,
    osl: Annotated[int, typer.Option(help="Tokens to measure, in whole windows.")] = 1024,
    steps: Annotated[int, typer.Option(help="Tokens of a window.")] = 64,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Measure N of the windows, spread evenly; default: all. SGLang: N requests (8)."
        ),
    ] = None,
    alive: Annotated[int, typer.Option(metavar="N", help="SGLang: servers at the same time, 0 for all.")] = 1,
    starts: Annotated[int, typer.Option(metavar="N", help="SGLang: how often each server is started.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="SGLang: begin nothing more after so many.")] = None,
    seed: Seed = 0,
    dtype: Dtype = "bf16",
    device: Device = None,
    eager: Eager = False,
    traces: Annotated[bool, typer.Option(help="Record every rung of the ladder as well.")] = True,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where it all goes, and goes on from; default: ablation-MODEL."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measures what each optimization is worth: gated, interleaved, and attributed by a design."""
    given = {name for name in context.params if _is_given(context, name)}
    if _checked(target) == "sglang":
        _refuse(given & OF_ENGINE, "engine")
        asked = {name: context.params[name] for name in given - {"target", "output", "as_json"}}
        sglang.ablate({**asked, "output": output}, as_json)
        return
    _refuse(given & OF_SGLANG, "sglang")
    lengths: dict[str, Any] = {"isl": isl, "osl": osl, "steps": steps, "sample": sample, "seed": seed, "design": design}
    chosen: dict[str, Any] = {"dtype": dtype, "device": device, "eager": eager, "passes": passes}
    options = AblateOptions(model=model, **lengths, **chosen, traces=traces, output=output)
    check_folder(options.folder)
    from ling_prof.render.ablation import render
    from ling_prof.render.progress import bar

    engine = _engine("ablate", device)
    with bar(f"switching passes of {model}") as progress:
        found = engine.measured(options, progress)
    try:
        engine.save(found, options)
    finally:  # a long run is never lost to a full disk
        print_json(found) if as_json else print_parts(render(found))


def _checked(target: str) -> str:
    if target not in TARGETS:
        raise UserError(f"--target takes one of {', '.join(TARGETS)}.")
    return target


def _refuse(given: set[str], target: str) -> None:
    if given:
        raise UserError(f"--{sorted(given)[0].replace('_', '-')} is for --target {target} only.")


def trace(
    model: Model,
    isl: Isl = 8192,
    steps: Annotated[int, typer.Option(help="Decode steps to record.")] = 12,
    recorder: Annotated[str, typer.Option("--with", metavar="torch|nsys", help="The profiler.")] = "torch",
    stacks: Annotated[bool, typer.Option(help="Record Python stacks: they name the function of every stall.")] = True,
    dtype: Dtype = "bf16",
    device: Device = None,
    eager: Eager = False,
    passes: Switched = None,
    output: Annotated[Path | None, typer.Option(help="Where it goes; default: decode.json.gz or .nsys-rep.")] = None,
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Records decode steps, times them without the profiler as well, and reports."""
    from ling_prof.plain_file import check_writable

    chosen: dict[str, Any] = {"dtype": dtype, "device": device, "eager": eager, "passes": passes}
    options = TraceOptions(model=model, isl=isl, steps=steps, recorder=recorder, stacks=stacks, output=output, **chosen)
    check_writable(options.path)
    recording, tpot = _engine("trace", device).record(options)
    answer("report", report_on(recording, view_options(tpot)), top, as_json)


def passes(
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="A recording: shows what each would change.")
    ] = None,
    target: Annotated[str, typer.Option(help=f"Whose: {' or '.join(TARGETS)}.")] = TARGETS[0],
    as_json: AsJson = False,
) -> None:
    """The optimizations: what each removes and, given a recording, the sites it would change."""
    if _checked(target) == "sglang":
        sglang.passes(trace, as_json)
        return
    from optim.base import found

    rows = found(None if trace is None else load_trace(trace))
    if as_json:
        print_json({"schema": "ling-prof.passes/1", "trace": str(trace) if trace else None, "passes": rows})
        return
    from optim.show import passes as show

    print_parts(*show(rows))


def calibrate(
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the table goes.")] = Path("calibration.json"),
    as_json: AsJson = False,
) -> None:
    """Measures on this GPU what launches, chains of kernels and copies cost: what predictions reckon with."""
    from ling_prof.plain_file import check_writable
    from ling_prof.whatif.calibration import save
    from optim.show import calibration as show

    check_writable(output)
    found = _engine("calibrate", None).run(f"ling-prof calibrate --output {output.name}")
    try:
        save(found, output)
    finally:
        print_json(found) if as_json else print_parts(*show(found))


def score(
    ablation: Annotated[Path, typer.Argument(metavar="ABLATION", help="The ablation.json that ablate left.")],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The recording of its baseline.")],
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What ling-prof calibrate wrote; default: the GPU's, if known.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the predictions into ABLATION as well.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Markdown page whose table between the marks is renewed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predicts every gain from the baseline's recording, and shows it beside the measured one."""
    from ling_prof import ablation_report
    from optim import score as scoring
    from optim.show import score as show

    measured = ablation_report.load(ablation)
    if page is not None:
        scoring.check_page(page)
    try:
        found = scoring.score(measured, trace, calibration)
    except UserError as fault:
        about = (str(one) for one in (trace, calibration) if one)
        raise fault if any(name in str(fault) for name in about) else UserError(f"{ablation}: {fault}") from None
    if update:
        ablation_report.save(scoring.filled(measured, found), ablation)
    if page is not None:
        scoring.renew(page, found)
    print_json(found) if as_json else print_parts(*show(found))


def tune(
    model: Model,
    isl: Isl = 8192,
    only: Annotated[str, typer.Option(metavar="REGEX", help="Kernels to search for; default: all.")] = "",
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The table; default: the one that the kernels read.")
    ] = TABLE,
) -> None:
    """Searches the tile sizes of the kernels for this GPU, all optimizations on."""
    _engine("tune", None).run(model, isl, only, output, lambda line: print_parts(line))


def _engine(name: str, device: str | None) -> ModuleType:
    """optim.<name>, which needs torch. Raises UserError saying what is missing here, and how to install it."""
    try:
        torch = import_module("torch")
        if (device or "").startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"--device {device}: torch {torch.__version__} finds no CUDA GPU; {INSTALL} where one is.")
        return import_module(f"optim.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        raise UserError(f"{missing} is not installed, which the engine runs on; {INSTALL} brings it.") from None
