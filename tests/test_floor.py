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
