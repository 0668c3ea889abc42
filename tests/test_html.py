"""The report as a page: it validates, asks for nothing, shows names as text, and draws in a real browser."""

import base64
import gzip
import json
import re
from itertools import pairwise

import html5lib
import pytest
from browser import opened
from build import annotation, cpu_op, kineto, launch, runtime
from conftest import BUNDLED
from test_cli import DEMO, MANIFEST, cli, process, refused
from test_figures import HOSTILE

from ling_prof.cli import seen_and_found
from ling_prof.render.html import page
from ling_prof.units import show_time
from ling_prof.view import Options
from ling_prof.window import median_windows

SCRIPT = re.compile(r"<script[^>]*>.*?</script>", re.S)
NAMESPACES = "{http://www.w3.org/1999/xhtml}"
RECORDINGS = [row["file"] for row in MANIFEST]
LIMIT = 5e6


def made(path, options=Options()):
    seen, found = seen_and_found(path, options, False)
    return page(found, median_windows(seen))


@pytest.fixture(scope="module")
def demo():
    return made(BUNDLED / MANIFEST[0]["file"], Options(unprofiled_tpot=2_223_000))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A recording in which everything that has a name is called HOSTILE, its file as nearly as files can be."""
    events = []
    for i in range(4):
        at, corr = 1000 * i, 2 * i + 1
        events += [annotation(f"decode_step_{i} {HOSTILE}", at, 900), cpu_op(HOSTILE, at + 1, 800)]
        events += launch(HOSTILE, at + 100, 200, corr, call=at + 5, call_dur=45)
        events += launch(f"gemm {HOSTILE}", at + 350, 250, corr + 1, call=at + 320, call_dur=10)
        events.append(runtime("cudaStreamSynchronize", at + 400, 220, 100 + i))
    name = "<img src=x onerror=alert(3)>&lt;b&gt;.json"
    return kineto(tmp_path_factory.mktemp("hostile"), events, name)


@pytest.fixture(scope="module")
def hostile_page(hostile):
    return made(hostile, Options(steps="^decode_step"))


def parsed(text):
    return html5lib.HTMLParser(strict=True).parse(text)


def elements(tree, *names):
    return [e for e in tree.iter() if isinstance(e.tag, str) and e.tag.removeprefix(NAMESPACES) in names]


def words(element):
    return " ".join("".join(element.itertext()).split())


@pytest.mark.parametrize("name", [*RECORDINGS, "ladder/16-seam_fuse.json.gz"])
def test_every_bundled_recording_makes_a_valid_page_of_bounded_size(name):
    text = made(BUNDLED / name)
    tree = parsed(text)
    assert len(text.encode()) < LIMIT
    assert len(elements(tree, "title", "h1")) == 2
    assert all(e.get("href", "#").startswith("#") and "src" not in e.attrib for e in tree.iter())
    assert not re.search(r"https?:|url\(|@import", SCRIPT.sub("", text))


def test_other_peoples_recordings_make_a_page(shared):
    for name in (
        "hta_nccl.json.gz",
        "tl_mi210_gpu_only.json.gz",
        "nsysai_mock.sqlite.gz",
        "h200_triton_chain_pdl1.json.gz",
    ):
        assert elements(parsed(made(shared / name)), "figure")


def test_a_recording_without_gpu_ends_in_the_usual_sentence(shared, tmp_path):
    said = refused("report", str(shared / "hta_cpu_only_rank34.pt.trace.json.gz"), "--html", str(tmp_path / "out.html"))
    assert "no kernel, copy or memset was recorded" in said
    assert not list(tmp_path.iterdir())


def test_several_devices_have_their_own_sections(tmp_path):
    events = []
    for i in range(80):
        events += launch("gemm", 10 * i, 4, i + 1, call=10 * i - 5, device=i % 2)
    tree = parsed(made(kineto(tmp_path, events)))
    titles = [words(e) for e in elements(tree, "h2")]
    assert [title.split(":")[0] for title in titles[:2]] == ["GPU 0", "GPU 1"]
    assert len({e.get("data-figure") for e in elements(tree, "div") if e.get("data-figure")}) == 8


def test_the_page_is_found_by_keyboard_and_by_ear(demo):
    tree = parsed(demo)
    assert tree.get("lang") == "en"
    levels = [int(e.tag[-1]) for e in elements(tree, "h1", "h2", "h3", "h4")]
    assert levels[0] == 1 == levels.count(1)
    assert all(after <= before + 1 for before, after in pairwise(levels))
    targets = {e.get("id") for e in tree.iter()}
    links = [e.get("href")[1:] for e in elements(tree, "a")]
    assert set(links) <= targets
    assert all(e.get("aria-label") for e in elements(tree, "div") if e.get("role"))
    assert all(e.get("tabindex") == "0" for e in elements(tree, "div") if e.get("class") == "table")
    assert all(e.get("scope") == "col" for e in elements(tree, "th"))
    assert len(elements(tree, "caption")) == len(elements(tree, "table")) > 8
    ids = [e.get("id") for e in tree.iter() if e.get("id")]
    assert len(ids) == len(set(ids))


def test_without_scripts_the_tables_hold_the_ledger(demo):
    found = json.loads(cli("report", DEMO, "--json", "--unprofiled-tpot", "2.223ms").stdout)
    tables = [[words(cell) for cell in elements(row, "td")] for row in elements(parsed(demo), "tr")]
    shown = {row[0]: row[1] for row in tables if row and len(row) == 8}
    (summary,) = found["summary"]
    assert shown["wall"] == show_time(summary["wall_ns"]["mean"])
    assert shown["sync_stall"] == show_time(summary["ledger"]["sync_stall"]["mean"])
    page = words(parsed(demo))
    assert summary["ruler"] in page
    assert all(row["question"] in page for row in found["cannot_say"])


def test_figures_are_those_of_the_report(demo):
    scripts = {e.get("id"): words(e) for e in elements(parsed(demo), "script") if e.get("type") == "application/json"}
    assert {name.split("-")[0] for name in scripts} == {"ledger", "steps", "timeline", "roles", "savings", "looks"}
    assert json.loads(scripts["savings"])["layout"]["xaxis"]["title"]["text"] == "us a step, each alone"
    assert "template" not in json.loads(scripts["ledger-0"])["layout"]
    assert set(json.loads(scripts["looks"])) == {"light", "dark"}


def test_the_library_is_inside_and_whole(demo):
    (packed,) = re.findall(r'id="plotly">([^<]+)<', demo)
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed))[:100]


def test_two_pages_are_the_same(demo):
    assert made(BUNDLED / MANIFEST[0]["file"], Options(unprofiled_tpot=2_223_000)) == demo


def test_names_stay_text(hostile_page):
    tree = parsed(hostile_page)
    assert not elements(tree, "img", "b", "i", "script[src]")
    assert {e.get("type") for e in elements(tree, "script")} == {"application/json", "text/plain", None}
    assert all(e.get("href").startswith("#") for e in elements(tree, "a"))
    text = words(elements(tree, "main")[0])
    assert "<script>alert(1)</script><b>b</b>" in text
    assert "\\u202e\\x1b[0m" in text
    assert "\u202e" not in hostile_page
    assert "<img src=x onerror=alert(3)>&lt;b&gt;.json" in words(elements(tree, "h1")[0])


def test_the_browser_draws_it_and_asks_for_nothing(hostile_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(hostile_page)
    with opened(path.as_uri()) as (view, deeds):
        view.wait_for_selector("html[data-drawn]", timeout=60_000)
        assert view.locator(".plot .main-svg").count() >= view.locator(".plot").count() > 3
        assert view.locator(".plot[data-figure^=timeline] canvas").count() > 0
        plot = view.locator(".plot[data-figure^=timeline]")
        plot.scroll_into_view_if_needed()
        assert view.locator(".plot :is(script, img, b, i, a[href^=javascript])").count() == 0
        assert hovered(view, plot).startswith("<script>alert(1)</script><b>b</b><a href")
        for _ in range(2):
            view.locator("#theme").click()
        assert view.locator("#theme").text_content() == "Dark"
        plot.focus()
        view.keyboard.press("+")
        view.wait_for_function("document.querySelector('.plot[data-figure^=timeline]').layout.xaxis.range[0] > 0")
    assert deeds == {"requests": [path.as_uri()], "errors": [], "dialogs": []}


SPOT = """(plot) => {
  const points = plot._fullData.at(-1), {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
  const at = points.text.findIndex((text) => text.startsWith('&lt;script') && text.includes('other'));
  return [box.left + xaxis._offset + xaxis.d2p(points.x[at]), box.top + yaxis._offset + yaxis.d2p(points.y[at])];
}"""


def hovered(view, plot):
    """What stands beside the pointer on a kernel of HOSTILE."""
    view.mouse.move(*plot.evaluate(SPOT))
    return view.locator(".hoverlayer .hovertext").text_content(timeout=10_000)


def test_a_dark_system_gets_a_dark_page(demo, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(demo)
    with opened(path.as_uri(), color_scheme="dark") as (view, deeds):
        view.wait_for_selector("html[data-drawn]", timeout=60_000)
        ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
        dark = view.evaluate(ink), view.evaluate("getComputedStyle(document.body).backgroundColor")
        view.locator("#theme").click()
        view.wait_for_function(f"{ink} !== '{dark[0]}'")
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") != dark[1]
    assert not deeds["errors"]


def test_the_command_writes_one_file_or_none(tmp_path):
    out = tmp_path / "out.html"
    assert "open it in a browser" in process("report", DEMO, "--html", str(out)).stdout
    written = json.loads(cli("report", DEMO, "--html", str(out), "--json").stdout)
    assert written == {"schema": "ling-prof.export/1", "folder": str(tmp_path), "files": ["out.html"]}
    rows = out.read_text().count("<tr>")
    assert cli("report", DEMO, "--html", str(out), "--top", "1").returncode == 0
    assert out.read_text().count("<tr>") < rows
    assert "its folder does not exist" in refused("report", DEMO, "--html", str(tmp_path / "no" / "out.html"))
    assert "it is no regular file" in refused("report", DEMO, "--html", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
