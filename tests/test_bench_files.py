"""Results of SGLang's own benchmarks: one table of every version, and what may be compared with what."""

import json
import math
from pathlib import Path

import pytest
from test_bench_report import MANY, made
from test_cli import cli, refused

from ling_prof import bench_compare, bench_report
from ling_prof.bench_compare import compare, measured
from ling_prof.bench_files import COLUMNS, TEXT, table
from ling_prof.errors import UserError

SERVER = {
    "model_path": "/models/ling-3.0-flash",
    "dtype": "bfloat16",
    "load_format": "auto",
    "tp_size": 4,
    "port": 30000,
    "api_key": "secret",
    "startup_time": {"total": 71.5},
    "version": "0.5.19",
    "internal_states": [{"avg_spec_accept_length": 3.0}],
}
SERVING = {  # the keys of 0.5.19
    "tag": "nextn",
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": math.inf,
    "max_concurrency": 1,
    "sharegpt_output_len": None,
    "random_input_len": 8192,
    "random_output_len": 1024,
    "random_range_ratio": 1.0,
    "server_info": SERVER,
    "duration": 1700.0,
    "completed": 1000,
    "total_input_tokens": 8192000,
    "total_output_tokens": 1024000,
    "request_throughput": 0.588,
    "output_throughput": 602.3,
    "total_throughput": 5421.2,
    "mean_tpot_ms": 1.53,
    "median_tpot_ms": 1.5,
    "std_tpot_ms": 0.1,
    "p90_tpot_ms": 1.6,
    "p95_tpot_ms": 1.65,
    "p99_tpot_ms": 1.7,
    "mean_ttft_ms": 140.0,
    "mean_itl_ms": 1.53,
    "mean_e2e_latency_ms": 1705.2,
    "accept_length": 3.25,
    "concurrency": 1.0,
    "max_output_tokens_per_s": 1099.0,
    "max_concurrent_requests": 2,
}
NEW_TO_0_5 = ("tag", "server_info", "total_throughput", "p90_tpot_ms", "p95_tpot_ms", "max_output_tokens_per_s")
ONE_BATCH_SERVER = {
    "run_name": "default",
    "batch_size": 1,
    "input_len": 8192,
    "output_len": 1024,
    "latency": 2.3,
    "input_throughput": 102400.0,
    "output_throughput": 460.0,
    "overall_throughput": 4006.96,
    "last_ttft": 0.05,
    "last_gen_throughput": 455.0,
    "acc_length": -1,
    "cache_hit_rate": None,
}
ONE_BATCH = {
    "run_name": "default",
    "batch_size": 4,
    "input_len": 256,
    "output_len": 11,
    "prefill_latency": 0.5,
    "prefill_throughput": 2048.0,
    "median_decode_latency": 0.009,
    "median_decode_throughput": 444.0,
    "total_latency": 0.6,
    "overall_throughput": 1780.0,
}


@pytest.fixture
def written(tmp_path):
    """Writes objects, one a line, and gives the path."""

    def write(*objects: dict, name: str = "a.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(each) + "\n" for each in objects))
        return path

    return write


def row(path: Path) -> dict:
    (found,) = table(path).to_dict("records")
    return found


def without(said: dict, *keys: str) -> dict:
    return {key: value for key, value in said.items() if key not in keys}


def test_a_run_of_today(written):
    found = row(written(SERVING))
    assert list(found) == list(COLUMNS)
    assert (found["kind"], found["label"], found["backend"]) == ("serving", "nextn", "sglang")
    assert found["sglang"] == "0.5.19"
    assert (found["model"], found["dataset"], found["line"]) == ("ling-3.0-flash", "random", 1)
    assert (found["request_rate"], found["max_concurrency"], found["requests"]) == (math.inf, 1, 1000)
    assert (found["isl"], found["osl"], found["range_ratio"]) == (8192, 1024, 1)
    assert (found["mean_tpot_ms"], found["std_tpot_ms"], found["p95_tpot_ms"]) == (1.53, 0.1, 1.65)
    assert (found["mean_e2e_ms"], found["duration_s"], found["output_tokens_per_s"]) == (1705.2, 1700, 602.3)
    assert (found["accept_length"], found["peak_tokens_per_s"]) == (3.25, 1099)
    assert math.isnan(found["batch_size"])
    assert math.isnan(found["std_ttft_ms"])


def test_an_older_run_has_no_more_than_it_says(written):
    found = row(written(without(SERVING, *NEW_TO_0_5)))
    assert (found["label"], found["sglang"], found["model"], found["mean_tpot_ms"]) == ("", "", "", 1.53)
    for key in ("total_tokens_per_s", "p90_tpot_ms", "p95_tpot_ms", "peak_tokens_per_s"):
        assert math.isnan(found[key])


def test_runs_that_other_people_published(shared):
    paths = [shared / f"dc_llama_3_3_70b_{kind}_output.jsonl" for kind in ("offline", "online")]
    found = table(*paths)
    assert len(found) == 14
    assert found["request_rate"].tolist() == [math.inf] * 7 + [1, 2, 4, 8, 16, 4, 8]
    assert found["max_concurrency"].isna().all()
    assert found["isl"].tolist()[:3] == [1024, 1024, 4096]
    assert found.loc[found["dataset"] == "sharegpt", ["isl", "osl", "range_ratio"]].isna().all(axis=None)
    assert found["median_itl_ms"].iloc[7] == pytest.approx(13.638956, abs=1e-6)
    assert found["requests"].sum() == sum(json.loads(x)["completed"] for p in paths for x in p.read_text().splitlines())
    assert {str(kind) for kind in found.dtypes} <= {"float64", "int64", "str", "object"}


@pytest.mark.parametrize("tag", [{}, {"request_rate": "trace"}, {"max_concurrency": None}])
def test_rates_and_limits_that_are_none(written, tag):
    found = row(written(SERVING | tag))
    assert math.isnan(found["request_rate"]) == ("request_rate" in tag)
    assert math.isnan(found["max_concurrency"]) == ("max_concurrency" in tag)


def test_one_batch_of_a_server(written):
    found = row(written(ONE_BATCH_SERVER))
    assert found["kind"] == "one_batch_server"
    assert (found["batch_size"], found["requests"], found["range_ratio"]) == (1, 1, 1)
    assert found["mean_tpot_ms"] == pytest.approx(1e3 * (2.3 - 0.05) / 1023)
    assert (found["mean_ttft_ms"], found["mean_e2e_ms"], found["output_tokens"]) == (50, 2300, 1024)
    assert math.isnan(found["accept_length"])  # -1: not speculative
    assert row(written(ONE_BATCH_SERVER | {"acc_length": 3.1}))["accept_length"] == 3.1


def test_files_of_all_kinds_make_one_table(written):
    paths = [written(said, name=f"{i}.jsonl") for i, said in enumerate((SERVING, ONE_BATCH_SERVER, ONE_BATCH))]
    found = table(*paths)
    assert found["kind"].tolist() == ["serving", "one_batch_server", "one_batch"]
    assert found["dataset"].tolist() == ["random", "", ""]
    assert found["mean_tpot_ms"].notna().all()
    for column in TEXT:
        assert all(isinstance(value, str) for value in found[column])


@pytest.mark.parametrize("said", [{"batch_size": 8}, {"last_ttft": None}, {"output_len": 1}])
def test_where_one_batch_does_not_show_a_time_per_token(written, said):
    assert math.isnan(row(written(ONE_BATCH_SERVER | said))["mean_tpot_ms"])


def test_one_batch_without_a_server(written):
    found = row(written(ONE_BATCH))
    assert (found["kind"], found["mean_ttft_ms"], found["mean_tpot_ms"]) == ("one_batch", 500, pytest.approx(10))
    assert (found["median_tpot_ms"], found["total_tokens_per_s"]) == (9, 1780)


def test_accept_length_is_of_the_run_not_since_the_server_started(written):
    """1000 tokens in steps of 4, then 1000 in steps of 2: 750 steps in all, the mean since the start is 2.667."""
    first = SERVING | {"completed": 10, "total_output_tokens": 1010, "accept_length": 4.0}
    second = first | {"accept_length": 2000 / 750}
    other = second | {"server_info": SERVER | {"startup_time": {"total": 70.1}}}
    found = table(written(first, other, second))
    assert found["accept_length"].tolist() == pytest.approx([4, 2000 / 750, 2])
    assert found["accept_length_recorded"].tolist() == pytest.approx([4, 2000 / 750, 2000 / 750])


def test_lists_and_objects_over_several_lines_are_read_too(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([ONE_BATCH_SERVER, ONE_BATCH_SERVER], indent=1))
    assert table(path)["line"].tolist() == [1, 2]
    path.write_text("\ufeff" + json.dumps(SERVING, indent=1))
    assert row(path)["request_rate"] == math.inf


BAD = [
    ("", "holds no result"),
    ("[]", "holds no result"),
    ("{", "line 1 is cut off or no JSON"),
    (json.dumps(SERVING) + "\n\n" + json.dumps(SERVING)[:-40], "line 3 is cut off or no JSON"),
    ("3\n", "line 1 is no object"),
    ("{}", "line 1 is no result of a known benchmark (it has nothing)"),
    ('{"loss": 1, "step": 2}', "line 1 is no result of a known benchmark (it has loss, step)"),
    (json.dumps(SERVING | {"mean_tpot_ms": "fast"}), "line 1 has 'fast' as mean_tpot_ms, which is no number"),
    (json.dumps(SERVING | {"completed": True}), "True as completed"),
    (json.dumps(SERVING | {"completed": 10**400}), "as completed, which is no number"),
    *(
        (json.dumps(SERVING | {key: value}), f"line 1 has {value!r} as {key}, which is no ")
        for key in ("random_input_len", "random_output_len", "completed", "max_concurrency")
        for value in (math.inf, math.nan, 1.5, -1)
    ),
    *((json.dumps(ONE_BATCH | {key: math.inf}), f"inf as {key}") for key in ("batch_size", "input_len", "output_len")),
    (json.dumps(ONE_BATCH | {"batch_size": None}), "line 1 has None as batch_size, which is no whole number"),
    (json.dumps(SERVING | {"accept_length": math.inf}), "inf as accept_length, which is no number up to 1e+12"),
    (json.dumps(SERVING | {"mean_tpot_ms": 1e299}), "1e+299 as mean_tpot_ms, which is no number up to 1e+12"),
    (json.dumps(SERVING | {"request_rate": None}), "None as request_rate, which is no rate"),
    (json.dumps(SERVING | {"backend": "\ud800"}), "line 1 holds what cannot be shown ("),
    (json.dumps(SERVING | {"server_info": {"tp": "x\udfff"}}), "line 1 holds what cannot be shown ("),
    ("[" * 100_000, "line 1 is cut off or no JSON"),
]


@pytest.mark.parametrize(("content", "words"), BAD, ids=[words[:50] for _, words in BAD])
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        table(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_text_or_no_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\x1f\x8b\xff\xfe")
    for bad, words in ((path, "is no text"), (tmp_path, "is no regular file"), (tmp_path / "b", "cannot be read")):
        with pytest.raises(UserError, match=words):
            table(bad)


# Comparing


def test_mean_tpot_times_accept_length_decides(written):
    """B has the longer accept length and the smaller TPOT, but its steps are slower."""
    a = measured(written(SERVING | {"accept_length": 3.0}))
    b = measured(written(SERVING | {"accept_length": 3.5, "mean_tpot_ms": 1.4}, name="b.jsonl"))
    found = compare(a, b)
    assert found["change_pct"] == pytest.approx(100 * (1.4 / 1.53 - 1))
    assert found["step"]["ratio"] == pytest.approx(1.4 * 3.5 / (1.53 * 3.0))
    assert found["verdict"].startswith("B is slower: the ranges of the requests of one run do not overlap")
    assert any("accept length differs: 3.000 in A, 3.500 in B" in line for line in found["warnings"])
    assert sum("since its server started" in line for line in found["warnings"]) == 2


def test_the_interval_of_one_run_is_that_of_the_mean_of_its_requests(written):
    found = measured(written(SERVING))
    half = 1.96 * 0.1 / math.sqrt(1000)
    assert (found.runs, found.tpot_ms["mean"]) == (1000, 1.53)
    assert (found.tpot_ms["low"], found.tpot_ms["high"]) == pytest.approx((1.53 - half, 1.53 + half))
    assert found.step_ms["high"] == pytest.approx(3.25 * (1.53 + half))
    assert measured(written(without(SERVING, "std_tpot_ms"))).runs == 1


def test_lines_made_alike_are_runs(written):
    found = measured(written(*(SERVING | {"mean_tpot_ms": 1 + i / 10, "accept_length": None} for i in range(5))))
    assert (found.runs, found.accept_length) == (5, None)
    assert found.tpot_ms == pytest.approx({"mean": 1.2, "low": 1.0, "high": 1.4})
    one = measured(written(SERVING | {"accept_length": None}, name="b.jsonl"))
    assert "the ranges of the runs and the requests of one run do not overlap" in compare(found, one)["verdict"]


def test_lines_made_in_several_ways_have_to_be_chosen_from(written):
    path = written(SERVING, SERVING | {"random_input_len": 1024}, SERVING)
    with pytest.raises(UserError, match="holds runs that were not measured alike; choose one"):
        measured(path)
    assert (measured(path, 3).runs, measured(path, 2).lock.isl) == (2, 1024)
    with pytest.raises(UserError, match="has no result in line 4; it has 1, 2, 3"):
        measured(path, 4)


def test_unlike_runs_are_refused(written):
    a = measured(written(SERVING))
    for said, words in (
        ({"random_output_len": 512}, r"osl \(1024 / 512\)"),
        ({"max_concurrency": 4}, "load .one request at a time / random requests at once, 4 at a time"),
        ({"server_info": SERVER | {"version": "0.5.20"}}, "sglang"),
        ({"server_info": SERVER | {"tp_size": 8}}, r"server argument tp_size \(4 / 8\)"),
        ({"server_info": SERVER | {"model_path": "other/model"}}, "model"),
    ):
        b = measured(written(SERVING | said, name="b.jsonl"))
        with pytest.raises(UserError, match=f"A and B differ in {words}"):
            compare(a, b)
    assert compare(a, measured(written(SERVING, name="b.jsonl")))["warnings"][0].startswith("the accept length")


def test_what_neither_file_records_is_said(written):
    found = compare(*[measured(written(ONE_BATCH_SERVER))] * 2)
    assert found["warnings"][0].startswith("neither says its hardware, driver, cuda, triton, torch, python, model")


NO_TIME = "line 1 and its like hold no mean time per token to compare by; measure again with ling-prof bench sglang"


def test_without_a_mean_time_per_token_nothing_is_compared(shared):
    with pytest.raises(UserError, match=NO_TIME):
        measured(shared / "dc_llama_3_3_70b_online_output.jsonl", 1)


@pytest.mark.parametrize("said", [{"mean_tpot_ms": 1e-320}, {"accept_length": 1e-20}, {"mean_tpot_ms": math.nan}])
def test_what_is_no_time_is_not_compared(written, said):
    with pytest.raises(UserError, match=NO_TIME):
        measured(written(SERVING | said))


def test_times_of_a_trace_are_a_load_of_their_own(written):
    found = measured(written(SERVING | {"request_rate": "trace", "max_concurrency": None}))
    assert found.lock.load == "random requests as in a trace, lengths from 1 of those asked"


def test_peaks_are_shown_and_do_not_decide(written):
    a, b = written(SERVING), written(SERVING | {"max_output_tokens_per_s": 1945.0}, name="b.jsonl")
    found = compare(measured(a), measured(b))
    assert [found[side]["peak_tokens_per_s"] for side in "ab"] == [1099, 1945]
    assert (found["ratio"], found["ranges_overlap"], found["shown"]) == (1, True, False)
    page = " ".join(cli("bench", "compare", str(a), str(b)).stdout.split())
    for words in ("peak tokens/s (not judged)", "1945.0", "of A's TPOT x accept length (0 ns, +0.00 %), which decides"):
        assert words in page


def test_our_own_benchmark_beside_one_of_sglang(written, tmp_path):
    ours = tmp_path / "ours.json"
    bench_report.save(made(runs=MANY, model="ling-3.0-flash", weights="checkpoint", decoding=None), ours)
    theirs = written(SERVING)
    said = refused("bench", "compare", str(ours), str(theirs))
    assert "hardware (NVIDIA H200 / none)" in said
    found = json.loads(cli("bench", "compare", str(ours), str(theirs), "--force", "--json").stdout)
    assert (found["a"]["target"], found["b"]["target"]) == ("engine", "sglang")
    assert any(line.startswith("only B says its accept length") for line in found["warnings"])
    assert "it has no line 2 to choose" in refused("bench", "compare", str(ours), str(theirs), "--line-a", "2")


def test_a_key_of_that_name_makes_no_benchmark_of_ours(written):
    assert measured(written(SERVING | {"schema": 1}, SERVING | {"schema": "2"})).runs == 2


def test_a_damaged_benchmark_of_ours_is_still_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(without(made(), "summary")))
    with pytest.raises(UserError, match=r"not a whole ling-prof\.bench/1"):
        bench_compare.measured(path)
