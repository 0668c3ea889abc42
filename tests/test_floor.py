"""The byte count: figures of the reference, and the formula that is shown gives the number that is used."""

import pytest

pytest.importorskip("torch")

from optim.engine.config import MODELS, NANO, TINY
from optim.engine.floor import parts, total

# MB a token at 1k context, derived independently from the published dimensions (project notes, 2026-11).
TINY_MB = {"experts": 868, "KDA weights": 681, "head": 483, "shared experts": 109, "KDA state, read and written": 38}


def test_tiny_is_what_the_reference_counts():
    found = {part.part: round(part.bytes / 1e6) for part in parts(TINY, 1024)}
    assert {name: found[name] for name in TINY_MB} == TINY_MB
    assert found["routers"] == 9
    assert found["MLA weights"] + found["MLA latents"] == 95


@pytest.mark.parametrize(
    ("model", "gigabytes"), [("ling-3.0-tiny", 2.325), ("ling-3.0-flash", 10.36), ("ling-3.0-flash-tp4-rank", 2.69)]
)
def test_totals(model, gigabytes):
    assert total(parts(MODELS[model], 1024)) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_every_formula_gives_its_bytes(model):
    for part in parts(MODELS[model], 777):
        assert eval(part.formula.replace(" B", "").replace(" x ", "*")) == part.bytes, part


def test_context_and_width_count_where_they_should():
    at = {context: {p.part: p.bytes for p in parts(NANO, context)} for context in (100, 200)}
    changed = {name for name in at[100] if at[100][name] != at[200][name]}
    assert changed == {"MLA latents"}
    assert at[200]["MLA latents"] == 2 * at[100]["MLA latents"]
    wide = {p.part: p.bytes for p in parts(NANO, 100, width=4)}
    assert wide["KDA state, read and written"] == at[100]["KDA state, read and written"]
    assert wide["experts"] == 2 * at[100]["experts"]


def test_nano_by_hand():
    """bf16: layers 0 and 2 are KDA, 1 and 3 MLA, 1 to 3 MoE; 2 heads of 32, hidden 64, context 10."""
    found = {part.part: part.bytes for part in parts(NANO, 10)}
    assert found["experts"] == 3 * 4 * (3 * 64 * 32) * 2
    assert found["shared experts"] == 3 * (3 * 64 * 32) * 2
    assert found["dense MLP"] == 3 * 64 * 96 * 2
    assert found["routers"] == 3 * 16 * (64 * 2 + 4)
    assert found["KDA weights"] == 2 * ((192 + 3 * 64 + 2) * 64 * 2 + 192 * 4 * 2 + (2 + 64) * 4 + 32 * 2)
    assert found["MLA weights"] == 2 * (32 * 64 + 32 + 64 * 32 + 48 * 64 + 32 + 64 * 32 + 2 * 64 + 64 * 32) * 2
    assert found["KDA state, read and written"] == 2 * 2 * 2 * 32 * 32 * 4
    assert found["KDA convolution windows, read and written"] == 2 * 2 * 192 * 3 * 2
    assert found["MLA latents"] == 2 * 10 * 48 * 2
    assert found["head"] == 512 * 64 * 2
    assert found["norms"] == 9 * 64 * 2
    assert found["one row of the embedding"] == 64 * 2
