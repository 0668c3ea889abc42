"""What an ablation of SGLang is asked for, checked before anything is started."""

import shlex
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from ling_prof.errors import UserError
from optim import designs
from optim.designs import Design, Player, label
from optim.options import DESIGNS, PASSES
from optim.sglang import configs, engine
from optim.sglang.inside import PLAIN
from optim.sglang.registry import named, passes

TOKENS, SAMPLED = 256, 32  # greedy ones that are compared, and those of the sampled request between


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An ablation of `passes`, 'a,b+c' or 'engine', each measured over `sample` requests of `isl` prompt and `osl` new
    tokens.

    alive: servers at the same time, 0 for all; starts: how often each is started, with a share of the requests each.
    minutes: nothing more is begun after them. Raises UserError for values that cannot be.
    """

    model: str
    passes: str
    design: str = "ladder"
    isl: int = 8192
    osl: int = 1024
    sample: int = 8
    alive: int = 1
    starts: int = 1
    seed: int = 0
    minutes: float | None = None
    traces: bool = True
    output: Path | None = None

    def __post_init__(self) -> None:
        _need(bool(self.model.strip()), "--model", "a model's name or a checkpoint folder")
        _need(self.design in DESIGNS, "--design", f"one of {', '.join(DESIGNS)}")
        _need(self.isl >= 1, "--isl", "a number of tokens, 1 or more")
        _need(self.osl >= 2, "--osl", "a number of tokens, 2 or more: the first one is not decoded")
        _need(self.starts >= 1, "--starts", "a number, 1 or more")
        per_start, rest = divmod(self.sample, self.starts)
        _need(per_start >= 2 and not rest, "--sample", "a multiple of --starts, 2 requests or more for each")
        _need(self.alive >= 0, "--alive", "a number of servers, 0 for all")
        _need(self.seed >= 0, "--seed", "a whole number, 0 or more")
        _need(self.minutes is None or self.minutes > 0, "--minutes", "a number above 0")
        _need(all(chain(*self.asked)), "--passes", f"{PASSES}: one is missing")
        modules_of(tuple(chain(*self.asked)))
        alone = self.asked == [(engine.NAME,)]
        _need(alone or not self.has_engine, "--passes", f"{engine.NAME} alone: passes switch a server")
        _need(not self.has_engine or not self.speculates, f"--passes {engine.NAME}", "a model that drafts nothing")
        if not self.is_bundled and not Path(self.model).is_dir():
            takes = f"a checkpoint folder, or one of {', '.join(configs.CONFIGS)}"
            raise UserError(f"no model {self.model!r:.80} for SGLang; --model takes {takes}, and downloads nothing.")
        self.design_made  # noqa: B018 - refuses what cannot be a design

    @property
    def is_bundled(self) -> bool:
        return self.model in configs.CONFIGS

    @cached_property
    def asked(self) -> list[Player]:
        """'a,b+c' -> [('a',), ('b', 'c')]: passes joined by a plus are switched together."""
        return [tuple(name.strip() for name in player.split("+")) for player in self.passes.split(",")]

    @property
    def has_engine(self) -> bool:
        """Whether the bundled engine is measured beside the server."""
        return engine.NAME in chain(*self.asked)

    @cached_property
    def blocked(self) -> dict[Player, str]:
        """Players that have nothing to act on here, and why."""
        return {player: PLAIN for player in self.asked if not self.speculates and _is_speculative(player)}

    @cached_property
    def design_made(self) -> Design:
        """Raises UserError where every player is blocked."""
        free = [player for player in self.asked if player not in self.blocked]
        if not free:
            raise UserError(f"--passes {self.passes} has nothing to act on: {PLAIN}.")
        return designs.make(self.design, free, self.seed)

    @property
    def speculates(self) -> bool:
        return configs.drafts(self.model)

    @property
    def pinned(self) -> str | None:
        """The accept length that servers take whatever is drafted; tokens then prove nothing."""
        return configs.environment(self.model).get(configs.PINNED)

    @property
    def drifts(self) -> bool:
        """Whether configurations are measured in groups, one after the other."""
        return 0 < self.alive < len(self.design_made.combinations)

    def selection(self, combination: Player) -> dict[str, bool]:
        """Every pass of a server that is measured: on, or off."""
        switched = (name for name in chain(*self.design_made.players) if name != engine.NAME)
        return {name: name in combination for name in switched}

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.output or Path(f"ablation-sglang-{Path(self.model).absolute().name}")

    @property
    def command(self) -> str:
        """The command line that makes this ablation again."""
        numbers: dict[str, Any] = {"--isl": self.isl, "--osl": self.osl, "--sample": self.sample, "--seed": self.seed}
        more = {"--design": self.design, **numbers, "--alive": self.alive, "--starts": self.starts}
        words = ["ling-prof", "ablate", "--target", "sglang", "--model", self.model, "--passes", self.passes]
        return shlex.join([*words, *(str(word) for pair in more.items() for word in pair)])


def labelled(combination: Player) -> str:
    """The name of a combination in the store and in file names."""
    return label(combination) or "none"


def modules_of(combination: Player) -> dict[str, ModuleType]:
    """Its passes by name, the engine among them. Raises UserError for an unknown one."""
    return named(list(combination), {**passes(), engine.NAME: engine})


def _is_speculative(player: Player) -> bool:
    return any(getattr(module, "speculative", False) for module in modules_of(player).values())


def _need(holds: bool, option: str, what: str) -> None:
    if not holds:
        raise UserError(f"{option} takes {what}.")
