"""A text that a rank of SGLang is made to decode, and the logits by which it would have chosen each token of it."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ling_prof import plain_file
from ling_prof.errors import UserError

FORCED = "ling_optim_force"  # a method that a scheduler gets


class Forced:
    """Has a model runner of one request decode a text; the usual sampler runs as well, only its ids are replaced.

    Logits are kept as the forward pass left them, (tokens, vocab) fp32 on its device: row 0 by which the first token is
    chosen, after the prompt. It takes a server of one rank: of several, SGLang tells the errors of the first alone.
    """

    def __init__(self, runner: Any):
        self.runner = runner
        self.file: Path | None = None  # while a text is forced
        self._forget()

    def __call__(self, text: str = "", file: str = "") -> None:
        """Begins with the next prompt, with token ids as JSON (SGLang hands on no lists); without a text it ends.

        The end leaves a .npy file, written whole, and frees the memory. Raises UserError where the file cannot be
        written, for a text without tokens and beside other ranks; at the end where a request was not alone, not all of
        the text was decoded, or the sampler took a token that is not a likeliest one. Nothing is forced any more then.
        """
        if text:
            self._begin(json.loads(text), Path(file))
        else:
            self._end()

    def _forget(self) -> None:
        if self.file is not None:
            vars(self.runner).pop("sample", None)
            vars(self.runner).update(self.own)
        self.file = None
        self.text: list[int] = []
        self.own: dict[str, Any] = {}  # the sampler of the runner itself, where it has one beside its class's
        self.at: int | None = None  # the number of the last token; None before the prompt
        self.rows: Any = None
        self.taken: Any = None  # what the usual sampler took: (tokens) int64 on the same device
        self.fault = ""

    def _begin(self, text: list[int], file: Path) -> None:
        self._forget()
        _check_alone(self.runner)
        if not text:
            raise UserError("a text without tokens cannot be decoded")
        plain_file.check_writable(file)
        self.text, self.file, self.usual = text, file, self.runner.sample
        self.own = {name: value for name, value in vars(self.runner).items() if name == "sample"}
        self.runner.sample = self._sample

    def _sample(self, logits_output: Any, forward_batch: Any) -> Any:
        """In the place of ModelRunner.sample. Raises nothing of its own: that would end the server."""
        at = self._tried(self._next, forward_batch.forward_mode, logits_output.next_token_logits)
        ids = self.usual(logits_output, forward_batch)
        given = None if at is None else self._tried(self._given, at, ids)
        return ids if given is None else given

    def _tried(self, do: Callable[..., Any], *of: Any) -> Any:
        """None where it fails, which is kept, or something has before."""
        try:
            return None if self.fault else do(*of)
        except Exception as fault:
            self.fault = str(fault) if isinstance(fault, UserError) else f"{type(fault).__name__}: {fault}"

    def _next(self, mode: Any, logits: Any) -> int | None:
        """Keeps the logits of the token to give -> its number.

        None before the prompt, and beyond the text: an overlapped scheduler runs ahead.
        """
        if mode.is_extend():
            self.at = 0  # a prompt in chunks comes here once for each: the last one counts
        elif self.at is None or not mode.is_decode():
            return None
        else:
            self.at += 1
        if self.at >= len(self.text):
            return None
        if len(logits) != 1:
            raise UserError(f"{len(logits)} requests at once, where one is forced")
        self._keep(self.at, logits)
        return self.at

    def _keep(self, at: int, logits: Any) -> None:
        if self.rows is None:
            self.rows = logits.float().new_empty(len(self.text), logits.shape[-1])
        self.rows[at].copy_(logits[0].detach())

    def _given(self, at: int, ids: Any) -> Any:
        """The token of the text in the place of what the sampler took, which is kept."""
        if self.taken is None:
            self.taken = ids.new_empty(len(self.text))
        self.taken[at].copy_(ids[0])
        return ids.new_full(ids.shape, self.text[at])

    def _end(self) -> None:
        text, file, fault = self.text, self.file, self.fault
        kept = self.rows, self.taken
        came = 0 if self.at is None else min(self.at + 1, len(text))
        self._forget()
        if file is None:
            raise UserError("no text is forced")
        if fault or came < len(text):
            raise UserError(fault or f"{came} of {len(text)} positions were decoded")
        rows, taken = _read(*kept)
        check_likeliest(rows, taken, "a text it is given")
        held = BytesIO()
        np.save(held, rows)
        plain_file.write_bytes(held.getvalue(), file)


def check_likeliest(rows: Any, tokens: Any, text: str) -> None:
    """Raises UserError where a token is not a likeliest one by its row; rows that are not finite may pass."""
    for at, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if not 0 <= token < len(row) or row[token] < row.max():
            raise UserError(f"token {at} of {text} is not the likeliest by its own logits")


def _check_alone(runner: Any) -> None:
    """Raises UserError where a rank is not all of a server."""
    sizes = {"tensor": runner.ps.tp_size, "pipeline": runner.ps.pp_size}
    if several := [f"{name} parallelism of {size}" for name, size in sizes.items() if size > 1]:
        raise UserError(f"a text is forced on a server of one rank, and this one has {' and '.join(several)}")


def _read(*kept: Any) -> list[Any]:
    """Tensors as arrays."""
    if kept[0].is_cuda:
        import torch

        torch.cuda.synchronize(kept[0].device)  # they were written on the scheduler's own stream
    return [one.cpu().numpy() for one in kept]
