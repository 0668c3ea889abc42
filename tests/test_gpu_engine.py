"""The whole engine on a GPU: graph against eager, run against run, the commands. Skipped elsewhere, and counted so."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU: the engine's GPU tests are NOT run", allow_module_level=True)

from test_cli import cli  # noqa: E402

from optim.engine import generate, weights  # noqa: E402
from optim.engine.config import NANO, TINY  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.engine.sample import Sampling  # noqa: E402

PROMPT, NEW = 8192, 256


@pytest.fixture(scope="module")
def tiny():
    return Engine(TINY, weights.random(TINY), PROMPT + NEW)


def decode(engine, prompt, sampling=Sampling()):  # noqa: B008
    return [engine.prefill(prompt, sampling), *(engine.step() for _ in range(NEW - 1))]


def test_256_tokens_are_the_same_in_two_runs_and_without_a_graph(tiny):
    prompt = torch.randint(TINY.vocab, (PROMPT,)).tolist()
    first = decode(tiny, prompt)
    assert len(set(first)) > NEW / 2  # no loop of a few tokens, which would prove little
    sampled = decode(tiny, prompt, Sampling(1.0, 7))
    assert decode(tiny, prompt, Sampling(1.0, 7)) == sampled != first
    assert decode(tiny, prompt) == first
    tiny.use_graph = False
    tiny.capture()
    assert decode(tiny, prompt) == first
    tiny.use_graph = True
    tiny.capture()


def test_capture_in_the_middle_of_a_request_changes_nothing(tiny):
    prompt = torch.randint(TINY.vocab, (100,)).tolist()
    tiny.prefill(prompt)
    plain = [tiny.step() for _ in range(20)]
    tiny.prefill(prompt)
    again = [tiny.step() for _ in range(10)]
    tiny.capture()
    assert again + [tiny.step() for _ in range(10)] == plain


@pytest.mark.parametrize("graph", [True, False])
def test_triton_decodes_as_the_naive_kernels_do(graph):
    """fp32, so that the two agree to rounding: the same tokens at nano size."""
    prompt = torch.randint(NANO.vocab, (300,)).tolist()
    texts = []
    for kind in ("naive", "triton"):
        engine = Engine(NANO, weights.random(NANO, 0, torch.float32), 400, kind, graph and kind == "triton")
        texts.append(list(engine.stream(prompt, 32)))
    assert texts[0] == texts[1]


def test_long_prompts_read_in_any_chunks_and_decoded_agree(monkeypatch):
    """fp32, over 8192 tokens: the logits after the prompt, and after its last token decoded instead."""
    c = replace(NANO, max_positions=16384)
    engine = Engine(c, weights.random(c, 0, torch.float32), 9000)
    prompt = torch.randint(c.vocab, (8300,)).tolist()
    logits = []
    monkeypatch.setattr(generate, "sample", lambda found, *_: logits.append(found.clone()) or found.argmax())
    for chunk in (8192, 3000, 8300):
        monkeypatch.setattr(generate, "CHUNK", chunk)
        engine.prefill(prompt)
    engine.prefill(prompt[:-1])
    engine.use_graph = False
    engine.token.fill_(prompt[-1])
    engine.step()
    for found in (*logits[1:3], logits[4]):
        assert (found - logits[0]).norm() < 1e-4 * logits[0].norm()


def test_a_capture_that_fails_changes_nothing(tiny, monkeypatch):
    prompt = torch.randint(TINY.vocab, (100,)).tolist()
    plain = list(tiny.stream(prompt, 20))
    again = list(tiny.stream(prompt, 10))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "replay", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tiny.capture()
    assert again + [tiny.step() for _ in range(10)] == plain


@pytest.mark.parametrize("recorder", ["torch", "nsys"])
def test_trace_reports_the_steps_it_recorded(recorder, tmp_path):
    if recorder == "nsys":
        from ling_prof.load.nsys import find_nsys

        if not find_nsys():
            pytest.skip("no nsys here")
    output = tmp_path / ("t.json.gz" if recorder == "torch" else "t.nsys-rep")
    asked = ["trace", "--model", "nano", "--isl", "64", "--steps", "6", "--with", recorder, "--json"]
    done = cli(*asked, "--output", str(output))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["steps"]) == 6
    assert report["summary"][0]["calibrated"]


def test_bench_writes_what_it_shows(tmp_path):
    output = tmp_path / "b.json"
    asked = ["bench", "--model", "nano", "--isl", "64", "--osl", "8", "--runs", "2", "--output", str(output), "--json"]
    done = cli(*asked)
    assert done.returncode == 0, done.stderr
    bench = json.loads(done.stdout)
    assert bench == json.loads(output.read_text())
    assert bench["floor"]["bandwidth_gb_s"] > 100
    assert bench["clocks"]["sm_mhz"]
