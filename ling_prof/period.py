"""The period of a sequence: where a decode loop begins to repeat, and how long one round is."""

import numpy as np

NEIGHBOURS = 8  # equal tokens on both sides that let one differing token pass as the same round


def find_period(tokens: np.ndarray) -> tuple[int, int, int] | None:
    """The repetition that covers most of `tokens`: (first index, period, whole periods), or None below two periods.

    Candidates are the commonest distances between equal tokens; each is tested by comparing the sequence with
    itself, shifted. Of those that cover about as much, the shortest wins.
    """
    best: list[tuple[int, int, int]] = []
    for period in _distances(tokens):
        same = np.r_[False, repeats(tokens, period), False]
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        begins, lengths = edges[::2], edges[1::2] - edges[::2]
        if len(lengths) and lengths.max() >= period:
            i = int(lengths.argmax())
            best.append((int(lengths[i]) + period, period, int(begins[i])))
    if not best:
        return None
    most = max(best)[0]
    cover, period, begin = min((b for b in best if b[0] >= 0.9 * most), key=lambda b: b[1])
    return begin, period, cover // period


def repeats(tokens: np.ndarray, period: int) -> np.ndarray:
    """Where tokens[i] repeats at i + period; a lone differing op amid equal ones passes."""
    same = tokens[:-period] == tokens[period:]
    differs = np.r_[-NEIGHBOURS, np.flatnonzero(~same), len(same) + NEIGHBOURS]
    lone = (np.diff(differs)[:-1] > NEIGHBOURS) & (np.diff(differs)[1:] > NEIGHBOURS)
    same[differs[1:-1][lone]] = True
    return same


def _distances(tokens: np.ndarray, most: int = 48) -> list[int]:
    order = np.argsort(tokens, kind="stable")
    gaps = np.diff(order)[np.diff(tokens[order]) == 0]
    owner = tokens[order][1:][np.diff(tokens[order]) == 0]
    pairs, counts = np.unique(np.stack([owner, gaps]), axis=1, return_counts=True)
    if not counts.size:
        return []
    # Each token votes once for its commonest distance and once for its largest repeated one.
    votes: dict[int, int] = {}
    for token in np.unique(owner):
        mine = pairs[0] == token
        repeated = pairs[1][mine & (counts > 1)]
        for distance in {int(pairs[1][mine][counts[mine].argmax()]), *map(int, repeated[-1:])}:
            votes[distance] = votes.get(distance, 0) + 1
    ranked = sorted(votes, key=lambda d: (-votes[d], d))
    return [d for d in ranked[:most] if d < len(tokens)]
