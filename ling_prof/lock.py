"""The reproduction lock: what two measurements must share before their times may be compared."""

from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import groupby
from typing import Any

from ling_prof.errors import UserError

FREE = ("target", "passes")  # what a comparison is about: they may differ
ALONE = "one request at a time"


@dataclass(frozen=True)
class Lock:
    """How a measurement was made; None (hardware: none) where that is not recorded, or the machine has no such thing.

    hardware: names of the GPUs (or of the CPU) that worked, one entry each. weights: 'random, seed 0', or the
    fingerprint of a checkpoint. isl, osl: tokens in and out. decoding: as `decoding` writes it. target: what decoded,
    'engine' or 'sglang'; passes: the optimizations that were on. load: the requests it decoded at once. sglang: its
    version; server_args: name -> value of those that bear on speed, without those that are off. Clocks vary from run to
    run: they are recorded beside the lock and never compared.
    """

    hardware: tuple[str, ...]
    driver: str | None
    cuda: str | None
    torch: str | None
    triton: str | None
    python: str | None
    model: str | None
    weights: str | None
    dtype: str | None
    isl: int | None
    osl: int | None
    decoding: str | None
    target: str
    passes: tuple[str, ...]
    ling_prof: str | None
    load: str = ALONE
    sglang: str | None = None
    server_args: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; `from_dict` reads it back."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


KEYS = tuple(key.name for key in fields(Lock))
NEEDED = tuple(key.name for key in fields(Lock) if (key.default, key.default_factory) == (MISSING, MISSING))


def decoding(temperature: float = 0.0, seed: int = 0) -> str:
    """'greedy', or 'sampled, temperature 0.8, seed 1'."""
    return f"sampled, temperature {temperature}, seed {seed}" if temperature else "greedy"


def from_dict(data: Any, source: object) -> Lock:
    """The lock that `data` holds. Raises UserError, naming `source`, for missing or unknown keys and wrong types."""
    import msgspec

    if not isinstance(data, dict):
        raise UserError(f"{source}: its lock is no object with the keys {', '.join(NEEDED)}.")
    faults = {
        "lacks": [key for key in NEEDED if key not in data],
        "has unknown": [key for key in data if key not in KEYS],
    }
    if said := [f"{fault} {', '.join(keys)}" for fault, keys in faults.items() if keys]:
        raise UserError(f"{source}: its lock {' and '.join(said)}; measure again with this version of ling-prof.")
    try:
        return msgspec.convert(data, Lock)
    except msgspec.ValidationError as error:
        raise UserError(f"{source}: its lock cannot be read ({error}); measure again.") from None


def differences(a: Lock, b: Lock) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) of every key but `FREE` in which they differ.

    What is a server's own is compared only between servers of one kind, and arguments only within a version of it.
    """
    apart = (*FREE, "sglang", "server_args")
    pairs = [(key, getattr(a, key), getattr(b, key)) for key in KEYS if key not in apart]
    if a.target == b.target:
        pairs.append(("sglang", a.sglang, b.sglang))
    if a.target == b.target and a.sglang == b.sglang:
        names = sorted({*a.server_args, *b.server_args})
        pairs += [(f"server argument {name}", a.server_args.get(name), b.server_args.get(name)) for name in names]
    return [(key, x, y) for key, x, y in pairs if x != y]


def unknown(a: Lock, b: Lock) -> list[str]:
    """The keys that neither records: nobody can say whether they agree."""
    machine = ("driver", "cuda", "triton") if not a.hardware else ()  # a CPU, which is named, has none
    keys = ("hardware", *machine, "torch", "python", "model", "weights", "dtype", "isl", "osl", "decoding")
    return [key for key in keys if getattr(a, key) in (None, ()) and getattr(b, key) in (None, ())]


def require_alike(a: Lock, b: Lock, force: bool = False, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Raises UserError, one sentence, where the locks differ; with `force` gives one warning a difference instead."""
    return judge(differences(a, b), force, names)


def judge(found: list[tuple[str, Any, Any]], force: bool, names: tuple[str, str]) -> list[str]:
    """As `require_alike`, for differences (key, value in a, value in b) that are known."""
    shown = [(key, show(x), show(y)) for key, x, y in found]
    if shown and not force:
        listed = ", ".join(f"{key} ({x} / {y})" for key, x, y in shown)
        raise UserError(f"{names[0]} and {names[1]} differ in {listed}; compare anyway with --force.")
    return [f"{key} differs: {x} in {names[0]}, {y} in {names[1]}" for key, x, y in shown]


def show(value: Any) -> str:
    """A value of a lock in words: '2 x NVIDIA H200', 'none', '2.11'."""
    if not isinstance(value, tuple):
        return "none" if value is None else str(value)
    counted = [(name, len(list(same))) for name, same in groupby(value)]
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counted) or "none"
