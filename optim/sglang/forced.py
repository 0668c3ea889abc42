"""A text that a rank of SGLang is made to decode, and the logits by which it would have chosen each token of it."""

import json
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
    chosen, after the prompt. writes: whether this rank leaves them in the file; all ranks have the same.
    """

    def __init__(self, runner: Any, writes: bool = True):
        self.runner, self.writes = runner, writes
        self._forget()

    def __call__(self, text: str = "", file: str = "") -> None:
        """Begins with the next prompt, with token ids as JSON (SGLang hands on no lists); without a text it ends.

        The end leaves a .npy file, written whole, and frees the memory. Raises UserError where the file cannot be
        written, and at the end where a request was not alone or not all of the text was decoded; nothing is forced
        any more then.
        """
        if text:
            self._begin(json.loads(text), Path(file))
        else:
            self._end()

    def _forget(self) -> None:
        vars(self.runner).pop("sample", None)
        self.text: list[int] = []
        self.file: Path | None = None
        self.at: int | None = None  # the number of the last token; None before the prompt
        self.rows: Any = None
        self.fault = ""

    def _begin(self, text: list[int], file: Path) -> None:
        self._forget()
        if self.writes:
            plain_file.check_writable(file)
        self.text, self.file, self.usual = text, file, self.runner.sample
        self.runner.sample = self._sample

    def _sample(self, logits_output: Any, forward_batch: Any) -> Any:
        """In the place of ModelRunner.sample. Raises nothing of its own: that would end the server."""
        token = None
        try:
            if not self.fault:
                token = self._next(forward_batch.forward_mode, logits_output.next_token_logits)
        except Exception as fault:
            self.fault = str(fault) if isinstance(fault, UserError) else f"{type(fault).__name__}: {fault}"
        ids = self.usual(logits_output, forward_batch)
        return ids if token is None else ids.new_full(ids.shape, token)

    def _next(self, mode: Any, logits: Any) -> int | None:
        """The token to give; None before the prompt, and beyond the text: an overlapped scheduler runs ahead."""
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
        return self.text[self.at]

    def _keep(self, at: int, logits: Any) -> None:
        if self.writes:
            if self.rows is None:
                self.rows = logits.float().new_empty(len(self.text), logits.shape[-1])
            self.rows[at].copy_(logits[0].detach())

    def _end(self) -> None:
        text, file, rows, fault = self.text, self.file, self.rows, self.fault
        came = 0 if self.at is None else min(self.at + 1, len(text))
        self._forget()
        if file is None:
            raise UserError("no text is forced")
        if fault or came < len(text):
            raise UserError(fault or f"{came} of {len(text)} positions were decoded")
        if self.writes:
            _save(rows, file)


def _save(rows: Any, file: Path) -> None:
    if rows.is_cuda:
        import torch

        torch.cuda.synchronize(rows.device)  # they were written on the scheduler's own stream
    held = BytesIO()
    np.save(held, rows.cpu().numpy())
    plain_file.write_bytes(held.getvalue(), file)
