"""The benchmark itself, at nano size with a clock that the test turns."""

import platform
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from optim import bench, session  # noqa: E402
from optim.engine import checkpoint, weights  # noqa: E402
from optim.engine.config import NANO  # noqa: E402
from optim.engine.floor import parts, total  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.options import BenchOptions  # noqa: E402

ASKED = BenchOptions(model="nano", isl=10, osl=4, runs=2, dtype="fp32", device="cpu", seed=3, bandwidth=0.5)


class Clock:
    """Seconds: a prompt takes 10, the n-th decode step after it n."""

    def __init__(self, monkeypatch):
        self.now, self.step, self.prefill = 0.0, Engine.step, Engine.prefill
        monkeypatch.setattr(bench.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(Engine, "step", lambda engine: self.passes(self.step(engine), engine.steps))
        monkeypatch.setattr(Engine, "prefill", lambda engine, *how: self.passes(self.prefill(engine, *how), 10))

    def passes(self, token, seconds):
        self.now += seconds
        return token


@pytest.fixture
def found(monkeypatch):
    Clock(monkeypatch)
    return bench.run(ASKED)


def test_times_of_a_request(found):
    assert len(found["runs"]) == 2
    for run in found["runs"]:
        assert run == {"ttft_ms": 10_000, "tpot_ms": 2_000, "step_ms": [1_000, 2_000, 3_000], "tokens": 4}
    assert found["summary"]["tokens_per_s"] == 0.5
    assert found["notes"][0] == "2 runs, the same prompt: identical tokens"


def test_the_floor_is_of_the_middle_step(found):
    floor = found["floor"]
    assert floor["bytes_per_token"] == total(parts(NANO, 12, 4))
    assert floor["floor_ms"] == floor["bytes_per_token"] / 0.5e9 * 1e3
    assert floor["share_of_floor"] == floor["floor_ms"] / 2_000
    assert floor["achieved_gb_s"] == pytest.approx(floor["bytes_per_token"] / 2 / 1e9)


def test_the_lock_says_what_ran(found):
    lock = found["lock"]
    assert (lock["model"], lock["weights"], lock["dtype"]) == ("nano", "random, seed 3", "fp32")
    assert (lock["isl"], lock["osl"], lock["decoding"], lock["target"]) == (10, 4, "greedy", "engine")
    assert (lock["passes"], lock["driver"], lock["cuda"]) == ([], None, None)
    assert (lock["torch"], lock["python"]) == (torch.__version__, platform.python_version())
    assert lock["hardware"] == [session._cpu()]
    assert found["clocks"] == {"sm_mhz": None, "mem_mhz": None}


def test_other_tokens_in_a_second_run_are_told():
    engine = Engine(NANO, weights.random(NANO, 0, torch.float32, "cpu"), 16)
    assert bench._notes(engine, [[1, 2], [1, 2]])[0].endswith("identical tokens")
    assert "TOKENS DIFFER" in bench._notes(engine, [[1, 2], [1, 3]])[0]


def test_a_rank_says_what_it_leaves_out():
    c = NANO.shard(2)
    engine = Engine(c, weights.random(c, 0, torch.float32, "cpu"), 16)
    assert any("one of 2 ranks, without the collectives" in note for note in bench._notes(engine, [[1]]))


def test_checkpoints_have_fingerprints_of_their_own(tmp_path):
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        checkpoint.save(NANO, weights.random(NANO, seed, torch.float32, "cpu"), tmp_path / name)
    prints = [session._fingerprint(tmp_path / name) for name in "abc"]
    assert prints[0] == prints[2] != prints[1]
    engine = session.open_engine(replace(ASKED, model=str(tmp_path / "a")), 4)
    assert session.lock_of(engine, replace(ASKED, model=str(tmp_path / "a"))).weights == prints[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "ling-3.0-huge"}, "no model 'ling-3.0-huge'; there are ling-3.0-flash"),
        ({"isl": 4093}, "nano has 4096 positions; prompt and new tokens take 4097"),
    ],
)
def test_what_cannot_be_opened(changes, says):
    with pytest.raises(session.UserError, match=says):
        bench.run(replace(ASKED, **changes))


def test_what_does_not_fit_the_memory(monkeypatch):
    monkeypatch.setattr(session, "_memory", lambda _: 3 * 10**5)
    with pytest.raises(session.UserError, match=r"nano needs 0.0 GB, cpu has 0.0 GB"):
        bench.run(ASKED)


def test_weights_that_are_not_numbers_are_told(tmp_path):
    broken = weights.random(NANO, 0, torch.float32, "cpu")
    broken.layers[1].o[0, 0] = float("nan")
    checkpoint.save(NANO, broken, tmp_path / "nan")
    with pytest.raises(session.UserError, match="nan gives no finite numbers"):
        bench.run(replace(ASKED, model=str(tmp_path / "nan")))


def test_a_bundled_name_is_not_a_folder(tmp_path, monkeypatch):
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not session.is_checkpoint(ASKED)
    assert session.is_checkpoint(replace(ASKED, model="./nano"))
    assert not session.is_checkpoint(replace(ASKED, model="x" * 5000))
