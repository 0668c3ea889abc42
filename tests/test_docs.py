"""The documents say what the program does."""

import io
import re
import subprocess
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from conftest import BUNDLED
from rich.console import Console
from test_cli import cli
from typer.main import get_command
from typer.testing import CliRunner

import ling_prof
from ling_prof import ablation_report
from ling_prof.bench_report import load
from ling_prof.bundled import every
from ling_prof.cli import whole_app
from ling_prof.render import ablation
from ling_prof.render.bench import header, render
from ling_prof.timeline import CLASSES, HOST_PARTS
from ling_prof.view import Options
from optim import base

ROOT = BUNDLED.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def trimmed(shown: str) -> str:
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def demo_text() -> str:
    return trimmed(cli("demo", "--top", "3").stdout.replace(str(BUNDLED), "traces"))


def shown(*parts) -> str:
    page = io.StringIO()
    Console(file=page, width=160).print(*parts)
    return trimmed(page.getvalue())


def baseline_text() -> str:
    return shown(render(load(ROOT / "docs/results/h200-tiny-baseline.json")))


def ablated(name: str = "tiny-ablation") -> ablation_report.Ablation:
    return ablation_report.load(ROOT / f"docs/results/h200-{name}.json")


def ablation_text(name: str = "tiny-ablation") -> str:
    of = ablated(name)
    return shown(header(of), ablation.overall(of), *ablation.attribution(of), *ablation.noise(of))


def test_every_command_has_help_and_a_line_in_the_readme(generate):
    table = README.read_text().split("## Commands")[1]
    for name, command in generate.commands(get_command(whole_app())):
        assert f"`{name.removesuffix(' nsys')}" in table, name  # the recorder where none is named
        said = command.help.split()[:6]
        shown = CliRunner().invoke(whole_app(), [*name.split(), "--help"]).stdout
        assert len(said) > 3, name
        assert " ".join(said) in " ".join(shown.split()), name


SHOWN = ("tiny-sglang-ablation", "tiny-sglang-stock-ablation", "engine-vs-sglang", "flash12-nextn-ablation")
OF_SGLANG = [partial(ablation_text, name) for name in SHOWN]


@pytest.mark.parametrize(
    ("path", "number", "says"),
    [
        *((README, i, says) for i, says in enumerate((demo_text, baseline_text, ablation_text))),
        *((DOCS / "sglang.md", i, says) for i, says in enumerate(OF_SGLANG)),
    ],
)
def test_what_a_page_shows_is_what_the_program_prints(request, path, number, says):
    page = path.read_text()
    block = list(re.finditer(r"```text\n(.*?)```", page, re.S))[number]
    if request.config.getoption("--update-golden"):
        path.write_text(f"{page[: block.start(1)]}{says()}{page[block.end(1) :]}")
    else:
        assert block[1] == says()


def test_the_figures_beside_it_are_those_of_the_results():
    page = " ".join(README.read_text().split())
    flash, tiny = (load(ROOT / f"docs/results/h200-{m}-baseline.json") for m in ("flash-tp4-rank", "tiny"))
    tpot = flash["summary"]["tpot_ms"]
    said = f"took {tpot['mean']:.3f} ms a token ({tpot['low']:.3f} to {tpot['high']:.3f} over five runs)"
    assert said in page
    server = ablated("engine-vs-sglang")["baseline"]["tpot_ms"]
    times = f"{tiny['summary']['tpot_ms']['mean'] / server:.2f}"
    assert f"SGLang 0.5.19 takes {server:.3f} ms" in page
    assert f"the baseline is {times} times that" in page


def said_of(path):
    return " ".join(path.read_text().split())


def gain_of(of, name):
    return next(row for row in of["attribution"] if row["pass"] == name)


def test_the_figures_of_sglang_are_those_of_the_results():
    page, readme = said_of(DOCS / "sglang.md"), said_of(README)
    of = ablated("tiny-sglang-ablation")
    rungs, pdl = {row["added"]: row["tpot_ms"] for row in of["ladder"]}, gain_of(of, "pdl")
    off, on = rungs["bf16_head"], rungs["pdl"]
    gain, low, high = (us / on / 10 for us in (pdl["gain_us"], pdl["low"], pdl["high"]))
    more = f"{gain:.1f} % more tokens a second"
    assert f"PDL: {off:.3f} ms without it, {on:.3f} ms with it, {more} ({low:.1f} to {high:.1f})" in page
    assert f"PDL gives SGLang {more}" in readme
    server, engine = (row["tpot_ms"] for row in ablated("engine-vs-sglang")["rows"])
    assert f"SGLang takes {server:.3f} ms a token, the engine {engine:.3f} ms, {engine / server:.3f} of it" in readme
    of = ablated("tiny-sglang-stock-ablation")
    stock, (full, high, low) = of["baseline"]["tpot_ms"], (of["all_on"][key] for key in ("tpot_ms", "low", "high"))
    gain, least, most = (f"{100 * (stock / ms - 1):.1f}" for ms in (full, low, high))
    assert f"Together {gain} % more tokens a second ({least} to {most})" in page
    assert f"from {stock:.3f} to {full:.3f} ms: {gain} % more tokens a second ({least} to {most};" in readme


def test_the_figures_over_http_are_those_of_the_results():
    stock, other = (load(ROOT / f"docs/results/h200-tiny-http-{name}.json") for name in ("stock", "grouped_topk"))
    one, two = (of["summary"]["tpot_ms"] for of in (stock, other))
    says = [f"{tpot['mean']:.3f} ms ({tpot['low']:.3f} to {tpot['high']:.3f})" for tpot in (one, two)]
    assert f"{says[0]} and {says[1]}, {100 * (1 - two['mean'] / one['mean']):.2f} % less" in said_of(DOCS / "sglang.md")


def summary_of(name):
    """Of a bundled recording of SGLang, at its unprofiled time."""
    row = every()[f"sglang/{name}.json.gz"]
    options = Options(unprofiled_tpot=round(1e6 * row["unprofiled_step_ms"]))  # of a step, whatever is accepted
    return ling_prof.report(ling_prof.load(ROOT / "traces/sglang" / row["file"]), options)["summary"][0]


def test_the_ledgers_of_sglang_are_those_of_its_recordings():
    page, of = said_of(DOCS / "sglang.md"), summary_of("tiny-stock")
    ledger = {name: ns["mean"] for name, ns in of["calibrated"].items()}
    busy, gaps = (100 * ledger[name] / sum(ledger.values()) for name in ("busy", "graph_dependency"))
    assert f"a step is {busy:.1f} % busy and {gaps:.1f} % `graph_dependency`" in page
    shares = {role: f"{100 * ns['mean'] / of['ledger']['busy']['mean']:.1f} %" for role, ns in of["roles"].items()}
    gemm, small, experts, mla = (shares[role] for role in ("dense_gemm", "small_kernels", "moe_gemm", "mla"))
    assert f"GEMMs take {gemm}, small kernels {small}, the experts {experts}, latent attention {mla}" in page


def test_what_run_ahead_hides_is_what_the_ledgers_say():
    page, waits, walls = said_of(DOCS / "sglang.md"), [], []
    for name in ("flash12-readback", "flash12-host_run_ahead"):
        ledger = {name: ns["mean"] for name, ns in summary_of(name)["calibrated"].items()}
        waits.append(sum(ledger[name] for name in ("host_bound", "launch_call", "sync_stall")) / 1e3)
        walls.append(f"{sum(ledger.values()) / 1e6:.3f} ms")
    assert f"waits {waits[0]:.0f} us of a step of {walls[0]} for the host without run-ahead" in page
    assert f"and {waits[1]:.0f} us of {walls[1]} with it: it hides {waits[0] - waits[1]:.0f} us" in page


def test_the_read_back_is_named_without_run_ahead_and_gone_with_it():
    where = "resolve_seq_lens_cpu (sglang/srt/managers/overlap_utils.py:515)"
    for name, sites in (("flash12-readback", [where]), ("flash12-host_run_ahead", [])):
        rows = ling_prof.report(ling_prof.load(ROOT / f"traces/sglang/{name}.json.gz"))["syncs"]
        waits = [row for row in rows if row["api"] == "cudaStreamSynchronize" and row["focus_calls"]]
        assert [(row["site"].partition(" <")[0], row["focus_calls"]) for row in waits] == [(site, 11) for site in sites]


def test_what_is_left_is_what_the_last_rung_shows():
    page, of = " ".join(README.read_text().split()), ablated()
    base, full = of["baseline"]["tpot_ms"], of["all_on"]["tpot_ms"]
    assert f"a token takes {full / base:.3f} of the baseline's time" in page
    floor = load(ROOT / "docs/results/h200-tiny-baseline.json")["floor"]["floor_ms"] * 1e3
    path = ROOT / "traces/ladder" / of["ladder"][-1]["trace"]
    (summary,) = ling_prof.report(ling_prof.load(path), Options(unprofiled_tpot=round(1e6 * full)))["summary"]
    calibrated = {name: ns["mean"] for name, ns in summary["calibrated"].items()}
    assert calibrated["busy"] > 0.99 * sum(calibrated.values())
    kernels = summary["kernels"]
    assert f"the {floor:.1f} us of the floor" in page
    assert f"inside {kernels:.0f} kernels, of which each has {(1e3 * full - floor) / kernels:.1f} us beyond" in page
    rungs = {row["added"]: row["tpot_ms"] for row in of["ladder"]}
    names, times = list(rungs), list(rungs.values())
    slower = [name for name, before, after in zip(names[1:], times, times[1:], strict=False) if after > before]
    assert slower == ["seam_graph", "swiglu_epilogue"]


@pytest.fixture(scope="module")
def generate():
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["json.md", "passes.md", "cli.md"])
def test_generated_parts_are_up_to_date(generate, name):
    assert (DOCS / name).read_text() == generate.page(name)


def test_no_generated_part_names_this_machine(generate):
    assert all(str(ROOT) not in part() for part in generate.PARTS.values())


def test_every_class_has_its_section_and_every_pass_named_there_exists():
    page = (DOCS / "ledger.md").read_text()
    assert tuple(re.findall(r"^## (\w+)$", page, re.M)) == CLASSES
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)*)`", page))
    assert named <= {*base.passes(), *CLASSES, *HOST_PARTS}
    for name, module in base.passes().items():
        assert module.lowers not in CLASSES or name in named, name


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_commands_in_the_pages_exist_with_their_options(generate, page):
    there = dict(generate.commands(get_command(whole_app())))
    for line in re.findall(r"ling-prof +([a-z][^`\n#]*)", page.read_text()):
        words = line.split(" -- ")[0].split()
        name = " ".join(words[:2]) if " ".join(words[:2]) in there else words[0]
        asked = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
        below = [command for one, command in there.items() if f"{one} ".startswith(f"{name} ")]
        assert asked <= {"--help", *(o for command in below for p in command.params for o in p.opts)}, line


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().split("nav:")[1].split("theme:")[0]
    assert sorted(re.findall(r": (\S+\.md)$", nav, re.M)) == sorted(path.name for path in DOCS.glob("*.md"))


def test_the_site_builds_and_fetches_nothing(tmp_path):
    """Links inside it hold, and neither scripts, styles nor images come from elsewhere."""
    pytest.importorskip("material")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list(DOCS.glob("*.md")))
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"(?:src|srcset)=[\"']?([^\"'\s>]+)|<link[^>]*href=[\"']?([^\"'\s>]+)", text)
        assert not [url for pair in fetched for url in pair if re.match(r"(https?:)?//", url)], page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_the_contributing_example_is_an_analysis_that_runs(tmp_path):
    from timelines import Recording

    from ling_prof.view import view

    code = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)[1]
    (tmp_path / "example.py").write_text(code)
    spec = spec_from_file_location("example", tmp_path / "example.py")
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    rows = example.rows(view(Recording().kernel("gemm", (0, 5), (10, 60), 1).trace()))
    assert rows.to_dict("records") == [{"role": "dense_gemm", "duration_ns": 50}]
    assert list(rows.columns) == list(example.COLUMNS)


def test_readme_has_exactly_two_set_up_commands():
    block = README.read_text().split("## Set up")[1].split("##")[0]
    found = [line.split("#")[0].strip() for line in block.splitlines() if line.startswith("    ")]
    assert found == ["make demo", "make test"]
