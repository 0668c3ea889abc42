"""What a SGLang server says of itself (/server_info) and of a request, and its arguments as a lock keeps them."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ling_prof import lock
from ling_prof.errors import UserError
from ling_prof.lock import Lock

# No bearing on speed, another value at every start, or not for other eyes: places, names, keys, logs, live state.
LEFT_OUT = re.compile(
    r"^(_|ssl_|log_|crash_|otlp_|tokenizer_(path|metrics)|extra_metric|internal_states|kv_events|startup_time|status"
    r"|version|max_total_num_tokens|max_req_input_len|random_seed|weight_version|watchdog|soft_watchdog|device$"
    r"|download_dir|model_config|sidecar)"
    r"|(^|_)(host|port|ports|url|urls|ip|path|paths|folder|dir|file|filename|address?|addr|endpoints?|socket|key|token"
    r"|password|name|names|handler|buckets|template|parser|labels|prefixes|domains|loggers)$"
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
COUNTS = (
    *("tp_size", "pp_size", "dp_size", "nnodes", "base_gpu_id"),
    *("stream_interval", "speculative_num_draft_tokens", "speculative_num_steps"),
)
MOST = 10**6  # of a count
DEEPEST = 100  # lists and objects in each other
Info = Mapping[str, Any]


def check(info: Info, source: str) -> None:
    """Raises UserError, naming `source`, for a count that is none, and for what a lock could not keep in a file."""
    for name, value in info.items():
        if name in COUNTS and value is not None and not (type(value) is int and 0 <= value <= MOST):
            raise _unfit(source, name, value, f"no whole number up to {MOST}")
        try:
            kept = lock_of({"dtype": "", name: value})
            _check_depth(kept.server_args)
            text = json.dumps(kept.to_dict(), allow_nan=False, ensure_ascii=False).encode()
            lock.from_dict(msgspec.json.decode(text), source)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            raise _unfit(source, name, value, "nothing that a file can keep") from None


def _check_depth(value: Any, left: int = DEEPEST) -> None:
    """Raises RecursionError for what is nested deeper, long before anything else does."""
    if not left:
        raise RecursionError
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(part, left - 1)


def _unfit(source: str, name: str, value: Any, what: str) -> UserError:
    try:
        shown = ascii(value)
    except RecursionError:
        shown = f"a {type(value).__name__}, deep in itself"
    said = f"its server_info says {ascii(name)[1:-1][:60]} {shown[:60]}, which is {what}"
    return UserError(f"{source}: {said}; give the URL of a SGLang server, or start it anew.")


def lock_of(info: Info, **known: Any) -> Lock:
    """The lock of what a server decoded: model and arguments from `info`, the rest from `known`; what neither has is
    None. `info` may be empty."""
    nothing = dict.fromkeys(("driver", "cuda", "torch", "triton", "python", "isl", "osl", "decoding"))
    said = {
        "hardware": (),
        "model": model_of(info),
        "weights": _weights(info),
        "dtype": _dtype(info),
        "target": "sglang",
        "passes": (),
        "ling_prof": None,
        "sglang": info.get("version"),
        "server_args": arguments(info),
    }
    return Lock(**{**nothing, **said, **known})


def model_of(info: Info) -> str | None:
    """'org/name' as it is; of a folder its name only."""
    path = info.get("model_path")
    if not isinstance(path, str):
        return None
    return path.rstrip("/").rpartition("/")[2] if path.startswith(("/", ".", "~")) else path


def arguments(info: Info) -> dict[str, Any]:
    """name -> value of the arguments that are on and may bear on speed; model, dtype and weights stand elsewhere."""
    apart = ("model_path", "dtype", "quantization", "load_format")
    return {
        name: value for name, value in sorted(info.items()) if value and name not in apart and not LEFT_OUT.search(name)
    }


def world(info: Info) -> int:
    """GPUs, and so profiler files, of all ranks."""
    tp, pp, dp = (int(info.get(f"{kind}_size") or 1) for kind in ("tp", "pp", "dp"))
    return tp * pp * (1 if info.get("enable_dp_attention") else dp)


def draft_tokens(info: Info) -> int:
    """The most tokens that a step may commit; 1 without speculative decoding."""
    return max(1, int(info.get("speculative_num_draft_tokens") or 1)) if speculates(info) else 1


def speculates(info: Info) -> bool:
    return bool(info.get("speculative_algorithm"))


def accept_length(tokens: int, meta: Info) -> float | None:
    """Mean tokens of a verify step, of a request that made `tokens`, by its meta_info; None where that tells no steps.

    SGLang's own spec_accept_length counts the first token, which is the prefill's.
    """
    verified = meta.get("spec_verify_ct")
    return (tokens - 1) / verified if verified else None


def decoding_of(info: Info, temperature: float, pinned: str | None = None) -> str:
    """'greedy', or 'sampled, temperature 0.8'; then the algorithm, steps and draft tokens of speculative decoding.

    pinned: what the server takes as accept length whatever is drafted.
    """
    words = [f"sampled, temperature {temperature:g}" if temperature else "greedy"]
    if speculates(info):
        words.append(str(info["speculative_algorithm"]))
        parts = (("steps", "speculative_num_steps"), ("draft tokens", "speculative_num_draft_tokens"))
        words += [f"{info[key]} {what}" for what, key in parts if info.get(key)]
        words += [f"accept length pinned to {pinned}"] if pinned else []
    return ", ".join(words)


def _weights(info: Info) -> str | None:
    kind = info.get("load_format")
    return None if kind is None else "random, made by the server" if kind == "dummy" else "checkpoint"


def _dtype(info: Info) -> str | None:
    said = info.get("dtype")
    if said is None:
        return None
    quantized = [str(info["quantization"])] if info.get("quantization") else []
    return ", ".join([DTYPES.get(str(said), str(said)), *quantized])
