"""Runs the notebooks in place, their figures as PNG, so that they can be read on the web.

    python notebooks/execute.py [NOTEBOOK ...]

Needs kaleido and a Chromium, the one that BROWSER_PATH names or /usr/bin/chromium.
"""

import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent
SECONDS = 300  # that a cell may take
COLOURS = 256  # of a figure: chosen so, each is off by at most 7 of 255
PNG = "import plotly.io; plotly.io.renderers['png'].width, plotly.io.renderers['png'].scale = 1000, 1.5"
MACHINE = r"(?:/home|/tmp|/root|/usr|/work)/\S+|\S*site-packages\S*"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(path: Path, renderer: str, first: str = "") -> Any:
    """The notebook with the outputs of a fresh kernel but for stderr, its metadata what every machine would write.
    `first` is run before it. Raises nbclient's CellExecutionError at the first cell that fails."""
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(first))
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(book, timeout=SECONDS, resources=where, record_timing=False, coalesce_streams=True)
    client.execute(env=os.environ | {"PLOTLY_RENDERER": renderer, "OMP_NUM_THREADS": "1"})
    del book.cells[0]
    book.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate((cell for cell in book.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        cell.outputs = [_bare(output, number) for output in cell.outputs if output.get("name") != "stderr"]
    return book


def _bare(output: Any, number: int) -> Any:
    if "metadata" in output:
        output.metadata = {}
    if "execution_count" in output:
        output.execution_count = number
    if "image/png" in output.get("data", ()):
        output.data["image/png"] = _flat(output.data["image/png"])
    return output


def _flat(png: str) -> str:
    """On white, since a dark page would shine through, and in few colours, which takes a third of the bytes."""
    image = Image.open(BytesIO(b64decode(png))).convert("RGBA")
    page, small = Image.new("RGBA", image.size, "white"), BytesIO()
    page.alpha_composite(image)
    few = page.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(small, "PNG", optimize=True)
    return b64encode(small.getvalue()).decode()


def said(book: Any) -> Iterator[tuple[str, str]]:
    """(cell id, text) of every output that is text, but for cells marked as varying with the machine."""
    for cell in book.cells:
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", ()):
            yield cell.id, "".join(_text(output) for output in cell.outputs)


def _text(output: Any) -> str:
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def places(book: Any) -> list[str]:
    """What in the outputs says where they were made."""
    shown = [output.get("data", {"text/plain": output.get("text", "")}) for output in outputs(book)]
    texts = (text for data in shown for kind, text in data.items() if kind.startswith("text/"))
    return [found for text in texts for found in re.findall(MACHINE, text)]


def outputs(book: Any) -> Iterator[Any]:
    return (output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)


def main(paths: list[Path]) -> None:
    os.environ.setdefault("BROWSER_PATH", "/usr/bin/chromium")
    for path in paths:
        book = run(path, "png", PNG)
        if found := places(book):
            sys.exit(f"{path.name}: its outputs name places of this machine: {', '.join(found)}")
        nbformat.write(book, path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")))
