"""The notebooks run, without a GPU and a browser, and what is committed with them is what they say now."""

from importlib.util import module_from_spec, spec_from_file_location

import pytest
from conftest import BUNDLED

for needed in ("nbclient", "ipykernel", "plotly", "PIL"):
    pytest.importorskip(needed)

FOLDER = BUNDLED.parent / "notebooks"
NAMES = ("ablation", "predicted_vs_measured", "read_a_trace", "your_own_pass")
LARGEST = 600_000  # bytes
FIGURES = {"image/png", "application/json"}  # as committed, as made here


@pytest.fixture(scope="module")
def execute():
    spec = spec_from_file_location("execute", FOLDER / "execute.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(execute, book) -> int:
    return sum(bool(FIGURES & set(output.get("data", ()))) for output in execute.outputs(book))


def test_all_of_them_are_run():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_says_what_is_committed(execute, name, monkeypatch):
    """After a change of code or data `make notebooks` brings the outputs up to date."""
    if name == "your_own_pass":
        pytest.importorskip("torch")
    monkeypatch.setenv("BROWSER_PATH", "/nowhere")
    committed = execute.nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    fresh = execute.run(FOLDER / f"{name}.ipynb", "json")
    assert dict(execute.said(fresh)) == dict(execute.said(committed)), "run make notebooks, and read the difference"
    assert figures(execute, fresh) == figures(execute, committed) > 0


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_are_for_readers(execute, name):
    """PNG where a figure is, small, of no machine, and in order."""
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST
    book = execute.nbformat.read(path, as_version=4)
    assert execute.places(book) == []
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {kind for output in execute.outputs(book) for kind in output.get("data", ())}
    assert kinds <= {"image/png", "text/plain", "text/html"}
    assert not any(output.output_type == "error" for output in execute.outputs(book))


def test_the_pass_of_the_notebook_keeps_to_the_interface(monkeypatch):
    """Strictly, as a file in optim/passes/ would."""
    import optim.passes
    from optim import base

    monkeypatch.setattr(optim.passes, "__path__", [*optim.passes.__path__, str(FOLDER / "my_passes")])
    base._registry.cache_clear()
    try:
        assert list(base.passes())[-1] == "router_concat"
    finally:
        base._registry.cache_clear()
