"""The verdict on each configuration of a SGLang ablation, by what `rounds` kept of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from optim.designs import Player
from optim.distance import NOT_FINITE, first_difference, within
from optim.sglang import engine, proof
from optim.sglang.distances import smallest
from optim.sglang.plan import TOKENS, Plan, labelled
from optim.sglang.proof import Proof
from optim.store import Store

NO_FIGURES = dict.fromkeys(("first_difference", "top1_agreement", "kl_mean", "kl_max", "positions"))
PINNED = "not judged: the accept length is pinned"
UNJUDGED = "rounding is declared"  # where no reason is kept


class Verdict(NamedTuple):
    """ok: whether it may show its speed; said: why, a phrase; figures: of ling_prof.ablation_report.Gate."""

    ok: bool
    said: str
    figures: Mapping[str, Any] = NO_FIGURES


@dataclass
class Judge:
    """Judges combinations of a plan; was_measured: whether one served a request that was timed."""

    plan: Plan
    store: Store
    was_measured: Callable[[Player], bool]

    def verdict(self, one: Player) -> Verdict:
        """Raises UserError where what is kept cannot be what was."""
        if why := self.store.get("void", labelled(one)):
            return Verdict(False, why)
        texts = self.store.get("text", labelled(one))
        if texts is None or not self.was_measured(one):
            return Verdict(False, "it was not measured")
        if faults := [fault for proven in self._proofs(one) for fault in proof.faults(proven)]:
            return Verdict(False, faults[0])
        if len({*map(len, texts)}) > 1:
            raise self.store.damaged("text", labelled(one))
        return Verdict(True, PINNED) if self.plan.pinned else self._judged(one, *texts)

    def _proofs(self, one: Player) -> list[Proof]:
        """Of all ranks. Raises UserError where one says nothing of a pass that is on."""
        proofs = self.store.get("proof", labelled(one))
        if proofs is None or any({*one} - {row["pass"] for row in proven["passes"]} for proven in proofs):
            raise self.store.damaged("proof", labelled(one))
        return proofs

    def _judged(self, one: Player, first: list[int], again: list[int]) -> Verdict:
        """By its tokens before a sampled request, and after."""
        if (at := first_difference(first, again)) is not None:
            return Verdict(False, f"token {at} is {again[at]} after a sampled request, {first[at]} before it")
        if engine.NAME in one:
            equal = f"{len(first)} tokens equal again after a sampled request"
            return Verdict(True, f"another program, with weights of its own: {equal}")
        return self._compared(one, first)

    def _compared(self, one: Player, text: list[int]) -> Verdict:
        """Exact passes must keep the tokens of the smallest combination that rounds alike, which is declared."""
        beside = smallest(self.plan.design_made.combinations, one)
        is_declared = beside == one != ()
        reference = () if is_declared else beside
        if (expected := self.store.get("text", labelled(reference))) is None:
            return Verdict(False, f"its tokens cannot be compared: {labelled(reference)} gave none")
        if is_declared:
            return self._distance(one) or self._unjudged(one, text, expected[0])
        if (at := first_difference(text, expected[0])) is not None:
            return Verdict(False, f"token {at} is {text[at]}, with {labelled(beside)} alone {expected[0][at]}")
        there = self._compared(beside, expected[0]) if beside else self._distance(())
        if there and not there.ok:
            return Verdict(False, there.said if beside == one else f"as with {labelled(beside)} alone: {there.said}")
        return Verdict(True, f"{len(text)} tokens equal, again after a sampled request")

    def _unjudged(self, one: Player, text: list[int], expected: list[int]) -> Verdict:
        """Where logits were not compared: it may show its speed only where nothing says why, as in older stores."""
        at = first_difference(text, expected)
        kept = "all tokens are" if at is None else f"the first {at} tokens are"
        why = self.store.get("unjudged", labelled(one))
        return Verdict(not why, f"not judged: {why or UNJUDGED}; {kept} those without the passes")

    def _distance(self, one: Player) -> Verdict | None:
        """By its logits on the text without passes; None where they were not compared."""
        if (kept := self.store.get("distance", labelled(one))) is None:
            return None
        found = {name: value for name, value in kept.items() if name != "finite"}
        if not kept["finite"]:
            return Verdict(False, NOT_FINITE, {**NO_FIGURES, **found})
        agreement, mean, most = (kept[name] for name in ("top1_agreement", "kl_mean", "kl_max"))
        if None in found.values() or mean > most * (1 + 1e-9) or kept["positions"] > TOKENS:
            raise self.store.damaged("distance", labelled(one))
        ok, said = within(agreement, mean, most, kept["positions"], "the server")
        return Verdict(ok, said, {**NO_FIGURES, **found})
