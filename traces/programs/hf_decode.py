"""Decode a few tokens with a small Hugging Face model on random weights, so that a profiler can record it.

    python hf_decode.py --model kimi_linear --with torch --stacks --out kimi.json.gz
    python hf_decode.py --model qwen3 --graph --with none --steps 64

Batch 1, bf16, 128 prompt tokens. Each step is marked twice, by record_function and by an NVTX range: `prefill_step_0`,
`decode_step_1` and so on. NVTX ranges such as `layer 0 attn` are open around the layers, also while a graph is
captured. An unprofiled rehearsal of the same loop is timed in the same process just before.

Under Nsight Systems: nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop ... hf_decode.py --with nsys
"""

import argparse
import contextlib
import statistics
import time

import torch
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

DEVICE = "cuda"
PROMPT_TOKENS = 128
CACHE_TOKENS = 256
REHEARSAL_STEPS = 24
STOP_TOKEN = -1  # never sampled: every run decodes all its steps

CONFIGS = {
    "kimi_linear": {
        "num_hidden_layers": 8,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "mlp_layer_types": ["dense"] + ["sparse"] * 7,
        "num_local_experts": 64,
        "vocab_size": 32768,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "qwen3": {
        "num_hidden_layers": 12,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
}


def build_model(name):
    """The model of CONFIGS[name] in bf16 on the device, its layers marked by NVTX ranges."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **CONFIGS[name])
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for index, layer in enumerate(model.model.layers):
        mark_module(layer.self_attn, f"layer {index} attn")
        mark_module(layer.mlp, f"layer {index} mlp")
    return model


def mark_module(module, name):
    """Open the NVTX range `name` around every forward of `module`."""

    def push(*_):
        nvtx.range_push(name)

    def pop(*_):
        nvtx.range_pop()

    module.register_forward_pre_hook(push)
    module.register_forward_hook(pop)


@contextlib.contextmanager
def marked(name):
    """A step in both profilers' terms; no mark when `name` is empty."""
    if not name:
        yield
        return
    with record_function(name), nvtx.range(name):
        yield


class EagerStep:
    """One decode forward, launched kernel by kernel."""

    def __init__(self, model, cache):
        self.model, self.cache = model, cache

    def __call__(self, token):
        return self.model(token, past_key_values=self.cache, use_cache=True).logits


class GraphStep:
    """One decode forward, captured once as a CUDA graph and replayed."""

    def __init__(self, model, cache):
        self.token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
        self.graph = torch.cuda.CUDAGraph()
        with nvtx.range("graph capture"), torch.cuda.graph(self.graph):
            self.logits = model(self.token, past_key_values=cache, use_cache=True).logits

    def __call__(self, token):
        self.token.copy_(token)
        self.graph.replay()
        return self.logits


def prefill(model, cache, prompt):
    """Logits of the last prompt token; fills the cache."""
    return model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def sample(logits, seen, temperature=0.8, penalty=0.1):
    """The likeliest token after temperature and presence penalty: logits (1, 1, V), seen (1, V) -> (1, 1)."""
    scores = logits[:, -1].float() - penalty * seen
    return torch.softmax(scores / temperature, dim=-1).argmax(dim=-1, keepdim=True)


def decode(step, token, seen, steps, mark):
    """Decode up to `steps` tokens, each read back for the stop check; returns the wall time of every step in ms."""
    times = []
    for index in range(1, steps + 1):
        start = time.perf_counter_ns()
        with marked(mark and f"decode_step_{index}"):
            seen.scatter_(1, token, 1.0)
            token = sample(step(token), seen)
            stop = token.item() == STOP_TOKEN
        times.append((time.perf_counter_ns() - start) / 1e6)
        if stop:
            break
    return times


def generate(model, cache, step, prompt, steps, mark=True):
    """Prefill, then decode; returns the wall time of every decode step in ms."""
    seen = torch.zeros(1, model.config.vocab_size, device=DEVICE)
    with marked(mark and "prefill_step_0"):
        token = sample(prefill(model, cache, prompt), seen)
        token.item()
    return decode(step, token, seen, steps, mark)


def new_cache(model, graph):
    """A static cache has fixed addresses, as a graph needs; the dynamic one grows."""
    if graph:
        return StaticCache(config=model.config, max_cache_len=CACHE_TOKENS)
    return DynamicCache(config=model.config)


@contextlib.contextmanager
def torch_profiler(out, stacks):
    """Write a Kineto trace of the block to `out`."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities):
        torch.zeros(1, device=DEVICE)  # a profiler's first kernel is late: take it here
    with profile(activities=activities, with_stack=stacks) as profiler:
        yield
    profiler.export_chrome_trace(out)


def recorder(args):
    """The context that records what runs inside it."""
    if args.profiler == "torch":
        return torch_profiler(args.out, args.stacks)
    if args.profiler == "nsys":
        return torch.cuda.profiler.profile()
    return contextlib.nullcontext()


@torch.no_grad()
def run_eager(args, model, prompt):
    """Rehearse, the first time slowly (a cuDNN plan per cache length, it seems), then record one generation."""
    rehearsal = ("rehearsal", REHEARSAL_STEPS, contextlib.nullcontext())
    for label, steps, context in (*[rehearsal] * 6, (f"profiler {args.profiler}", args.steps, recorder(args))):
        cache = new_cache(model, graph=False)
        with context:
            times = generate(model, cache, EagerStep(model, cache), prompt, steps, mark=label != "rehearsal")
        report(label, times)


@torch.no_grad()
def run_graph(args, model, prompt):
    """Warm up, capture, rehearse without a profiler unless the capture is recorded too, then record one generation."""
    cache = new_cache(model, graph=True)
    generate(model, cache, EagerStep(model, cache), prompt, 4, mark=False)
    with contextlib.ExitStack() as stack:
        if args.record_capture:
            stack.enter_context(recorder(args))
        step = GraphStep(model, cache)
        if not args.record_capture:
            cache.reset()
            report("rehearsal", generate(model, cache, step, prompt, REHEARSAL_STEPS, mark=False))
            stack.enter_context(recorder(args))
        cache.reset()
        times = generate(model, cache, step, prompt, args.steps)
    report(f"profiler {args.profiler}", times)


def report(label, times):
    median = statistics.median(times)
    print(f"{label}: {len(times)} decode steps, median {median:.3f} ms ({min(times):.3f} to {max(times):.3f})")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(CONFIGS), default="qwen3")
    parser.add_argument("--graph", action="store_true", help="replay the decode forward as a CUDA graph (qwen3)")
    parser.add_argument("--steps", type=int, default=5, help="decode steps")
    parser.add_argument("--with", dest="profiler", choices=["none", "torch", "nsys"], default="none")
    parser.add_argument("--stacks", action="store_true", help="Python stacks in the torch trace")
    parser.add_argument("--record-capture", action="store_true", help="record the graph's capture too")
    parser.add_argument("--out", default="trace.json.gz", help="where --with torch writes")
    args = parser.parse_args()
    if args.graph and args.model != "qwen3":
        parser.error("--graph needs --model qwen3: the other cache has no fixed addresses")
    return args


def main():
    args = parse_args()
    model = build_model(args.model)
    prompt = torch.randint(model.config.vocab_size, (1, PROMPT_TOKENS), device=DEVICE)
    (run_graph if args.graph else run_eager)(args, model, prompt)


if __name__ == "__main__":
    main()
