"""A text that a rank is made to decode, with a model runner in the place of SGLang's."""

import io
import json
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ling_prof import UserError  # noqa: E402
from optim.sglang import worker  # noqa: E402
from optim.sglang.forced import FORCED, Forced  # noqa: E402
from optim.sglang.protocol import serve  # noqa: E402

TEXT = [5, 3, 4]
VOCAB = 7


class Runner:
    """Samples as ModelRunner does: greedily, and it makes NaN harmless in place first."""

    def __init__(self, tp_size=1, pp_size=1):
        self.ps = SimpleNamespace(tp_size=tp_size, pp_size=pp_size)

    def sample(self, logits_output, forward_batch):
        logits_output.next_token_logits.nan_to_num_(nan=-1e5)
        return logits_output.next_token_logits.argmax(-1)


class Batches:
    """Forward passes of a rank; the n-th one's logits are n, but for its likeliest token, 1."""

    def __init__(self, runner):
        self.runner, self.passed = runner, 0

    def forward(self, kind, requests=1, nan=False):
        """-> the ids that the scheduler gets."""
        logits = torch.full((requests, VOCAB), float(self.passed))
        logits[:, 1] += 1
        if nan:
            logits[:, 2] = torch.nan
        self.passed += 1
        mode = SimpleNamespace(is_extend=lambda: kind == "extend", is_decode=lambda: kind == "decode")
        ids = self.runner.sample(SimpleNamespace(next_token_logits=logits), SimpleNamespace(forward_mode=mode))
        logits.fill_(-9)  # a graph's buffer is used again
        assert (ids.dtype, ids.shape) == (torch.int64, (requests,))
        return ids.tolist()

    def all(self, *kinds):
        return [token for kind in kinds for token in self.forward(kind)]


def is_usual(runner):
    """Whether it samples by the method of its class."""
    return "sample" not in vars(runner)


@pytest.fixture
def rank(tmp_path):
    """-> its runner, its forward passes, what forces a text, and the file."""
    runner = Runner()
    return runner, Batches(runner), Forced(runner), tmp_path / "logits.npy"


def test_a_text_is_decoded_and_its_logits_are_left(rank):
    runner, batches, force, file = rank
    force(text=json.dumps(TEXT), file=str(file))
    assert batches.all("extend", "decode", "decode") == TEXT
    assert not file.exists()
    force()
    kept = np.load(file)
    assert (kept.shape, kept.dtype) == ((3, VOCAB), np.float32)
    assert kept[:, 0].tolist() == [0, 1, 2]
    assert kept[:, 1].tolist() == [1, 2, 3]
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert (is_usual(runner), force.rows, force.taken) == (True, None, None)
    assert batches.all("extend", "decode") == [1, 1]


def test_of_a_prompt_in_chunks_the_last_one_counts(rank):
    _, batches, force, file = rank
    force(text=json.dumps(TEXT), file=str(file))
    assert batches.all("extend", "extend", "extend", "decode", "decode")[2:] == TEXT
    force()
    assert np.load(file)[:, 0].tolist() == [2, 3, 4]


def test_beyond_the_text_and_before_the_prompt_nothing_is_forced(rank):
    _, batches, force, file = rank
    force(text=json.dumps(TEXT), file=str(file))
    found = batches.all("decode", "extend", "idle", "decode", "decode", "decode", "decode")
    assert found == [1, 5, 1, 3, 4, 1, 1]
    force()
    assert np.load(file)[:, 0].tolist() == [1, 3, 4]


def test_nan_is_left_as_it_came(rank):
    _, batches, force, file = rank
    force(text="[5, 3]", file=str(file))
    batches.forward("extend")
    assert batches.forward("decode", nan=True) == [3]
    force()
    assert np.isnan(np.load(file)).tolist() == [[False] * VOCAB, [False, False, True, *[False] * 4]]


def test_half_floats_are_left_as_fp32(rank, monkeypatch):
    runner, _, force, file = rank
    force(text="[5]", file=str(file))
    logits = SimpleNamespace(next_token_logits=torch.tensor([[0.5, 2, 1]], dtype=torch.bfloat16))
    mode = SimpleNamespace(is_extend=lambda: True, is_decode=lambda: False)
    assert runner.sample(logits, SimpleNamespace(forward_mode=mode)).tolist() == [5]
    force()
    kept = np.load(file)
    assert (kept.dtype, kept.tolist()) == (np.float32, [[0.5, 2, 1]])


def test_too_few_positions_are_said(rank):
    runner, batches, force, file = rank
    for passed, kinds in ((0, ()), (2, ("extend", "decode"))):
        force(text=json.dumps(TEXT), file=str(file))
        batches.all(*kinds)
        with pytest.raises(UserError, match=f"^{passed} of 3 positions were decoded$"):
            force()
        assert is_usual(runner)
    assert not file.exists()


def test_requests_at_once_are_said_and_end_no_server(rank):
    runner, batches, force, file = rank
    force(text=json.dumps(TEXT), file=str(file))
    batches.forward("extend")
    assert batches.forward("decode", requests=2) == [1, 1]
    assert batches.all("decode", "decode") == [1, 1]
    with pytest.raises(UserError, match=r"^2 requests at once, where one is forced$"):
        force()
    assert (is_usual(runner), file.exists()) == (True, False)


def test_what_it_did_not_foresee_ends_no_server(rank):
    runner, batches, force, file = rank
    force(text=json.dumps(TEXT), file=str(file))
    vars(batches)["runner"] = runner
    force._keep = lambda *_: 1 / 0
    assert batches.all("extend", "decode") == [1, 1]
    with pytest.raises(UserError, match=r"^ZeroDivisionError: division by zero$"):
        force()


def test_it_ends_once_and_begins_anew_over_one_that_did_not_end(rank):
    runner, batches, force, file = rank
    with pytest.raises(UserError, match=r"^no text is forced$"):
        force()
    for text in ([2, 2], TEXT):
        force(text=json.dumps(text), file=str(file))
    assert batches.all("extend", "decode", "decode") == TEXT
    force()
    with pytest.raises(UserError, match=r"^no text is forced$"):
        force()
    assert is_usual(runner)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tp_size": 4}, "tensor parallelism of 4"),
        ({"pp_size": 2}, "pipeline parallelism of 2"),
        ({"tp_size": 2, "pp_size": 2}, "tensor parallelism of 2 and pipeline parallelism of 2"),
    ],
)
def test_a_server_of_several_ranks_is_refused(tmp_path, sizes, says):
    runner = Runner(**sizes)
    force = Forced(runner)
    with pytest.raises(UserError, match=f"^a text is forced on a server of one rank, and this one has {says}$"):
        force(text=json.dumps(TEXT), file=str(tmp_path / "l.npy"))
    assert (is_usual(runner), Batches(runner).all("extend")) == (True, [1])


def test_a_text_without_tokens_is_refused(rank):
    runner, batches, force, file = rank
    with pytest.raises(UserError, match=r"^a text without tokens cannot be decoded$"):
        force(text="[]", file=str(file))
    assert (is_usual(runner), batches.all("extend")) == (True, [1])


def test_a_sampler_of_the_runners_own_is_put_back(rank):
    """Also over a text that did not end, and where nothing is forced."""
    runner, batches, force, file = rank
    own = runner.sample = lambda output, _: Runner.sample(runner, output, _)
    for text in ([2, 2], TEXT):
        force(text=json.dumps(text), file=str(file))
    assert runner.sample is not own
    assert batches.all("extend", "decode", "decode") == TEXT
    for _ in range(2):
        with suppress(UserError):
            force()
        assert runner.sample is own


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize("token", [3, -1, VOCAB])
def test_a_sampler_that_takes_another_token_than_the_likeliest_is_said(rank, wrong, token):
    """Though the text is decoded all the same; of two that are as likely either is one."""
    runner, batches, force, file = rank
    taken = [1, 1, 1]
    taken[wrong] = token
    runner.sample = lambda output, _: torch.tensor([taken[batches.passed - 1]])
    force(text=json.dumps(TEXT), file=str(file))
    assert batches.all("extend", "decode", "decode") == TEXT
    says = f"^token {wrong} of a text it is given is not the likeliest by its own logits$"
    with pytest.raises(UserError, match=says):
        force()
    assert not file.exists()


def test_of_equal_logits_the_sampler_may_take_either(rank):
    runner, _, force, file = rank
    runner.sample = lambda *_: torch.tensor([2])
    force(text="[5]", file=str(file))
    mode = SimpleNamespace(is_extend=lambda: True, is_decode=lambda: False)
    runner.sample(SimpleNamespace(next_token_logits=torch.tensor([[0.0, 2, 2]])), SimpleNamespace(forward_mode=mode))
    force()
    assert np.load(file).tolist() == [[0, 2, 2]]


def test_a_file_that_cannot_be_is_refused_before_anything_is_forced(rank, tmp_path):
    runner, batches, force, _ = rank
    with pytest.raises(UserError, match="its folder does not exist"):
        force(text=json.dumps(TEXT), file=str(tmp_path / "no" / "logits.npy"))
    assert (is_usual(runner), batches.all("extend")) == (True, [1])


class Engine:
    """One rank of SGLang and its request, as far as a text is forced on it; alters: what else goes wrong."""

    def __init__(self, alters=lambda tokens: tokens):
        self.runner, self.alters, self.asked, self.kinds = Runner(), alters, [], None
        self.rank = Forced(self.runner)

    def generate(self, input_ids, sampling_params, stream):
        self.asked.append((len(input_ids), sampling_params))
        kinds = self.kinds or ["extend", *["decode"] * (sampling_params["max_new_tokens"] - 1)]
        tokens = self.alters(Batches(self.runner).all(*kinds))
        yield {"output_ids": tokens, "meta_info": {"completion_tokens": len(tokens)}}

    def collective_rpc(self, method, **parameters):
        """As SGLang hands it on: flat values alone, and an assertion where the rank raised."""
        assert method == FORCED
        assert all(isinstance(value, bool | int | float | str) for value in parameters.values())
        try:
            self.rank(**parameters)
        except Exception as error:
            raise AssertionError(str(error)) from None


def answer(engine, file, text=TEXT):
    out, line = io.StringIO(), json.dumps({"do": "logits", "isl": 6, "text": text, "file": str(file), "seed": 1})
    serve(worker.ServerSession(engine, list), iter([line]), out)
    return json.loads(out.getvalue())


def test_a_session_forces_a_greedy_request(tmp_path):
    engine = Engine()
    assert answer(engine, tmp_path / "l.npy") == {}
    assert engine.asked == [(6, {"temperature": 0.0, "max_new_tokens": 3, "ignore_eos": True})]
    assert np.load(tmp_path / "l.npy")[:, 0].tolist() == [0, 1, 2]
    assert is_usual(engine.runner)


@pytest.mark.parametrize(
    ("alters", "says"),
    [
        (lambda tokens: [*tokens[:2], 6], "SGLang decoded 6 at token 2 of a text, which is 4."),
        (lambda tokens: tokens[:2], "SGLang gave 2 of 3 tokens."),
    ],
    ids=["others", "fewer"],
)
def test_a_session_that_got_other_tokens_says_so(tmp_path, alters, says):
    engine = Engine(alters)
    assert answer(engine, tmp_path / "l.npy") == {"error": says}
    assert is_usual(engine.runner)


@pytest.mark.parametrize("decoded", [1, 3])
def test_a_request_that_fails_says_why_rather_than_what_its_end_says(tmp_path, decoded):
    def fails(tokens):
        raise MemoryError("no room")

    engine = Engine(fails)
    engine.kinds = ["extend", "decode", "decode"][:decoded]
    assert answer(engine, tmp_path / "l.npy") == {"error": "MemoryError: no room"}
    assert is_usual(engine.runner)
    assert list(tmp_path.iterdir()) == []


def test_other_tokens_leave_no_file(tmp_path):
    answer(Engine(lambda tokens: [0, *tokens[1:]]), tmp_path / "l.npy")
    assert list(tmp_path.iterdir()) == []


def test_what_a_rank_refuses_is_answered(tmp_path):
    says = answer(Engine(), tmp_path / "no" / "l.npy")["error"]
    assert says.startswith("SGLang decoded no given text: ")
    assert says.endswith("its folder does not exist.")
    engine = Engine()
    engine.rank = Forced(Runner())
    assert answer(engine, tmp_path / "l.npy") == {
        "error": "SGLang decoded no given text: 0 of 3 positions were decoded."
    }
