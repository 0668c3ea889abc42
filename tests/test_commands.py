"""Commands of other packages, and those of our own that join in the same way."""

import json
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from conftest import BUNDLED
from test_bench_report import made
from test_cli import DEMO, process, refused
from typer.main import get_group

from ling_prof import cli as command_line
from ling_prof.commands import GROUP, join
from ling_prof.errors import UserError

README = BUNDLED.parent / "README.md"


@pytest.fixture(autouse=True)
def own_app(monkeypatch):
    """What these tests join stays out of the app that other tests of this process use."""
    monkeypatch.setattr(command_line, "whole_app", cache(command_line.whole_app.__wrapped__))


def points(monkeypatch, **values: str) -> None:
    """Makes these the installed entry points of the group."""
    found = [metadata.EntryPoint(name, value, GROUP) for name, value in values.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == GROUP else [])


def brings(monkeypatch, module: str, *commands: str, groups: tuple[str, ...] = ()) -> str:
    """An entry point that registers commands of these names."""

    def register(app: typer.Typer) -> None:
        for name in commands:
            app.command(name)(lambda: None)
        for name in groups:
            app.add_typer(typer.Typer(invoke_without_command=True), name=name)

    monkeypatch.setitem(sys.modules, module, SimpleNamespace(register=register))
    return f"{module}:register"


def app(*commands: str) -> typer.Typer:
    made = typer.Typer()
    for name in commands:
        made.command(name)(lambda: None)
    return made


def names(of: typer.Typer) -> list[str]:
    return sorted(get_group(of).commands)


def test_commands_and_groups_join(monkeypatch):
    one = brings(monkeypatch, "one", "fit", groups=("fleet",))
    points(monkeypatch, one=one, two=brings(monkeypatch, "two", "plot"))
    ours = app("report")
    join(ours)
    assert names(ours) == ["fit", "fleet", "plot", "report"]


def test_a_group_that_is_there_takes_in_the_commands_of_its_like(monkeypatch):
    def register(app: typer.Typer) -> None:
        app.add_typer(group("sglang"), name="record")

    monkeypatch.setitem(sys.modules, "more", SimpleNamespace(register=register))
    points(monkeypatch, more="more:register")
    ours = app("report")
    ours.add_typer(group("nsys"), name="record")
    join(ours)
    assert names(ours) == ["record", "report"]
    assert sorted(get_group(ours).commands["record"].commands) == ["nsys", "sglang"]
    with pytest.raises(UserError, match=r"brings a command 'record sglang' that exists already"):
        join(ours)


def group(*commands: str) -> typer.Typer:
    made = app(*commands)
    made.callback()(lambda: None)
    return made


@pytest.mark.parametrize(
    ("commands", "groups", "clash"),
    [(("report",), (), "report"), ((), ("report",), "report"), (("a", "a"), (), "a"), (("a",), ("a",), "a")],
)
def test_a_name_that_is_taken_is_refused_with_its_entry_point(monkeypatch, commands, groups, clash):
    points(monkeypatch, extra=brings(monkeypatch, "extra", *commands, groups=groups))
    ours = app("report")
    with pytest.raises(UserError, match=f"entry point extra = extra:register of {GROUP} brings a command '{clash}'"):
        join(ours)
    assert names(ours) == ["report"]


def test_two_packages_that_bring_one_name_are_refused(monkeypatch):
    points(monkeypatch, a=brings(monkeypatch, "a_package", "fit"), b=brings(monkeypatch, "b_package", "fit"))
    with pytest.raises(UserError, match="entry point b = b_package:register"):
        join(app("report"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_package.cli:register", "ModuleNotFoundError"),
        ("json:no_such_function", "AttributeError"),
        ("json:__name__", "not callable"),
        ("builtins:id", "registers no command"),
        ("not a value", "broken"),
    ],
)
def test_a_broken_entry_point_is_never_skipped(monkeypatch, value, words):
    points(monkeypatch, extra=value)
    with pytest.raises(UserError, match="the entry point extra = ") as error:
        join(app("report"))
    assert words in str(error.value)


def test_the_command_ends_in_one_sentence(monkeypatch, capsys):
    points(monkeypatch, extra="no_such_package:register")
    monkeypatch.setattr(sys, "argv", ["ling-prof", "list"])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("ling-prof: the entry point extra = no_such_package:register of ling_prof.commands is")


def test_the_commands_of_the_optimization_pack_join_without_torch():
    code = (
        "import sys, contextlib, io\n"
        "from ling_prof.cli import whole_app\n"
        "page = io.StringIO()\n"
        "with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit): whole_app()(['--help'])\n"
        "print({'bench', 'trace'} <= set(page.getvalue().split()))\n"
        "print(sorted({'pandas', 'torch', 'numpy', 'pyarrow', 'msgspec', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n[]\n"


def test_they_have_help_and_a_line_in_the_readme():
    table = README.read_text().split("## Commands")[1]
    for command in ("bench", "bench compare", "bench sglang", "record sglang", "trace"):
        assert f"| `{command} " in table
        assert process(*command.split(), "--help").returncode == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("bench",), "--model NAME_OR_FOLDER"),
        (("bench", "--model", " "), "--model takes"),
        (("bench", "--model", "m", "--isl", "0"), "--isl takes"),
        (("bench", "--model", "m", "--osl", "1"), "--osl takes"),
        (("bench", "--model", "m", "--runs", "0"), "--runs takes"),
        (("bench", "--model", "m", "--seed", "-1"), "--seed takes"),
        (("bench", "--model", "m", "--temperature", "nan"), "--temperature takes"),
        (("bench", "--model", "m", "--bandwidth", "0"), "--bandwidth takes"),
        (("bench", "--model", "m", "--dtype", "int3"), "bf16"),
        (("bench", "--model", "m", "--device", "tpu"), "--device takes cpu, cuda"),
        (("bench", "--model", "m", "--output", "/nowhere/a.json"), "its folder does not exist"),
        (("bench", "--runs", "3", "compare", "a", "b"), "after its name"),
        (("trace", "--model", "m", "--steps", "1"), "--steps takes"),
        (("trace", "--model", "m", "--with", "perf"), "torch, nsys"),
        (("trace", "--model", "m", "--output", "a.nsys-rep"), ".json.gz"),
        (("trace", "--model", "m", "--with", "nsys", "--output", "a.json"), ".nsys-rep"),
        (("trace", "--model", "m", "--output", "/nowhere/a.json"), "its folder does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_ends_in_one_sentence(args, words):
    assert words in refused(*args, run=process)


def run(monkeypatch, *args: str) -> None:
    """The command in this process, where engines can be stood in for."""
    monkeypatch.setattr(command_line, "app", app("report"))
    command_line.whole_app()(list(args), standalone_mode=False)


@pytest.mark.parametrize("missing", ["torch", "triton"])
@pytest.mark.parametrize("args", [("bench", "--model", "m"), ("trace", "--model", "m", "--output", "t.json")])
def test_what_is_not_installed_is_named_with_its_remedy(monkeypatch, missing, args):
    from optim import cli as engine_line

    def absent(name: str):
        if name == missing or name.startswith("optim."):
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(engine_line, "import_module", absent)
    with pytest.raises(UserError, match=rf'^{missing} is not installed.*pip install "ling-prof\[gpu\]"'):
        run(monkeypatch, *args)


def test_a_missing_gpu_is_said_so(monkeypatch):
    torch = SimpleNamespace(__version__="2.13", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(UserError, match=r"--device cuda:1: torch 2.13 finds no CUDA GPU"):
        run(monkeypatch, "bench", "--model", "m", "--device", "cuda:1")


def test_bench_prints_what_the_engine_measured_and_keeps_it(monkeypatch, tmp_path, capsys):
    asked = []
    engine = SimpleNamespace(run=lambda options, progress: asked.append(options) or made())
    monkeypatch.setitem(sys.modules, "optim.bench", engine)
    path = tmp_path / "a.json"
    run(monkeypatch, "bench", "--model", "m", "--runs", "2", "--eager", "--temperature", "0.8", "--output", str(path))
    assert "2.500 ms" in capsys.readouterr().out
    assert json.loads(path.read_text()) == made()
    assert asked[0].decoding == "sampled, temperature 0.8, seed 0"
    assert asked[0].command == (
        "ling-prof bench --model m --isl 8192 --osl 1024 --runs 2 --seed 0 --temperature 0.8 --dtype bf16 --eager"
    )
    run(monkeypatch, "bench", "--model", "m", "--json")
    assert json.loads(capsys.readouterr().out) == made()


def test_a_result_that_cannot_be_kept_is_still_printed(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    engine = SimpleNamespace(run=lambda options, progress: folder.rmdir() or made())
    monkeypatch.setitem(sys.modules, "optim.bench", engine)
    with pytest.raises(UserError, match="its folder does not exist"):
        run(monkeypatch, "bench", "--model", "m", "--output", str(folder / "a.json"))
    assert "2.500 ms" in capsys.readouterr().out


@pytest.mark.parametrize("tpot", ["2.223ms", None])
def test_trace_reports_with_the_unprofiled_time(monkeypatch, capsys, tpot):
    asked = []
    engine = SimpleNamespace(record=lambda options: asked.append(options) or (Path(DEMO), tpot))
    monkeypatch.setitem(sys.modules, "optim.trace", engine)
    run(monkeypatch, "trace", "--model", "m", "--no-stacks", "--json")
    options = json.loads(capsys.readouterr().out)["options"]
    assert options["unprofiled_tpot"] == (2_223_000 if tpot else None)
    assert (asked[0].stacks, str(asked[0].path), asked[0].steps) == (False, "decode.json.gz", 12)
