"""Which measurements may be compared."""

import json
from dataclasses import replace

import pytest

from ling_prof.errors import UserError
from ling_prof.lock import KEYS, Lock, decoding, differences, from_dict, require_alike, show, unknown

LOCK = Lock(
    hardware=("NVIDIA H200",),
    driver="570.86",
    cuda="12.8",
    torch="2.11",
    triton="3.5",
    python="3.11.7",
    model="ling-3.0-tiny",
    weights="random, seed 0",
    dtype="bf16",
    isl=8192,
    osl=1024,
    decoding="greedy",
    target="engine",
    passes=(),
    ling_prof="0.1.0",
)


def test_a_lock_survives_json():
    assert from_dict(json.loads(json.dumps(LOCK.to_dict())), "a.json") == LOCK
    assert tuple(LOCK.to_dict()) == KEYS


def test_a_machine_without_a_gpu_has_a_lock():
    cpu = replace(LOCK, hardware=("Xeon",), driver=None, cuda=None, triton=None)
    assert from_dict(cpu.to_dict(), "a.json") == cpu


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "is no object with the keys hardware, driver"),
        ({k: v for k, v in LOCK.to_dict().items() if k not in ("torch", "isl")}, "lacks torch, isl; measure"),
        ({**LOCK.to_dict(), "tourch": "2"}, "has unknown tourch; measure"),
        ({k: v for k, v in LOCK.to_dict().items() if k != "isl"} | {"ils": 1}, "lacks isl and has unknown ils"),
        ({**LOCK.to_dict(), "isl": "long"}, "$.isl"),
        ({**LOCK.to_dict(), "hardware": "NVIDIA H200"}, "$.hardware"),
    ],
)
def test_a_wrong_lock_is_refused_with_its_file_and_keys(data, words):
    with pytest.raises(UserError) as error:
        from_dict(data, "a.json")
    assert str(error.value).startswith("a.json: its lock ")
    assert words in str(error.value)


def test_what_a_comparison_is_about_may_differ():
    other = replace(LOCK, target="sglang", passes=("graph", "pdl"))
    assert differences(LOCK, other) == []
    assert require_alike(LOCK, other) == []


@pytest.mark.parametrize("key", sorted(set(KEYS) - {"target", "passes", "server_args"}))
def test_every_other_key_must_agree(key):
    changed = {"hardware": ("NVIDIA H100",), "isl": 1, "osl": 1}.get(key, "other")
    other = replace(LOCK, **{key: changed})
    assert differences(LOCK, other) == [(key, getattr(LOCK, key), changed)]
    with pytest.raises(UserError, match=f"A and B differ in {key} "):
        require_alike(LOCK, other)


def test_arguments_are_compared_between_servers_of_one_version():
    server = replace(LOCK, target="sglang", sglang="0.5.19", server_args={"tp_size": 1, "a": 1})
    other = replace(server, server_args={"tp_size": 2, "a": 1, "page_size": 64})
    assert differences(server, other) == [
        ("server argument page_size", None, 64),
        ("server argument tp_size", 1, 2),
    ]
    assert differences(server, replace(other, sglang="0.5.20")) == [("sglang", "0.5.19", "0.5.20")]
    assert differences(LOCK, server) == []  # an engine has none


def test_what_neither_side_records_is_named():
    bare = replace(LOCK, hardware=(), driver=None, torch=None, python=None)
    assert unknown(bare, bare) == ["hardware", "driver", "torch", "python"]
    assert unknown(bare, LOCK) == []
    cpu = replace(LOCK, hardware=("Xeon",), driver=None, cuda=None, triton=None)
    assert unknown(cpu, cpu) == []


def test_a_lock_of_an_earlier_version_is_that_of_single_requests():
    data = {key: value for key, value in LOCK.to_dict().items() if key not in ("load", "sglang", "server_args")}
    assert from_dict(data, "a.json") == LOCK


def test_the_refusal_lists_every_difference_and_force_turns_each_into_a_warning():
    other = replace(LOCK, torch="2.13", isl=1024, hardware=("NVIDIA H200",) * 2)
    with pytest.raises(UserError) as error:
        require_alike(LOCK, other, names=("a.json", "b.json"))
    said = "hardware (NVIDIA H200 / 2 x NVIDIA H200), torch (2.11 / 2.13), isl (8192 / 1024)"
    assert str(error.value) == f"a.json and b.json differ in {said}; compare anyway with --force."
    warnings = require_alike(LOCK, other, force=True)
    assert len(warnings) == 3
    assert "torch differs: 2.11 in A, 2.13 in B" in warnings


def test_values_in_words():
    assert show(None) == show(()) == "none"
    assert show(("H200", "H200", "H100")) == "2 x H200, H100"
    assert (decoding(), decoding(0.8, 1)) == ("greedy", "sampled, temperature 0.8, seed 1")
