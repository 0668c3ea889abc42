"""What programs that are measured, workers, and who asks them speak: a line of JSON a command, a line an answer.

A line in is {"do": one of `COMMANDS`, ...}, the line out its answer or {"error": a sentence}; the first line out says
what runs. What else is printed goes to stderr.
"""

import json
import os
import random
from collections.abc import Iterator
from typing import IO, Any

from ling_prof.errors import UserError

COMMANDS = ("generate", "logits", "trace", "proof", "facts")
QUIT = "quit"
VOCABULARY = 1000, 100_000  # ids of a prompt


def prompt(isl: int, seed: int) -> list[int]:
    """Random token ids."""
    dice = random.Random(seed)
    return [dice.randrange(*VOCABULARY) for _ in range(isl)]


def serve(session: Any, lines: Iterator[str], out: IO[str]) -> None:
    """Answers each line until {"do": "quit"}, or the end of the lines."""
    for line in lines:
        asked = json.loads(line)
        if (name := asked.pop("do")) == QUIT:
            return
        try:
            if name not in COMMANDS:
                raise UserError(f"no command {name}; there are {', '.join(COMMANDS)}.")
            say(out, getattr(session, name)(**asked))
        except UserError as error:
            say(out, {"error": str(error)})
        except Exception as fault:
            say(out, {"error": f"{type(fault).__name__}: {' '.join(str(fault).split())}"})


def quiet() -> IO[str]:
    """Standard output for answers alone: what else is written to it, by any process, goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def say(out: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=out, flush=True)
