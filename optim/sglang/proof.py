"""The proof that each rank of a server leaves: which passes are on in it, and by what that shows."""

import glob
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict, cast

from ling_prof import plain_file
from ling_prof.errors import UserError
from optim.sglang.inside import Rank
from optim.sglang.registry import NotThere, State, passes
from optim.sglang.selection import Selection

VARIABLE = "LING_OPTIM_PROOF"
SCHEMA = "ling-prof.sglang-proof/1"
REMEDY = "start the server again"
Proven = TypedDict(
    "Proven",
    {"pass": str, "asked": bool | None, "default": bool, "on": bool | None, "exact": bool, "evidence": str},
)
Proven.__doc__ = (
    """A pass in one rank. asked: None where LING_OPTIM does not name it; on: None where it cannot be told."""
)


class Proof(TypedDict):
    """refused: why the start was stopped, a sentence; None where it was not. graphs: launches of each kernel."""

    schema: str
    sglang: str
    rank: str
    passes: list[Proven]
    graphs: dict[str, dict[str, int]]
    refused: str | None


def version() -> str:
    """That of the installed SGLang."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def of(inside: Rank, rank: str, selection: Selection) -> Proof:
    proven: list[Proven] = [
        {
            "pass": name,
            "asked": selection.get(name),
            "default": module.default,
            **_state(module, inside)._asdict(),  # type: ignore[typeddict-item]
            "exact": module.exact,
        }
        for name, module in passes().items()
    ]
    try:
        graphs = {name: dict(kernels) for name, kernels in inside.kernels.items()}
    except NotThere:
        graphs = {}
    return {**made(rank, proven), "graphs": graphs}


def made(rank: str, passes: list[Proven]) -> Proof:
    return {"schema": SCHEMA, "sglang": version(), "rank": rank, "passes": passes, "graphs": {}, "refused": None}


def refusal(rank: str, sentence: str) -> Proof:
    return {**made(rank, []), "refused": sentence}


def _state(module: Any, inside: Rank) -> State:
    """A proof that cannot be had stops no server."""
    try:
        return module.took_effect(inside)
    except NotThere as missing:
        return State(None, str(missing))
    except Exception as fault:
        return State(None, f"cannot be told: {type(fault).__name__}, {' '.join(str(fault).split())}")


def faults(proof: Proof) -> list[str]:
    """What was asked for and is not so, a phrase each."""
    words = {True: "on", False: "off", None: "neither on nor off"}
    return [
        f"{row['pass']} was asked {words[row['asked']]} and is {words[row['on']]}: {row['evidence']}"
        for row in proof["passes"]
        if row["asked"] is not None and row["asked"] != row["on"]
    ]


def save(proof: Proof) -> Path | None:
    """Into the file that LING_OPTIM_PROOF names, the rank before its suffix; None where it names none."""
    if not os.environ.get(VARIABLE):
        return None
    path = path_of(Path(os.environ[VARIABLE]), proof["rank"])
    plain_file.write_text(json.dumps(proof, indent=1) + "\n", path)
    return path


def check() -> None:
    """Raises UserError where a proof is asked for and could not be left: ask before a model is loaded."""
    if place := os.environ.get(VARIABLE):
        try:
            plain_file.check_writable(Path(place))
            for old in files(Path(place)):
                plain_file.check_writable(old)
        except UserError as error:
            raise UserError(f"{VARIABLE}: {error}") from None


def path_of(path: Path, rank: str) -> Path:
    return path.with_name(f"{path.stem}-{rank}{path.suffix}")


def files(path: Path) -> list[Path]:
    """Those of all ranks, for the path that LING_OPTIM_PROOF named."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}-TP-*{path.suffix}"))


def load(path: Path) -> list[Proof]:
    """The proofs of all ranks. Raises UserError where there is none."""
    proofs = [cast(Proof, plain_file.read(one, SCHEMA, Proof, REMEDY)) for one in files(path)]
    if not proofs:
        plugin = "install ling-prof where SGLang runs, and keep ling_prof in SGLANG_PLUGINS if that is set"
        raise UserError(f"{path}: SGLang left no proof, so the plugin was not loaded; {plugin}.")
    return proofs
