"""What a SGLang server is asked for, checked before anything heavy is imported."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from ling_prof.errors import UserError
from optim.sglang.client import checked

OURS = ("--model", "--model-path", "--host", "--port")
MOST_TOKENS, MOST_RUNS, MOST_S = 10**7, 10**6, 1e7  # tokens of a request; runs, or steps; seconds
SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """A server: one that runs at `url`, or one started with `launch`, a model's name or folder, and `args`.

    isl: prompt tokens of the requests it gets. Raises UserError for values out of range.
    """

    url: str | None = None
    launch: str | None = None
    args: tuple[str, ...] = ()
    isl: int = 8192

    def __post_init__(self) -> None:
        _need((self.url is None) != (self.launch is None), "sglang", "--url URL or --launch MODEL, one of them")
        _need(self.launch is None or bool(self.launch.strip()), "--launch", "a model's name or folder")
        _need(self.launch is not None or not self.args, "--url", "no arguments of a server, which runs already")
        ours = [arg for arg in self.args if arg.partition("=")[0] in OURS]
        _need(not ours, "--launch", f"arguments of SGLang but for {', '.join(OURS)}, which are set here")
        _need(self.isl >= 1, "--isl", "a number of tokens, 1 or more")
        _most(self.isl, MOST_TOKENS, "--isl")
        if self.url is not None:
            checked(self.url)

    def _words(self, command: str, *options: tuple[str, object]) -> str:
        """A command line; secrets among the server's arguments are struck out."""
        words: list[object] = ["ling-prof", command, "sglang"]
        words += ["--url", self.url] if self.url else ["--launch", self.launch]
        words += [word for option in (("--isl", self.isl), *options) for word in option]
        return shlex.join(map(str, [*words, *(["--", *_public(self.args)] if self.args else [])]))


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ServerOptions):
    """A benchmark: `runs` requests of `osl` new tokens, one after the other. temperature 0 is greedy."""

    osl: int = 1024
    runs: int = 5
    seed: int = 0
    temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _need(self.osl >= 2, "--osl", "a number of tokens, 2 or more: the first one is not decoded")
        _need(self.runs >= 1, "--runs", "a number of runs, 1 or more")
        _most(self.osl, MOST_TOKENS, "--osl")
        _most(self.runs, MOST_RUNS, "--runs")
        _need(self.seed >= 0, "--seed", "a whole number, 0 or more")
        _need(0 <= self.temperature < math.inf, "--temperature", "0 (greedy) or more")

    @property
    def command(self) -> str:
        """The command line that makes this benchmark again."""
        lengths = (("--osl", self.osl), ("--runs", self.runs), ("--seed", self.seed))
        return self._words("bench", *lengths, ("--temperature", self.temperature))


@dataclass(frozen=True, kw_only=True)
class RecordOptions(ServerOptions):
    """A recording of `steps` forward passes into the new folder `output`; timeout: seconds to wait for its files.

    drive: send the request that is recorded (a launched server has no other); layers: record once more with graphs off.
    by_stage: profile decode alone, which is all that servers with SGLANG_PROFILE_V2=1 know.
    """

    output: Path = Path("sglang-profile")
    steps: int = 12
    stacks: bool = True
    shapes: bool = False
    drive: bool = False
    layers: bool = False
    by_stage: bool = False
    timeout: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _need(self.steps >= 2, "--steps", "a number of steps, 2 or more: the last one has no visible end")
        _need(0 < self.timeout < math.inf, "--timeout", "seconds, above 0")
        _most(self.steps, MOST_RUNS, "--steps")
        _most(self.timeout, MOST_S, "--timeout")
        remedy = "a running server cannot switch its graphs off: record one started with --disable-cuda-graph as well"
        if self.layers and self.launch is None:
            raise UserError(f"--layers needs --launch; {remedy}, and give that file with --layers-from.")

    @property
    def drives(self) -> bool:
        return self.drive or self.launch is not None


def _need(holds: bool, option: str, what: str) -> None:
    if not holds:
        raise UserError(f"{option} takes {what}.")


def _most(value: float, most: float, option: str) -> None:
    _need(value <= most, option, f"no more than {most:.0f}")


def _public(args: tuple[str, ...]) -> list[str]:
    shown = [*args]
    for i, arg in enumerate(args):
        name, equals, _ = arg.partition("=")
        if name in SECRETS and equals:
            shown[i] = f"{name}=..."
        elif name in SECRETS and i + 1 < len(args):
            shown[i + 1] = "..."
    return shown
