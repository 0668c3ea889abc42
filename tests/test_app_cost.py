"""What the dashboard costs: nothing is done twice, and time and memory stay within their bars."""

import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import BUNDLED
from test_cli import DEMO, process

st = pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from test_app import LADDER, PAGES, TPOT, asked, picked, visit  # noqa: E402

from ling_prof import analyses  # noqa: E402
from ling_prof.bundled import app, every  # noqa: E402
from ling_prof.render.app import store  # noqa: E402
from ling_prof.whatif import predict  # noqa: E402
from ling_prof.whatif.predict import Predictor  # noqa: E402
from ling_prof.whatif.predict import chosen as edits_of  # noqa: E402
from ling_prof.whatif.replay import replay  # noqa: E402

TRIES, SOME = 11, 6  # of each set; sets that are drawn
FILES = (
    *("h200_qwen3_graph_stacks.pt.trace.json.gz", "h200_kimi_eager.sqlite.gz", "ladder/00-baseline.json.gz"),
    *("ladder/00-baseline.sqlite.gz", "ladder/09-moe_direct.json.gz", "ladder/13-moe_fuse.json.gz"),
)


@pytest.fixture
def counted(monkeypatch) -> Counter:
    """How often what costs time is done."""
    st.cache_resource.clear()
    st.cache_data.clear()
    calls: Counter[str] = Counter()

    def count(holder: object, name: str, label: str) -> None:
        real = getattr(holder, name)

        def counting(*args, **more):
            calls[label] += 1
            return real(*args, **more)

        monkeypatch.setattr(holder, name, counting)

    for holder, name in ((store, "load"), (store, "views_of"), (store, "report_of"), (store, "diff_of")):
        count(holder, name, name)
    count(store.predict, "predictor", "predictor")
    for name, module in analyses.ANALYSES.items():
        monkeypatch.setitem(analyses.ANALYSES, name, SimpleNamespace(**vars(module)))
        count(analyses.ANALYSES[name], "rows", name)
    count(predict, "replay", "replay")
    count(predict, "step_of", "replay")
    count(predict, "calibrated", "calibrated")
    return calls


def test_nothing_is_read_or_analysed_twice(counted, tmp_path):
    copy = tmp_path / "copy.json.gz"
    copy.write_bytes(LADDER.read_bytes())
    for _ in range(2):
        for name in PAGES:
            visit(name, copy)
        copy.write_bytes(LADDER.read_bytes())  # another file, by its time, of the same content
    once = {name: counted[name] for name in ("load", "views_of", "report_of", *analyses.ANALYSES)}
    assert once == dict.fromkeys(once, 1)
    assert counted["predictor"] == 2  # of a few rounds for the report, and of all


def test_a_switch_costs_one_replay_for_the_number_and_one_for_every_end_of_the_band(counted):
    at = asked(visit("passes", LADDER), "pdl")
    shown = picked(LADDER, unprofiled_tpot=TPOT)
    before = counted.copy()
    asked(at, "host_run_ahead")
    assert counted["replay"] - before["replay"] == len(store.predictor(shown).bases)
    assert counted["calibrated"] == before["calibrated"]
    before = counted.copy()
    store.predicted(shown, tuple(edits_of(["moe_fuse"])))
    assert counted["replay"] - before["replay"] == 1
    asked(visit("passes", LADDER), "host_run_ahead", "pdl")  # seen before
    assert counted["replay"] - before["replay"] == 1


def took(work, *args) -> float:
    """CPU time, s: other programs on the machine count less."""
    began = time.process_time()
    work(*args)
    return time.process_time() - began


def sets(names: list[str]) -> Iterator[list[str]]:
    """All, each off from all, each on from none, and some."""
    yield names
    yield from ([one for one in names if one != name] for name in names if len(names) > 1)
    yield from ([name] for name in names)
    draw = random.Random(0)
    yield from (draw.sample(names, draw.randint(1, len(names))) for _ in range(SOME))


@pytest.mark.parametrize("name", FILES)
def test_switching_any_pass_takes_at_most_one_and_a_half_replays(name):
    """No set was seen before. Each against a replay of the same graph just after, the median of many."""
    shown = picked(str(BUNDLED / name), unprofiled_tpot=f"{every()[name]['unprofiled_step_ms']}ms")
    seen, names = store.predictor(shown), list(store.sites(shown))
    graph, base, costs = seen.base
    ratios = {}
    for on in sets(names):
        again = (predict.edited_by(edits_of(on), graph, costs), base.pace, base.stretch)
        ratios[tuple(on)] = np.median([took(switched, fresh(seen), on) / took(replay, *again) for _ in range(TRIES)])
    assert max(ratios.values()) < 1.5, max(ratios.items(), key=lambda one: one[1])


def switched(found: Predictor, on: list[str]) -> float:
    return found.predicted(edits_of(on))


def fresh(seen: Predictor) -> Predictor:
    """With what the page has before anybody switches."""
    found = replace(seen)
    vars(found).update(base=seen.base, course=seen.course)
    return found


FIRST = """
import json, sys, time
from streamlit.testing.v1 import AppTest
import streamlit
real, seen = streamlit.plotly_chart, []
def chart(*args, **more):
    seen.append(time.process_time())
    return real(*args, **more)
streamlit.plotly_chart = chart
began = time.process_time()
at = AppTest.from_file(sys.argv[1], default_timeout=300)
sys.argv = ["app.py", sys.argv[2]]
at.run()
assert not at.exception
print(json.dumps(seen[0] - began))
"""


def test_the_first_figure_takes_at_most_three_times_the_report():
    """CPU time of fresh processes; the server is up before anybody looks, so its own import does not count."""

    def report() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process("report", DEMO)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def first() -> float:
        done = subprocess.run([sys.executable, "-c", FIRST, str(app()), DEMO], capture_output=True, text=True)
        return json.loads(done.stdout)

    assert min(first() for _ in range(2)) <= 3 * min(report() for _ in range(2))


MEMORY = """
import resource, sys
from pathlib import Path
from streamlit.testing.v1 import AppTest
from ling_prof.render.app import download, store
from ling_prof.view import Options
sys.path.insert(0, sys.argv[1])
from test_app import PAGES, asked, labelled, visit
for name in PAGES:
    at = visit(name, sys.argv[2])
    if name == "passes":
        asked(at, *[toggle.label for toggle in at.toggle])
    if name == "compare":
        labelled(at.text_input, "Path of a second trace").set_value(sys.argv[2]).run()
    assert not at.exception
shown = store.Chosen(store.at(Path(sys.argv[2])), Options(), 0)
for make in (download.as_json, download.as_csv, download.as_html, download.as_perfetto):
    assert make(shown)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_recording_of_50_mb_is_looked_at_in_less_than_1_gb(tmp_path):
    """Every page, every pass, a comparison and every download, in one process; the session itself is in it."""
    big = tmp_path / "big.json"
    generate = BUNDLED.parent / "benchmarks/generate.py"
    subprocess.run([sys.executable, generate, big, "--megabytes", "50"], check=True, capture_output=True)
    assert big.stat().st_size > 50e6
    command = [sys.executable, "-c", MEMORY, str(Path(__file__).parent), str(big)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) * 1024 < 1e9
