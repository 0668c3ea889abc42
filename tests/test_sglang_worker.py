"""The program that holds a SGLang engine, with an engine in its place."""

import gzip
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ling_prof import UserError
from optim.sglang import processes, proof, protocol, worker, workers
from optim.sglang.protocol import serve
from optim.sglang.worker import ServerSession
from optim.sglang.workers import Process, Setup, close


class Engine:
    """Gives its tokens in pieces of two, as SGLang does: all of them so far each time."""

    def __init__(self, tokens=6):
        self.server_args = SimpleNamespace(model_path="m", tp_size=1, other=object())
        self.tokens, self.asked, self.folder = tokens, [], None

    def generate(self, input_ids, sampling_params, stream):
        self.asked.append((input_ids, sampling_params))
        for n in range(2, self.tokens + 2, 2):
            if self.folder is not None:
                (self.folder / "1-TP-0.trace.json.gz").write_bytes(gzip.compress(b"{}"))
            meta = {"completion_tokens": n, "spec_verify_ct": 2, "spec_accept_length": n / 2}
            yield {"output_ids": list(range(n)), "meta_info": meta}

    def start_profile(self, output_dir, num_steps, **how):
        self.folder, self.profile = Path(output_dir), (num_steps, how)


def answers(session, *commands):
    out = io.StringIO()
    serve(session, iter([json.dumps(command) for command in commands]), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_request_is_timed_piece_by_piece():
    engine = Engine()
    (found,) = answers(ServerSession(engine, list), {"do": "generate", "isl": 5, "osl": 6, "seed": 1})
    assert (found["tokens"], found["sizes"], found["accept_length"]) == ([*range(6)], [2, 2, 2], 2.5)
    assert sorted(found["ends_ns"]) == found["ends_ns"]
    assert found["ttft_ms"] == found["ends_ns"][0] / 1e6
    prompt, sampling = engine.asked[0]
    assert (prompt, len(prompt)) == (protocol.prompt(5, 1), 5)
    assert sampling == {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}


def test_what_goes_wrong_is_answered_and_the_next_command_served():
    proved = []
    found = answers(
        ServerSession(Engine(), lambda: proved.append(1)),
        {"do": "generate", "isl": 5, "osl": 9},
        {"do": "dance"},
        {"do": "generate"},
        {"do": "proof"},
        {"do": "quit"},
        {"do": "proof"},
    )
    assert found[0] == {"error": "SGLang gave 6 of 9 tokens."}
    assert found[1] == {"error": "no command dance; there are generate, logits, trace, proof, facts."}
    assert found[2]["error"].startswith("TypeError: ")
    assert (found[3:], proved) == ([{}], [1])


def test_a_recording_is_awaited_until_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(worker.time, "sleep", lambda _: None)
    engine = Engine(tokens=64)
    (found,) = answers(ServerSession(engine, list), {"do": "trace", "folder": str(tmp_path), "isl": 3, "steps": 4})
    assert Path(found["file"]).name == "1-TP-0.trace.json.gz"
    assert engine.profile == (4, {"activities": ["CPU", "GPU"], "with_stack": True, "record_shapes": False})
    with pytest.raises(UserError, match="left no recording within 0 s"):
        worker._awaited(tmp_path, {*tmp_path.iterdir()}, 0.0)


def test_facts_hold_plain_data_only():
    pytest.importorskip("torch")
    (found,) = answers(ServerSession(Engine(), list), {"do": "facts"})
    assert found["server"] == {"model_path": "m", "tp_size": 1}
    assert found["versions"].keys() == {"sglang", "sglang-kernel", "flashinfer-python"}
    assert found.keys() >= {"hardware", "driver", "cuda", "torch", "triton", "python", "clocks"}


@pytest.fixture
def program(monkeypatch, tmp_path):
    """A worker process that runs this code."""

    def made(code):
        monkeypatch.setitem(workers.PROGRAMS, "server", (sys.executable, "-c", code))
        setup = Setup(tmp_path, tmp_path, tmp_path / "caches", 0, {}, {"MORE": "1"})
        started.append(Process(setup, f"one{len(started) or ''}", {"pdl": False}))
        return started[-1]

    started = []
    yield made
    close(started)


def test_a_worker_has_its_selection_its_caches_and_its_own_streams(program):
    code = (
        "import os, json; print(json.dumps({k: os.environ.get(k) for k in ('LING_OPTIM', 'TRITON_CACHE_DIR', 'MORE')}))"
    )
    found = program(code).ready(10)
    assert found["LING_OPTIM"] == "-pdl"
    assert found["TRITON_CACHE_DIR"].endswith("caches/triton")
    assert found["MORE"] == "1"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "import sys; sys.exit('Traceback\\nValueError: no such GPU\\n[rank0] bye')",
            "did not start: ValueError: no such",
        ),
        ("import sys; sys.exit('ling-prof: no.\\nError')", "did not start: ling-prof: no; its log is"),
        ("pass", "did not start: it said nothing"),
        (
            "import os, sys, time; os.close(1); time.sleep(0.3); sys.exit('late')",
            "did not start: late; its log is one.log",
        ),
        ("import time; time.sleep(60)", "did not start within 1 s: it said nothing"),
        ('print(\'{"error": "no."}\')', "no."),
    ],
)
def test_a_worker_that_does_not_start_is_said_in_a_sentence(program, code, says):
    with pytest.raises(UserError) as error:
        program(code).ready(1 if "sleep" in code else 20)
    assert says in str(error.value)


def test_a_worker_that_has_ended_takes_no_commands(program):
    one = program("print('{}')")
    one.ready(10)
    one.process.wait(10)
    with pytest.raises(UserError, match=r"SGLang (has ended|gave no answer)"):
        one.ask("generate")


def test_a_late_answer_is_not_taken_for_the_next(program, monkeypatch):
    one = program("import time; print('{}', flush=True); input(); time.sleep(1.5); print('{}', flush=True); input()")
    one.ready(10)
    monkeypatch.setattr(workers, "ANSWER_S", 0.5)
    monkeypatch.setattr(processes, "QUIT_S", 0.1)
    with pytest.raises(UserError, match=r"^SGLang gave no answer within 0 s"):
        one.ask("generate")
    with pytest.raises(UserError, match=r"^SGLang has ended"):
        one.ask("generate")
    assert one.process.returncode is not None


def state(pid):
    """Of a process, as Linux has it; Z, ended but not waited for, where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_what_does_not_end_is_made_to_all_at_once_with_its_children(program, monkeypatch):
    """Each worker and its child ignore what they are asked; five of them take the time of one."""
    monkeypatch.setattr(processes, "QUIT_S", 0.5)
    monkeypatch.setattr(processes, "TERM_S", 0.5)
    code = (
        "import json, os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); child = os.fork();"
        "child and print(json.dumps({'child': child}), flush=True); time.sleep(600)"
    )
    stubborn = [program(code) for _ in range(5)]
    children = [one.ready(20)["child"] for one in stubborn]
    began = time.monotonic()
    close(stubborn)
    assert 1 <= time.monotonic() - began < 4
    assert [one.process.returncode for one in stubborn] == [-signal.SIGKILL] * 5
    assert {state(child) for child in children} == {"Z"}


def test_a_worker_between_requests_ends_by_itself(program):
    code = "import sys; print('{}', flush=True); assert input() == '{\"do\": \"quit\"}'; sys.exit(7)"
    idle = [program(code) for _ in range(2)]
    for one in idle:
        one.ready(20)
    close(idle)
    assert [one.process.returncode for one in idle] == [7, 7]


def test_a_child_that_outlives_its_worker_is_ended(program):
    code = "import os, time; child = os.fork(); child or time.sleep(600); print('{\"child\": %d}' % child, flush=True)"
    one = program(code)
    child = one.ready(20)["child"]
    one.process.wait(10)
    began = time.monotonic()
    close([one])
    assert time.monotonic() - began < processes.QUIT_S
    assert state(child) == "Z"


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """The bundled engine as a worker process with this model."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    started = []

    def made(model):
        arguments = {"isl": 12, "tokens": 8, "seed": 0}
        setup = Setup(Path(model), tmp_path, tmp_path / "c", 0, arguments, {}, "engine")
        started.append(Process(setup, "engine", {}))
        return started[-1]

    yield made
    close(started)


def test_the_bundled_engine_answers_as_a_server_does(engine):
    engine = engine("nano")
    assert engine.ready(120).keys() >= {"hardware", "driver", "clocks", "versions", "server"}
    first = engine.ask("generate", isl=12, osl=8)
    engine.ask("generate", isl=12, osl=4, temperature=1.0)
    again = engine.ask("generate", isl=12, osl=8)
    assert first["tokens"] == again["tokens"]
    assert (len(first["tokens"]), first["sizes"], first["accept_length"]) == (8, [1] * 8, 1.0)
    assert first["ends_ns"] == sorted(first["ends_ns"])
    assert first["ends_ns"][0] == round(1e6 * first["ttft_ms"])
    (found,) = proof.load(engine.proof)
    assert [(row["pass"], row["on"]) for row in found["passes"]] == [("engine", True)]
    assert "bf16_head: the head is torch.bfloat16" in found["passes"][0]["evidence"]


def test_an_engine_that_does_not_start_is_said_in_a_sentence(engine):
    with pytest.raises(UserError, match=r"^the engine did not start: ling-prof: no model 'nanu'; there are"):
        engine("nanu").ready(120)
