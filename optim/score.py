"""What was predicted from the baseline's recording beside what was measured, by the very design of the measurement."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ling_prof
from ling_prof.ablation_report import Ablation
from ling_prof.errors import UserError
from ling_prof.plain_file import check_writable, sha256, write_text
from ling_prof.units import one_line
from ling_prof.view import Options, view_of
from ling_prof.whatif.predict import Predictor, chosen, passes, predictor
from optim import designs
from optim.designs import Player

SCHEMA = "ling-prof.score/1"
REMEDY = "measure again with ling-prof ablate"
BEGIN, END = "<!-- ling-prof score -->", "<!-- end of the table -->"
LEAST_STEP = 0.97  # of the unprofiled step that a profiled one takes at least
OF_GAIN, OF_STEP = 0.15, 0.02  # an error is small below the larger of these shares
US = 1e3  # ns


def score(ablation: Ablation, path: Path, table: Path | None = None) -> dict[str, Any]:
    """Replays the recording of the baseline once for every combination that was measured; gains, low and high in us.

    Gains are of a token, as measured: of a step over the baseline's accept length. Players with a pass that does not
    predict, and those that find nothing in the recording, have no row: the others are predicted without them. Raises
    UserError for an ablation without a time of its baseline or without gains that can be predicted, for a recording
    that cannot be that of its baseline, and for what `predictor` refuses.
    """
    tpot, length = _baseline(ablation)
    players, unpredicted = _players(ablation)
    found = _predictor(ablation, path, table, tpot, length)
    gains = _predicted(found, designs.make(ablation["design"], players, _seed(ablation)), unpredicted, length)
    silent = [one for one in players if one in unpredicted or _finds_nothing(found, one, gains)]
    if silent == players:
        raise _nothing(players)
    room, names = found.room / length, [designs.label(one) for one in silent]
    rows = [_row(row, gains, room, tpot) for row in ablation["attribution"] if row["pass"] in gains.keys() - {*names}]
    return {
        "schema": SCHEMA,
        "trace": str(path),
        "ablation": ablation["command"],
        "date": ablation["date"],
        "accept_length": length,
        "replayed_ms": found.unchanged.step / 1e6,
        "replay_error_pct": found.replay_error,
        "basis": found.basis,
        "rows": rows,
        "unpredicted": names,
        "total": None if names else _total(ablation, gains, room, tpot),
        **_statistics(rows),
    }


def _predictor(ablation: Ablation, path: Path, table: Path | None, tpot: float, length: float) -> Predictor:
    """For the recording of the baseline, calibrated to its measured step."""
    options = Options(unprofiled_tpot=round(1e6 * tpot), accept_length=length)
    found = predictor(view_of(ling_prof.load(path), options), table)
    _check(found, ablation, path)
    return found


def _finds_nothing(found: Predictor, player: Player, gains: dict[str, np.ndarray]) -> bool:
    """Whether it changes nothing here: neither alone nor beside the others."""
    return not gains[designs.label(player)].any() and not found.sites(chosen(player))


def _baseline(ablation: Ablation) -> tuple[float, float]:
    """Its time per token, ms, and accept length."""
    tpot = ablation["baseline"]["tpot_ms"]
    if tpot is None:
        raise UserError(f"the baseline of this ablation has no time; {REMEDY}.")
    return tpot, next(row["accept_length"] for row in ablation["rows"] if not row["passes"]) or 1.0


def _players(ablation: Ablation) -> tuple[list[Player], list[Player]]:
    """Those with a gain, and those of them that cannot be predicted."""
    there = passes()
    found = [tuple(row["pass"].split("+")) for row in ablation["attribution"] if row["gain_us"] is not None]
    unpredicted = [player for player in found if not there.keys() >= {*player}]
    if not found:
        raise UserError(f"this ablation holds no gain to score; {REMEDY}.")
    if unpredicted == found:
        raise _nothing(found)
    return found, unpredicted


def _nothing(players: list[Player]) -> UserError:
    names = ", ".join(map(designs.label, players))
    return UserError(
        f"{names} cannot be predicted here; give an ablation of passes that ling-prof whatif --list shows."
    )


def _check(found: Predictor, ablation: Ablation, path: Path) -> None:
    """Raises UserError for a recording that cannot be that of the ablation's baseline."""
    gpus, said = ablation["lock"]["hardware"], ablation["ladder"][0].get("trace_sha256") if ablation["ladder"] else None
    if said not in (None, sha256(path)):
        fault = f"the report names {ablation['ladder'][0]['trace']} with other bytes"
    elif found.step is None:
        fault = "no step is found in it"
    elif found.graph.gpu not in gpus:
        fault = f"it was made on {found.graph.gpu or 'a GPU it does not name'}, the ablation on {', '.join(gpus)}"
    elif found.recorded < LEAST_STEP * found.step:
        took, least = found.recorded / 1e6, found.step / 1e6
        fault = f"its step takes {took:.3f} ms, less than the {least:.3f} ms without a profiler"
    else:
        return
    raise UserError(f"{path} is no recording of the ablation's baseline: {fault}; record it with ling-prof ablate.")


def _seed(ablation: Ablation) -> int:
    """Of the permutations that were drawn: the one in its command."""
    found = re.search(r"--seed (\d+)", ablation["command"])
    return int(found[1]) if found else 0


def _predicted(
    found: Predictor, design: designs.Design, unpredicted: list[Player], length: float
) -> dict[str, np.ndarray]:
    """Player -> its predicted gain on each of the predictor's bases, us of a token; '' -> that of all together."""
    left_out = {name for player in unpredicted for name in player}
    edits = [chosen(name for name in one if name not in left_out) for one in design.combinations]
    steps = np.array([found.steps(those) for those in edits]) / length  # (combinations, bases) ns
    said = [designs.estimate(design, column[None], resamples=1)["attribution"] for column in steps.T]
    gains = {row["pass"]: np.array([base[i]["gain_us"] for base in said]) for i, row in enumerate(said[0])}
    known = {name: gain for name, gain in gains.items() if left_out.isdisjoint(name.split("+"))}
    return {**known, "": (steps[0] - steps[-1]) / US}


def _row(measured: Any, gains: dict[str, np.ndarray], room: float, step: float) -> dict[str, Any]:
    return {"pass": measured["pass"], "method": measured["method"]} | _beside(
        measured["gain_us"], gains[measured["pass"]], room, step
    )


def _beside(gain: float, predicted: np.ndarray, room: float, step: float) -> dict[str, Any]:
    """measured and predicted gain, its low and high, the error, us; small: as OF_GAIN and OF_STEP say."""
    low, high = float(predicted.min() - room / US), float(predicted.max() + room / US)
    error = float(predicted[0]) - gain
    return {
        "measured_us": gain,
        "predicted_us": float(predicted[0]),
        "predicted_low": low,
        "predicted_high": high,
        "error_us": error,
        "inside": low <= gain <= high,
        "small": abs(error) <= max(OF_GAIN * abs(gain), OF_STEP * step * US),
    }


def _total(ablation: Ablation, gains: dict[str, np.ndarray], room: float, step: float) -> dict[str, Any] | None:
    full = ablation["all_on"]["tpot_ms"]
    return None if full is None else _beside((step - full) * US, gains[""], room, step)


def _statistics(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors, gains = ([abs(row[key]) for row in rows] for key in ("error_us", "measured_us"))
    return {
        "zero_error_us": float(np.median(gains)),
        "median_band_us": float(np.median([row["predicted_high"] - row["predicted_low"] for row in rows])),
        "median_error_us": float(np.median(errors)),
        "median_error_pct": float(
            np.median([100 * e / abs(r["measured_us"]) for e, r in zip(errors, rows, strict=True) if r["measured_us"]])
        ),
        "small": sum(row["small"] for row in rows),
        "inside": sum(row["inside"] for row in rows),
    }


def filled(ablation: Ablation, scored: dict[str, Any]) -> Ablation:
    """The ablation with its predicted_* filled in, None for what has no row."""
    by_pass = {row["pass"]: row for row in scored["rows"]}
    keys = ("predicted_us", "predicted_low", "predicted_high")
    attribution = [
        {**row, **{key: by_pass.get(row["pass"], {}).get(key) for key in keys}} for row in ablation["attribution"]
    ]
    return {**ablation, "attribution": attribution}  # type: ignore[typeddict-item]


def check_page(page: Path) -> None:
    """Raises UserError for a page that `renew` could not renew."""
    check_writable(page)
    _parts(page)


def renew(page: Path, scored: dict[str, Any]) -> None:
    """Puts the table between the two marks of a Markdown page. Raises UserError without them."""
    before, after = _parts(page)
    shown = table(scored).replace("<!--", "&lt;!--")  # a command may hold a mark
    write_text(f"{before}{BEGIN}\n\n{shown}\n{END}{after}", page)


def _parts(page: Path) -> tuple[str, str]:
    try:
        text = page.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{page} cannot be read ({error}); give a Markdown page.") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{page}: no line {BEGIN} followed by {END}; put both where the table belongs.")
    return before, after


def shown_rows(scored: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows, and one of all passes together where that was measured."""
    total = scored["total"]
    return [*scored["rows"], *([{"pass": "all on", "method": "", **total}] if total else [])]


def table(scored: dict[str, Any]) -> str:
    """The rows and statistics as Markdown."""
    lines = [
        "| pass | by | measured, us | predicted, us | band, us | error, us | inside |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for row in shown_rows(scored):
        band = f"{row['predicted_low']:.1f} to {row['predicted_high']:.1f}"
        figures = f"{row['measured_us']:.1f} | {row['predicted_us']:.1f} | {band} | {row['error_us']:+.1f}"
        lines.append(
            f"| {row['pass'].replace('+', ' + ')} | {row['method']} | {figures} | {'yes' if row['inside'] else 'no'} |"
        )
    return "\n".join([*lines, "", *sentences(scored)]) + "\n"


def sentences(scored: dict[str, Any]) -> list[str]:
    """What the errors come to, and where the figures come from."""
    count = len(scored["rows"])
    return [
        f"Median error {scored['median_error_us']:.1f} us, {scored['median_error_pct']:.0f} % of the gain; "
        f"{scored['small']} of {count} within {OF_GAIN:.0%} of the gain or {OF_STEP:.0%} of the step; "
        f"{scored['inside']} of {count} inside the band, at the median {scored['median_band_us']:.0f} us wide. "
        f"To predict no gain at all would be off by {scored['zero_error_us']:.1f} us at the median.",
        *_apart(scored),
        f"Measured {scored['date'][:10]} by `{one_line(scored['ablation'])}`. {scored['basis']}",
    ]


def _apart(scored: dict[str, Any]) -> Iterator[str]:
    """What sets an ablation apart from one of all predicted passes, a token a step."""
    if scored["accept_length"] != 1:
        yield f"Gains are of a token: a step makes {scored['accept_length']:.3f}."
    if scored["unpredicted"]:
        yield f"{', '.join(scored['unpredicted'])} cannot be predicted: the others are predicted without."
