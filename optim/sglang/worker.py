"""One SGLang configuration as a program: `python -m optim.sglang.worker SPEC` serves protocol.py's commands.

SPEC is JSON: {"model": folder, "arguments": {...}}; passes, proof and weights come by the environment (plugin.py).
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError
from ling_prof.server_info import accept_length
from optim.sglang import machine
from optim.sglang.forced import FORCED
from optim.sglang.protocol import prompt, quiet, say, serve
from optim.sglang.record import is_whole

PACKAGES = ("sglang", "sglang-kernel", "flashinfer-python")
ARGUMENTS: dict[str, Any] = {  # of every configuration: one request at a time, and a quick start
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "disable_radix_cache": True,  # the same prompt is computed each time
    "max_running_requests": 4,
    "max_total_tokens": 32768,
    "cuda_graph_bs_decode": [1],
    "disable_prefill_cuda_graph": True,
    "disable_flashinfer_autotune": True,
    "sleep_on_idle": True,  # else each server that waits for its turn keeps a core busy, which the host of others lacks
    "random_seed": 0,
    "log_level": "warning",
}


class ServerSession:
    """An engine of SGLang, and the commands it answers; each takes and gives JSON data."""

    def __init__(self, engine: Any, again: Callable[[], None]):
        self.engine, self.again = engine, again

    def generate(self, isl: int, osl: int, seed: int = 0, temperature: float = 0.0) -> dict[str, Any]:
        """One request: tokens; ttft_ms; ends_ns, since the request, of each piece that came; sizes, its tokens."""
        sampling = {"temperature": temperature, "max_new_tokens": osl, "ignore_eos": True}
        began, tokens, meta = time.perf_counter_ns(), [], {}
        ends: list[int] = []
        sizes: list[int] = []
        for piece in self.engine.generate(input_ids=prompt(isl, seed), sampling_params=sampling, stream=True):
            ends.append(time.perf_counter_ns() - began)
            sizes.append(piece["meta_info"]["completion_tokens"] - sum(sizes))
            tokens, meta = list(piece["output_ids"]), piece["meta_info"]
        if len(tokens) != osl:
            raise UserError(f"SGLang gave {len(tokens)} of {osl} tokens.")
        times = {"ttft_ms": ends[0] / 1e6, "ends_ns": ends, "sizes": sizes}
        return {"tokens": tokens, **times, "accept_length": accept_length(osl, meta) or 1.0}

    def logits(self, isl: int, text: list[int], file: str, seed: int = 0) -> dict[str, Any]:
        """Has a request decode `text` -> `file`, .npy (len(text), vocab) fp32: the logits each token was chosen by.

        Raises UserError, and leaves no file, where SGLang decodes something else.
        """
        self._force(text=json.dumps(text), file=file)
        try:
            tokens = self.generate(isl, len(text), seed)["tokens"]
        except Exception:
            with suppress(Exception):  # the end fails as well, which says less
                self._force()
            Path(file).unlink(missing_ok=True)
            raise
        self._force()
        if tokens != text:
            Path(file).unlink(missing_ok=True)
            at = next(i for i, (given, came) in enumerate(zip(text, tokens, strict=True)) if given != came)
            raise UserError(f"SGLang decoded {tokens[at]} at token {at} of a text, which is {text[at]}.")
        return {}

    def _force(self, **how: str) -> None:
        """Asks every rank (optim.sglang.forced). Raises UserError where one refuses."""
        try:
            self.engine.collective_rpc(FORCED, **how)
        except AssertionError as fault:  # which is how SGLang says it
            raise UserError(f"SGLang decoded no given text: {str(fault).rstrip('.')}.") from None

    def trace(self, folder: str, isl: int, steps: int, seed: int = 0) -> dict[str, Any]:
        """Records `steps` decode steps of a request into `folder` -> the file."""
        before = {*Path(folder).glob("*.json.gz")}
        stream = self.engine.generate(
            input_ids=prompt(isl, seed),
            sampling_params={"temperature": 0.0, "max_new_tokens": 16 * steps, "ignore_eos": True},
            stream=True,
        )
        next(stream)  # the prompt is done
        how = {"activities": ["CPU", "GPU"], "with_stack": True, "record_shapes": False}
        self.engine.start_profile(output_dir=folder, num_steps=steps, **how)
        for _ in stream:
            pass
        return {"file": str(_awaited(Path(folder), before))}

    def proof(self) -> dict[str, Any]:
        """Has every rank leave its proof anew."""
        self.again()
        return {}

    def facts(self) -> dict[str, Any]:
        """What runs: versions, GPU, clocks in MHz, the server's arguments."""
        record = self.engine.server_args
        server = record.resolved_dict() if hasattr(record, "resolved_dict") else vars(record)
        server = {key: value for key, value in server.items() if _is_plain(value)}
        versions = {name: _version(name) for name in PACKAGES}
        here = {"hardware": None, "driver": None, **machine.gpus({}), **machine.packages()}
        return {**here, "clocks": machine.clocks(), "versions": versions, "server": server}


def _awaited(folder: Path, before: set[Path], seconds: float = 120) -> Path:
    """The file that a profile leaves, once it is whole."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if whole := [path for path in {*folder.glob("*.json.gz")} - before if is_whole(path)]:
            return whole[0]
        time.sleep(1)
    raise UserError(f"{folder}: SGLang left no recording within {seconds:.0f} s.")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) or (isinstance(value, list) and all(map(_is_plain, value)))


def main(spec: str) -> None:
    out, asked = quiet(), json.loads(spec)
    import sglang

    from optim.sglang.plugin import CALLED

    engine = sglang.Engine(model_path=asked["model"], **{**ARGUMENTS, **asked["arguments"]})
    session = ServerSession(engine, lambda: engine.collective_rpc(CALLED))
    say(out, session.facts())
    serve(session, iter(sys.stdin.readline, ""), out)
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
