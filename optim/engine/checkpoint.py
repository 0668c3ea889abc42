"""Checkpoints of BailingMoeV3 in the Hugging Face layout: safetensors and config.json, checked, read and written."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ling_prof.errors import UserError
from optim.engine.config import Config
from optim.engine.hf_config import mtp_layers, problems, read_config, read_json, to_json, told
from optim.engine.weights import Spec, build, specs

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def load(folder: Path, dtype: torch.dtype, device: str, allow_unknown: bool = False) -> tuple[Config, SimpleNamespace]:
    """A checkpoint's config and its weights, shaped as `weights.build` says; MTP layers are left out.

    Raises UserError as `read_config` does, and for files or tensors that are missing, unexpected, broken or quantized.
    """
    config = read_config(folder, allow_unknown)
    stored = _open(folder, range(config.layers, config.layers + mtp_layers(folder)))
    expected = {name: spec for _, prefix, _, spec in specs(config) for name in spec.names(prefix)}
    _check_names(folder, expected.keys() - stored, "missing", "download the checkpoint again")
    _check_names(folder, stored.keys() - expected, "unexpected", "the engine would ignore them, so mend config.json")
    for name, spec in expected.items():
        _check(name, spec, *stored[name])
    return config, build(config, lambda name, _: stored[name][1].get_tensor(name), dtype, device)


def save(config: Config, weights: SimpleNamespace, folder: Path, shard_bytes: int = 4 << 30) -> None:
    """Writes a checkpoint for `load` and others into a new folder; config.json comes last and marks a whole one.

    Raises UserError for one rank's shard, for a config that `read_config` would refuse, and where writing fails.
    """
    if config.ranks > 1:
        raise UserError(f"{config.name} is one of {config.ranks} ranks and no checkpoint; save the whole model.")
    fields = to_json(config) | {"dtype": str(weights.embed.dtype).removeprefix("torch.")}
    for problem in problems(fields):
        raise UserError(f"{config.name} cannot be saved as a checkpoint: {problem}.")
    with told(folder, "name a new folder with room", SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder}: is not empty; name a new folder.")
        _write(folder, _parts(config, weights), shard_bytes)
        (folder / "config.tmp").write_text(json.dumps(fields, indent=2))
        (folder / "config.tmp").rename(folder / "config.json")


def tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer; None where it has none or transformers is not installed.

    Raises UserError where its files are broken or ask for code of their own.
    """
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None
    with told(folder, "no code of a checkpoint is run, so it needs a working tokenizer.json"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if (folder / WEIGHTS).exists() or not index.exists():
        return [folder / WEIGHTS]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(x, str) and Path(x).name == x for x in names.values()):
        raise UserError(f"{index}: weight_map is {json.dumps(names):.60}; it must map tensors to files beside it.")
    files = [folder / name for name in sorted(set(names.values()))]
    if absent := [f"{file.name:.60}" for file in files if not os.path.exists(file)]:
        raise UserError(f"{index}: names {len(absent)} missing file(s), {', '.join(absent[:3])}; download them too.")
    return files


def _open(folder: Path, left_out: range) -> dict[str, tuple[Path, Any]]:
    """Tensor -> its file and that file opened; without the layers that multi-token prediction adds behind the last."""
    stored: dict[str, tuple[Path, Any]] = {}
    for path in _files(folder):
        with told(path, "download it again", SafetensorError):
            file = safe_open(path, framework="pt")
        stored |= dict.fromkeys(file.keys(), (path, file))
    number = re.compile(r"model\.layers\.(\d+)\.")
    return {name: at for name, at in stored.items() if not (m := number.match(name)) or int(m[1]) not in left_out}


def _check_names(folder: Path, names: set[str], what: str, remedy: str) -> None:
    if names:
        few = ", ".join(sorted(names)[:3])
        raise UserError(f"{folder}: {len(names)} tensor(s) {what}, such as {few}; {remedy}.")


def _check(name: str, spec: Spec, path: Path, file: Any) -> None:
    part = file.get_slice(name)
    shape, kind = tuple(part.get_shape()), part.get_dtype()
    if kind not in ("F32", "BF16", "F16"):
        raise UserError(f"{path}: {name} is stored as {kind}; take a bf16, fp16 or fp32 checkpoint.")
    want = spec.stored or spec.part_shape
    if shape not in (want, spec.part_shape) and (spec.init, shape) != ("a_log", (1, 1, *want, 1)):
        raise UserError(f"{path}: {name} is shaped {shape}, by config.json {want}; take both from one model.")


def _parts(config: Config, weights: SimpleNamespace) -> Iterator[tuple[str, torch.Tensor]]:
    """The inverse of `weights.build`: checkpoint names and views."""
    for layer, prefix, field, spec in specs(config):
        names = spec.names(prefix)
        tensor = getattr(weights.layers[layer] if layer >= 0 else weights, field)
        for name, row in zip(names, tensor.reshape(len(names), *spec.part_shape), strict=True):
            yield name, row.reshape(spec.stored or spec.part_shape)


def _write(folder: Path, parts: Iterator[tuple[str, torch.Tensor]], shard_bytes: int) -> None:
    shards: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
    total = 0
    for name, part in parts:
        shards[total // shard_bytes][name] = part
        total += part.nbytes
    where: dict[str, str] = {}
    for i, shard in enumerate(shards.values(), 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else WEIGHTS
        save_file(shard, folder / name, {"format": "pt"})
        where |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2))
