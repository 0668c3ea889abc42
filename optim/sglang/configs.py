"""Models that SGLang runs on one H200 with random weights, as folders that hold a config.json and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ling_prof import plain_file
from ling_prof.errors import UserError
from optim.engine.config import FLASH, TINY, Config
from optim.engine.hf_config import to_json
from optim.options import make_folder

# 72 GB with its MTP layer; the limits of flash begin at layer 34
FLASH_12 = replace(FLASH, name="ling-3.0-flash-12", layers=12, expert_limits=(), shared_limits=())
CONFIGS: dict[str, tuple[Config, int]] = {  # name -> dimensions, MTP layers
    TINY.name: (TINY, 0),
    FLASH_12.name: (FLASH_12, 1),
}
SPECULATIVE: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
PINNED = "SGLANG_SIMULATE_ACC_LEN"  # the variable: that many tokens are accepted, whatever they are
ACCEPT_LENGTH = "3"  # random weights accept nothing


def write_config(name: str, folder: Path) -> Path:
    """Leaves the config.json of a bundled model in `folder`, which is made -> the folder.

    Raises UserError for an unknown name, and where it cannot be written.
    """
    if name not in CONFIGS:
        raise UserError(f"no model {name!r:.80} for SGLang; there are {', '.join(CONFIGS)}, or a checkpoint folder.")
    config, layers = CONFIGS[name]
    rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
    more = {"rope_parameters": rope, "num_nextn_predict_layers": layers, "dtype": "bfloat16"}
    make_folder(folder)
    plain_file.write({**to_json(config), **more}, folder / "config.json")
    return folder


def drafts(name: str) -> bool:
    """Whether a bundled model is run with speculative decoding; of others nothing is known."""
    return name in CONFIGS and CONFIGS[name][1] > 0


def arguments(name: str, folder: Path) -> dict[str, Any]:
    """Server arguments that a bundled model needs beside those of every one."""
    speculative = {**SPECULATIVE, "speculative_draft_model_path": str(folder)} if drafts(name) else {}
    return {**({"dtype": "bfloat16"} if name in CONFIGS else {}), **speculative}


def environment(name: str) -> dict[str, str]:
    """The same of variables."""
    return {PINNED: ACCEPT_LENGTH} if drafts(name) else {}
