"""Timing and recording a SGLang server over HTTP, against a stand-in that speaks as the real one does."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import BUNDLED
from sglang_server import SPECULATIVE, Behaviour, Handler, serving
from test_cli import cli, refused

from ling_prof import bench_compare, bench_report
from ling_prof.cli import whole_app
from ling_prof.errors import UserError
from ling_prof.lock import from_dict
from ling_prof.server_info import decoding_of
from optim.sglang import bench, client, machine, record
from optim.sglang import server as own
from optim.sglang.options import BenchOptions, RecordOptions

TRACE = BUNDLED / "h200_qwen3_graph_stacks.pt.trace.json.gz"
NAMED = BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz"  # its capture names the layers


@pytest.fixture
def stand_in():
    """Starts servers that end with the test: behaviour -> URL."""
    with ExitStack() as stack:
        yield lambda **does: stack.enter_context(serving(Behaviour(**does)))


@pytest.fixture
def ticking(monkeypatch):
    """A clock for the client that is 10 ms further each time it is read: pieces of a stream come 10 ms apart."""
    clock = count(step=0.01)
    monkeypatch.setattr(client, "time", SimpleNamespace(perf_counter=lambda: next(clock), sleep=lambda _: None))


def measured(url: str, **more) -> dict:
    return bench.run(BenchOptions(**{"url": url, "isl": 8, "osl": 16, "runs": 2, **more}))


# What can go wrong on the way to a server


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("old", "runs SGLang 0.4.6, which has no /server_info; update it to 0.5.6 or later."),
        ("404 /server_info", "is no SGLang server (it has no /server_info)"),
        ("text /server_info", "is no SGLang server"),
        ("401 /server_info", "wants a key for /server_info; set SGLANG_API_KEY in the environment."),
        ("500 /server_info", "refuses /server_info (HTTP 500: Internal Server Error)."),
        ("503 /server_info", "is still starting"),
        ("hang up /server_info", "broke off while answering /server_info"),
        ("busy", "is busy with other requests"),
        (
            "too long",
            "refuses the request (The input (9 tokens) is longer than the model's context length (8 tokens)).",
        ),
        ("nonsense", "streams what SGLang does not"),
        ("breaks off", "ended a request after 3 of 16 tokens"),
        ("500 /generate", "refuses /generate (HTTP 500: Internal Server Error)."),
        ("hang up /generate", "broke off while answering /generate"),
    ],
)
def test_whatever_goes_wrong_is_one_sentence(stand_in, monkeypatch, fault, words):
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    url = stand_in(fault=fault)
    with pytest.raises(UserError) as error:
        measured(url)
    assert words in str(error.value)
    assert url in str(error.value)
    assert "\n" not in str(error.value)


DEEP = json.loads("[" * 400 + "]" * 400)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tp_size", "x", "tp_size 'x', which is no whole number up to 1000000; give the URL of a SGLang server"),
        ("stream_interval", "x", "stream_interval 'x', which is no whole number"),
        ("stream_interval", [1], "stream_interval [1], which is no whole number"),
        ("nnodes", "z", "nnodes 'z', which is no whole number"),
        ("pp_size", -1, "pp_size -1, which is no whole number"),
        ("speculative_num_draft_tokens", "x", "speculative_num_draft_tokens 'x', which is no whole number"),
        ("mem_fraction_static", math.nan, "mem_fraction_static nan, which is nothing that a file can keep"),
        ("graphs", {"sizes": [math.inf]}, "graphs {'sizes': [inf]}, which is nothing that a file can keep"),
        ("attention_backend", "\ud800", "attention_backend '\\ud800', which is nothing that a file can keep"),
        ("quantization", "\ud800", "quantization '\\ud800', which is nothing that a file can keep"),
        ("model_path", "\ud800", "model_path '\\ud800', which is nothing that a file can keep"),
        ("\ud800", 1, "\\ud800 1, which is nothing that a file can keep"),
        ("graphs", DEEP, "which is nothing that a file can keep"),
        ("version", "9" * 5000, "is no SGLang server"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "replace").decode(),
)
@pytest.mark.parametrize("command", ["bench", "record"])
def test_what_a_server_says_of_itself_is_checked_before_it_is_asked_for_anything(tmp_path, command, name, value, words):
    does = Behaviour(info={name: value})
    with serving(does) as url, pytest.raises(UserError) as error:
        measured(url) if command == "bench" else recorded(url, tmp_path, drive=True)
    assert str(error.value).startswith(url)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert [path for path, _ in does.asked if "server_info" not in path] == []
    assert not (tmp_path / "new").exists()


def test_what_no_lock_keeps_may_be_anything(stand_in):
    assert measured(stand_in(info={"internal_states": [math.nan], "log_level": "\ud800"}))["runs"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"spec_verify_ct": "x"}, "its meta_info has spec_verify_ct: expected `int | null`, got `str`"),
        ({"spec_verify_ct": math.nan}, "spec_verify_ct: expected"),
        ({"spec_verify_ct": 1e-300}, "spec_verify_ct: expected"),
        ({"spec_verify_ct": -3}, "spec_verify_ct: expected `int` >= 0"),
        ({"cached_tokens": "x"}, "cached_tokens: expected"),
        ({"completion_tokens": "x"}, "completion_tokens: expected"),
        ({"completion_tokens": 10**12}, "completion_tokens: expected `int` <= 1000000000"),
        ({"completion_tokens": 10**8}, "says that 16 tokens which were asked for became 100000000"),
        ({"completion_tokens": 3, "finish_reason": "full"}, "ended a request after 3 of 16 tokens (full)"),
        ({"completion_tokens": 3, "finish_reason": {"message": "full"}}, "after 3 of 16 tokens (full)"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_a_server_says_of_a_request_is_checked(stand_in, monkeypatch, said, words):
    true = Handler._meta
    monkeypatch.setattr(Handler, "_meta", lambda self, *how: true(self, *how) | said)
    url = stand_in(info=SPECULATIVE)
    with pytest.raises(UserError) as error:
        measured(url)
    assert str(error.value).startswith(url)
    assert words in str(error.value)


def test_a_piece_that_is_deep_in_itself(stand_in, monkeypatch):
    monkeypatch.setattr(Handler, "_event", lambda self, _: self._chunk(b"data: " + b"[" * 100_000 + b"\n\n"))
    with pytest.raises(UserError, match="streams what SGLang does not"):
        measured(stand_in())


@pytest.mark.parametrize("value", ["..", "1e999", "nan", "-5", "1e300", "0x10", "1e-300"])
def test_counters_that_count_nothing_tell_no_accept_length(stand_in, monkeypatch, tmp_path, value):
    names, told = (bench.VERIFIED, bench.GENERATED), count()
    pages = [f"{names[0]} 0\n{names[1]} 0\n", f"{names[0]} {value}\n{names[1]} 40\n"]
    monkeypatch.setattr(Handler, "metrics", lambda self, _: self._send(200, pages[next(told)]))
    found = measured(stand_in(info=SPECULATIVE, tells_verified=False))
    assert any("nor do counters; start the server with --enable-metrics" in note for note in found["notes"])
    bench_report.save(found, tmp_path / "a.json")


def test_a_silent_server_is_not_waited_for_for_ever(stand_in, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.2)
    with pytest.raises(UserError, match=r"says nothing to /server_info for 0.2 s"):
        client.connect(stand_in(fault="silent /server_info"))


def test_no_server_is_said_with_how_to_start_one():
    with serving(Behaviour()) as url:
        pass
    said = refused("bench", "sglang", "--url", url)
    assert f"no server answers at {url} (Connection refused); start one with: python -m sglang.launch_server" in said


@pytest.mark.parametrize(
    "url",
    [
        "localhost:30000",
        "ftp://host",
        "http://host/\u00e9",
        "http://host/a b",
        "http://host/\udc80",
        "http://",
        "http://host:port",
        "http://me:word@host",
        "http://host/?a=1",
        "",
    ],
)
def test_what_is_no_address_of_a_server(url):
    with pytest.raises(UserError, match="--url takes the address of a server"):
        client.checked(url)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("bench", "sglang"), "--url URL or --launch MODEL, one of them"),
        (("bench", "sglang", "--url", "http://h", "--launch", "m"), "one of them"),
        (("bench", "sglang", "--url", "http://h", "--", "--tp", "2"), "--url takes no arguments of a server"),
        (("bench", "sglang", "--launch", "m", "--", "--port=3"), "but for --model"),
        (("bench", "sglang", "--url", "http://h", "--osl", "1"), "--osl takes"),
        (("bench", "sglang", "--url", "http://h", "--runs", "0"), "--runs takes"),
        (("bench", "sglang", "--url", "http://h", "--temperature", "nan"), "--temperature takes"),
        (("bench", "sglang", "--url", "http://h", "--output", "/nowhere/a.json"), "its folder does not exist"),
        (
            ("bench", "sglang", "--launch", "m"),
            'sglang is not installed here, which --launch starts; pip install "ling',
        ),
        (("bench", "--runs", "3", "sglang", "--url", "http://h"), "after its name"),
        (("record", "sglang"), "--url URL or --launch MODEL"),
        (("record", "sglang", "--url", "http://h", "--steps", "1"), "--steps takes"),
        (("record", "sglang", "--url", "http://h", "--timeout", "0"), "--timeout takes"),
        (("record", "sglang", "--url", "http://h", "--layers"), "a running server cannot switch its graphs off"),
        (("record", "sglang", "--url", "http://h", "-o", "/dev/null/new"), "cannot be written"),
        (("record", "sglang", "--url", "http://h", "-o", str(BUNDLED)), "is not empty; give a new folder"),
        (("record", "sglang", "--url", "http://h", "--timeout", "1e12"), "--timeout takes no more than 10000000"),
        (("bench", "sglang", "--url", "http://h", "--isl", "9" * 20), "--isl takes no more than 10000000"),
        (("bench", "sglang", "--url", "http://h", "--osl", "9" * 20), "--osl takes no more than 10000000"),
        (
            ("record", "sglang", "--url", "http://h", "--layers-from", "/nonexist"),
            "/nonexist cannot be read, which --layers-from names; nothing was recorded",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_ends_in_one_sentence(args, words):
    with pytest.raises(UserError) as error:
        whole_app()([*args], standalone_mode=False)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_goes_along_and_a_proxy_is_not_asked_about_this_machine(stand_in, monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "word")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert client.connect(stand_in()).version == "0.5.19"


@pytest.mark.parametrize("key", ["a\nb", "\u20ac"])
def test_what_is_no_key_is_not_sent(stand_in, monkeypatch, key):
    monkeypatch.setenv("SGLANG_API_KEY", key)
    with pytest.raises(UserError, match="SGLANG_API_KEY holds more than"):
        client.connect(stand_in())


def test_a_refusal_shows_no_more_than_a_line(stand_in):
    server = client.connect(stand_in(fault="404 /flush_cache"))
    assert server.flush_cache() == "Not Found"


# Bench


def test_the_figures_are_those_of_the_stream(stand_in, ticking):
    found = measured(stand_in())
    for run in found["runs"]:
        assert (run["tokens"], run["step_tokens"]) == (16, [1] * 15)
        assert run["step_ms"] == pytest.approx([10] * 15)
        assert (run["ttft_ms"], run["tpot_ms"]) == (pytest.approx(10), pytest.approx(10))
        assert "accept_length" not in run
    summary = found["summary"]
    assert summary["itl_ms"] == pytest.approx({"mean": 10, "median": 10, "p99": 10})
    assert summary["output_tokens_per_s"] == pytest.approx(100)
    assert "2 runs, the same prompt: identical tokens" in found["notes"]
    assert found["command"].startswith("ling-prof bench sglang --url http://127.0.0.1:")


def test_what_is_asked_of_the_server(stand_in):
    does = Behaviour()
    with serving(does) as url:
        measured(url, seed=3, temperature=0.5)
    bodies = does.bodies("/generate")
    assert [body["sampling_params"]["max_new_tokens"] for body in bodies] == [16, 16, 16]  # the first one warms up
    assert {len(body["input_ids"]) for body in bodies} == {8}
    assert bodies[0]["input_ids"] == bench.prompt_for(8, 3) != bench.prompt_for(8, 4)
    assert bodies[0]["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 16, "ignore_eos": True}
    assert bodies[0]["stream"] is True
    order = [path for path, _ in does.asked if path != "/server_info"]
    assert order == ["/flush_cache", "/generate"] * 3


def test_accept_length_is_of_these_requests_alone(stand_in, ticking):
    """15 tokens after the first one in commits of 4, 2, 4, 2, 3 make 3 a step, however long the server ran before."""
    found = measured(stand_in(info=SPECULATIVE, commits=(4, 2), verified=10**6))
    for run in found["runs"]:
        assert run["step_tokens"] == [4, 2, 4, 2, 3]
        assert run["accept_length"] == 3
    assert found["summary"]["accept_length"] == {"mean": 3, "low": 3, "high": 3}
    assert found["summary"]["tpot_ms"]["mean"] * 3 == pytest.approx(10)  # TPOT x accept length: a step
    times = [2.5] * 8 + [10 / 3] * 3 + [5] * 4  # of 15 tokens, from steps of 4, 3 and 2
    assert found["summary"]["itl_ms"]["mean"] == pytest.approx(sum(times) / 15)
    assert found["summary"]["itl_ms"]["median"] == pytest.approx(2.5)
    assert found["lock"]["decoding"] == "greedy, NEXTN, 3 steps, 4 draft tokens"


def test_a_pinned_accept_length_is_part_of_how_it_decodes():
    assert decoding_of(SPECULATIVE, 0.0, "3") == "greedy, NEXTN, 3 steps, 4 draft tokens, accept length pinned to 3"
    assert decoding_of({}, 0.8, "3") == "sampled, temperature 0.8"


def test_accept_length_by_difference_of_the_servers_counters(stand_in):
    found = measured(stand_in(info=SPECULATIVE, commits=(4, 2), tells_verified=False, counters=True, verified=777))
    assert [run["accept_length"] for run in found["runs"]] == [3, 3]
    assert any("the difference of the server's counters" in note for note in found["notes"])


def test_an_accept_length_that_nothing_tells_is_said_so(stand_in):
    found = measured(stand_in(info=SPECULATIVE, tells_verified=False))
    assert "accept_length" not in found["summary"]
    assert any("start the server with --enable-metrics" in note for note in found["notes"])


def test_the_lock_has_versions_and_arguments_but_no_secrets(stand_in, monkeypatch):
    monkeypatch.setattr(
        machine, "_smi", lambda query: [["NVIDIA H200", "580.1"]] if "name" in query else [["1980", "3201"]]
    )
    found = measured(stand_in())
    lock = from_dict(found["lock"], "a")
    assert (lock.target, lock.sglang, lock.model, lock.weights) == (
        "sglang",
        "0.5.19",
        "ling-3.0-tiny",
        "random, made by the server",
    )
    assert (lock.dtype, lock.isl, lock.osl, lock.decoding) == ("bf16", 8, 16, "greedy")
    assert (lock.hardware, lock.driver, lock.torch) == (("NVIDIA H200",), "580.1", None)
    assert found["clocks"] == {"sm_mhz": 1980, "mem_mhz": 3201}
    assert lock.server_args == {
        "attention_backend": "triton",
        "dp_size": 1,
        "nnodes": 1,
        "pp_size": 1,
        "stream_interval": 1,
        "tp_size": 1,
    }
    assert "secret" not in json.dumps(found)
    assert "/models" not in json.dumps(found)


@pytest.mark.parametrize(
    ("rows", "count"), [([], 1), ([["H200", "1"]], 2), ([["H200", "1"], ["L4", "1"]], 1)], ids=["none", "few", "mixed"]
)
def test_hardware_that_is_not_sure_is_left_open(monkeypatch, rows, count):
    monkeypatch.setattr(machine, "_smi", lambda _: rows)
    assert machine.gpus({"tp_size": count}) == {}


def test_what_a_reader_must_know_is_noted(stand_in):
    url = stand_in(info={"version": "0.5.20", "stream_interval": 4}, fault="404 /flush_cache")
    notes = " | ".join(measured(url)["notes"])
    for words in ("SGLang 0.5.20: this is written against 0.5.19", "could not be flushed (Not Found)", "4 at a time"):
        assert words in notes
    assert "TOKENS DIFFER" in " ".join(measured(stand_in(fault="unlike"))["notes"])


def test_pieces_of_a_stream_hold_all_tokens_or_the_new_ones(stand_in):
    replies = [client.connect(stand_in(incremental=way, commits=(3,))).generate([1], 9) for way in (True, False)]
    assert replies[0].ids == replies[1].ids
    assert replies[0].counts == [1, 4, 7, 9]


def test_tokens_in_one_piece_show_no_time(stand_in):
    with pytest.raises(UserError, match="sends all tokens in one piece"):
        bench.timed(client.connect(stand_in()), client.Reply([0.1], [16]))


def test_bench_on_the_command_line_writes_what_compare_reads(stand_in, tmp_path):
    url = stand_in(info=SPECULATIVE, commits=(4, 2))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    common = ("bench", "sglang", "--url", url, "--isl", "8", "--osl", "16", "--runs", "5", "--output")
    page = cli(*common, a).stdout
    for words in (
        "hardware not recorded",
        "does not tell its passes",
        "between tokens (ITL)",
        "tokens a verify step (accept length)",
        "3.000",
        "sglang 0.5.19",
        "TPOT x accept",
    ):
        assert words in page
    assert json.loads(cli(*common, b, "--json").stdout) == bench_report.load(Path(b))
    found = json.loads(cli("bench", "compare", a, b, "--json").stdout)
    assert (found["a"]["accept_length"], found["a"]["runs"]) == (3, 5)
    assert any("hardware" in line for line in found["warnings"])
    assert "TPOT x accept length" in cli("bench", "compare", a, b).stdout


def test_other_arguments_of_the_server_are_another_measurement(stand_in):
    sides = [bench_compare.of_bench(measured(stand_in(info=info))) for info in ({}, {"attention_backend": "fa3"})]
    with pytest.raises(UserError, match=r"A and B differ in server argument attention_backend \(triton / fa3\)"):
        bench_compare.compare(*sides)


# Record


def recorded(url: str, folder: Path, **more) -> record.Recording:
    return record.record(RecordOptions(**{"url": url, "isl": 8, "output": folder / "new", "timeout": 5.0, **more}))


def test_every_flag_of_the_profiler_is_said(tmp_path):
    does = Behaviour(trace=TRACE)
    with serving(does) as url:
        found = recorded(url, tmp_path, steps=5, stacks=False, shapes=True)
    assert does.bodies("/start_profile") == [
        {
            "output_dir": str(tmp_path / "new"),
            "profile_id": "decode",
            "num_steps": 5,
            "activities": ["CPU", "GPU"],
            "with_stack": False,
            "record_shapes": True,
            "profile_by_stage": False,
            "profile_stages": None,
            "merge_profiles": False,
        }
    ]
    assert not does.bodies("/generate")
    assert (found.tpot_ms, [path.name for path in found.files]) == (None, ["decode-TP-0.trace.json.gz"])


def test_by_stage_asks_for_decode_alone(tmp_path):
    options = RecordOptions(url="http://h", by_stage=True)
    flags = record._flags(options, tmp_path)
    assert (flags["profile_by_stage"], flags["profile_stages"]) == (True, ["decode"])


def test_a_driven_request_is_in_decode_when_the_profiler_starts(tmp_path, ticking):
    does = Behaviour(trace=TRACE, info=SPECULATIVE, commits=(4, 2))
    with serving(does) as url:
        found = recorded(url, tmp_path, drive=True, steps=5)
    assert [path for path, _ in does.asked if path in ("/generate", "/start_profile")] == [
        "/generate",
        "/start_profile",
    ]
    (body,) = does.bodies("/generate")
    assert body["sampling_params"]["max_new_tokens"] == 4 * (record.SETTLE + record.REHEARSED + 5 + record.AFTER)
    assert found.accept_length == pytest.approx(3, abs=0.02)
    assert found.tpot_ms * found.accept_length == pytest.approx(10, rel=0.02)


def test_files_are_awaited_whole_and_for_every_rank(tmp_path):
    ranks = ("TP-10", "TP-2", *(f"TP-{i}" for i in (0, 1, 3, 4, 5, 6, 7, 8, 9)))
    with serving(Behaviour(trace=TRACE, info={"tp_size": 11}, ranks=ranks, profile_s=0.1)) as url:
        found = recorded(url, tmp_path, timeout=20.0)
    assert [path.name.split(".")[0] for path in found.files] == [f"decode-TP-{i}" for i in range(11)]
    assert all(gzip.decompress(path.read_bytes()) for path in found.files)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (
            {"trace": None},
            "no trace came within 2 s; a profile needs requests while it runs: send some, or take --drive",
        ),
        (
            {"trace": TRACE, "fault": "cut", "info": {"tp_size": 2}, "ranks": ("TP-0", "TP-1")},
            "1 of 2 traces are whole after 2 s, cut off: decode-TP-1.trace.json.gz; wait longer with --timeout",
        ),
        ({"trace": TRACE, "info": {"tp_size": 2}}, "1 of 2 traces are whole after 2 s; wait longer"),
    ],
    ids=["none", "half-written", "one rank missing"],
)
def test_files_that_stay_out_are_told_and_the_profiler_is_stopped(tmp_path, monkeypatch, does, words):
    monkeypatch.setattr(record, "POLL_S", 0.02)
    behaviour = Behaviour(**does)
    with serving(behaviour) as url, pytest.raises(UserError) as error:
        recorded(url, tmp_path, timeout=2.0)
    assert words in str(error.value)
    assert behaviour.bodies("/stop_profile") == [{}]


def test_a_profiler_that_does_not_start_is_told(stand_in, tmp_path):
    with pytest.raises(UserError, match=r"does not start its profiler; if it is on already, POST /stop_profile"):
        recorded(stand_in(fault="500 /start_profile"), tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_request_that_goes_wrong_before_the_profile_leaves_no_folder(stand_in, tmp_path):
    with pytest.raises(UserError, match="streams what SGLang does not"):
        recorded(stand_in(fault="nonsense"), tmp_path, drive=True)
    assert not (tmp_path / "new").exists()


def test_a_request_in_too_few_pieces_starts_no_profile(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "REHEARSED", 10**4)
    monkeypatch.setattr(record, "AFTER", -(10**4))
    with pytest.raises(UserError, match="pieces: too few to start a profile in"):
        recorded(stand_in(), tmp_path, drive=True)


def test_record_on_the_command_line_reports_with_the_time_before(stand_in, tmp_path):
    url = stand_in(trace=TRACE, info={"tp_size": 2}, ranks=("TP-1", "TP-0"))
    done = cli("record", "sglang", "--url", url, "-o", str(tmp_path / "new"), "--drive", "--isl", "8", "--json")
    report = json.loads(done.stdout)
    assert report["trace"]["path"].endswith("decode-TP-0.trace.json.gz")
    assert report["options"]["unprofiled_tpot"] > 1e6
    assert "decode-TP-1.trace.json.gz" in done.stderr


# A server of our own


@pytest.fixture
def launchable(tmp_path, monkeypatch):
    """A stub of the package `sglang`, whose launch_server is the stand-in -> where its recording of graphs must lie."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    replayed = tmp_path / "replayed.json.gz"
    code = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom sglang_server import main\n"
    (package / "launch_server.py").write_text(f"{code}main({str(replayed)!r}, {str(NAMED)!r})\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(own, "POLL_S", 0.1)
    return replayed


def without_layers(trace: dict) -> dict:
    """As if the capture of its graph had not been recorded."""
    kept = [e for e in trace["traceEvents"] if e.get("cat") != "python_function" and "layer" not in e.get("name", "")]
    return trace | {"traceEvents": [e for e in kept if "Capture" not in e.get("name", "")]}


def test_a_launched_server_is_measured_and_ended(launchable, monkeypatch, tmp_path):
    monkeypatch.setenv("LING_OPTIM", "-pdl,-bf16_gate")
    monkeypatch.setattr(own.tempfile, "tempdir", str(tmp_path))
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(own.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    args = ("--tp-size", "1", "--api-key", "word")
    found = bench.run(BenchOptions(launch="org/model", args=args, isl=8, osl=4, runs=1))
    lock = from_dict(found["lock"], "a")
    assert (lock.model, lock.passes, lock.python) == ("org/model", ("-pdl", "-bf16_gate"), sys.version.split()[0])
    assert lock.torch
    assert found["command"].endswith("-- --tp-size 1 --api-key ...")
    assert [process.returncode is not None for process in started] == [True]
    assert not list(tmp_path.glob("ling-prof-sglang-*"))


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        ("--fail", "SGLang ended (exit code 3): [2026-01-01 00:00:00] RuntimeError: out of memory; its log is "),
        ("--die-later", "SGLang ended (exit code 9)"),
    ],
)
def test_a_server_that_ends_is_told_with_its_last_error_and_its_log(launchable, monkeypatch, tmp_path, arg, words):
    monkeypatch.setattr(own.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError) as error:
        bench.run(BenchOptions(launch="m", args=(arg,), isl=8, osl=16, runs=1))
    assert words in str(error.value)
    (log,) = tmp_path.glob("ling-prof-sglang-*")
    assert str(log) in str(error.value)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_leaves_no_log(launchable, monkeypatch, tmp_path, how):
    monkeypatch.setattr(own.tempfile, "tempdir", str(tmp_path))
    before, opened = signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd"))
    with pytest.raises((KeyboardInterrupt, SystemExit)), own.launched("m") as server:
        signal.raise_signal(how)
    with pytest.raises(UserError, match="no server answers"):
        client.connect(server.url)
    assert not list(tmp_path.glob("ling-prof-sglang-*"))
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(os.listdir("/proc/self/fd")) <= opened  # another test's may be collected meanwhile


def test_a_server_that_answers_oddly_is_not_waited_for(launchable, monkeypatch):
    def connect(_):
        raise client.Unfit("it says tp_size 'x'.")

    monkeypatch.setattr(own, "connect", connect)
    with pytest.raises(UserError, match=r"it says tp_size 'x'; the server's log is"), own.launched("m"):
        pass


def test_a_server_that_never_serves_is_given_up(launchable, monkeypatch):
    monkeypatch.setattr(own, "START_S", 0.3)
    monkeypatch.setattr(own, "connect", lambda url: client.connect("http://127.0.0.1:1"))
    with pytest.raises(UserError, match=r"SGLang does not serve after 0.3 s; the server's log is"), own.launched("m"):
        pass


def test_a_second_server_with_graphs_off_names_the_layers(launchable, tmp_path):
    named = json.loads(gzip.decompress(NAMED.read_bytes()))
    launchable.write_bytes(gzip.compress(json.dumps(without_layers(named)).encode(), 1))
    folder = tmp_path / "new"
    args = ("record", "sglang", "--launch", "m", "-o", str(folder), "--isl", "8", "--layers", "--json")
    report = json.loads(cli(*args).stdout)
    assert {row["layer"] for row in report["layers"]} >= {"layer N mla", "layer N kda"}
    assert sorted(path.name for path in folder.iterdir()) == ["decode-TP-0.trace.json.gz", "graphs-off"]
    alone = json.loads(cli("kernels", str(folder / "decode-TP-0.trace.json.gz"), "--json").stdout)
    assert not alone["layers"]
    assert any("graphs-off" in note for note in report["trace"]["notes"])
