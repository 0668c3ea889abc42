"""The plugin in SGLang's processes; SGLang's modules are stood in for where they are imported."""

import importlib
import json
import logging
import os
import subprocess
import sys
from collections import Counter, namedtuple
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from conftest import BUNDLED  # noqa: E402
from test_cli import refused  # noqa: E402

import ling_prof  # noqa: E402
from ling_prof import UserError  # noqa: E402
from ling_prof.view import Options  # noqa: E402
from ling_prof.whatif.predict import whatif  # noqa: E402
from optim.engine.config import TINY  # noqa: E402
from optim.engine.graph import Edge  # noqa: E402
from optim.engine.hf_config import read_config  # noqa: E402
from optim.kernels import launch  # noqa: E402
from optim.sglang import configs, inside, plugin, proof, registry, selection, weights  # noqa: E402
from optim.sglang.forced import FORCED  # noqa: E402
from optim.sglang.inside import Rank  # noqa: E402
from optim.sglang.patch import everywhere, exchanged  # noqa: E402
from optim.sglang.registry import NotThere, State, passes  # noqa: E402

BAILING = "sglang.srt.models.bailing_moe_v3"
FUSED = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
LINEAR = "sglang.srt.layers.quantization.unquant"
ALIGN = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"


class Registry:
    """SGLang's HookRegistry, as far as it is used."""

    def __init__(self):
        self.hooks = []

    def register(self, target, hook, kind):
        self.hooks.append((target, hook, kind))


class Scheduler:
    def __init__(self, server_args, tp_rank, dp_rank):
        self.enable_overlap = not getattr(server_args, "disable_overlap_schedule", False)
        self.draft_worker, self.future_map = None, SimpleNamespace(needs_cpu_seq_lens=False)
        self.tp_worker = SimpleNamespace(model_runner=runner())
        self.tp_rank = tp_rank


class ServerArgs:
    def __post_init__(self): ...


def runner(**how):
    model = torch.nn.Module()
    model.lm_head = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    usual = {"model": model, "attn_backend": SimpleNamespace(), "decode_cuda_graph_runner": None}
    return SimpleNamespace(**usual | how)


def worker(edges=(), kernels=(), speculator=None, **how):
    """A Rank whose graph has these edges and kernels."""
    scheduler = Scheduler(None, 0, None)
    scheduler.tp_worker.model_runner = runner(**how)
    scheduler.draft_worker = speculator
    found = Rank(scheduler)
    vars(found).update(edges={"decode": list(edges)}, kernels={"decode": Counter(dict(kernels))})
    return found


@pytest.fixture
def modules(monkeypatch):
    """Puts modules in place: dotted name -> attributes; packages above them come along."""

    def install(**named):
        for name, values in named.items():
            path = name.split("__")
            for i in range(1, len(path) + 1):
                dotted = ".".join(path[:i])
                if dotted not in sys.modules:
                    monkeypatch.setitem(sys.modules, dotted, ModuleType(dotted))
            vars(sys.modules[".".join(path)]).update(values)

    return install


@pytest.fixture
def sglang(modules, monkeypatch):
    """All that the passes change -> the hooks that were registered."""
    hooks = Registry()

    def supports():
        return True

    def gate(self, config=None, params_dtype=None):
        self.dtype = params_dtype

    def install(name, **values):
        modules(**{name.replace(".", "__"): values})

    install(
        "sglang.srt.plugins.hook_registry",
        HookRegistry=hooks,
        HookType=SimpleNamespace(BEFORE="before", AROUND="around"),
    )
    install("sglang.srt.managers.scheduler", Scheduler=Scheduler)
    install("sglang.srt.server_args", ServerArgs=ServerArgs)
    install("sglang.kernels.jit.utils.arch", is_arch_support_pdl=supports)
    install("sglang.kernels.ops.moe.router", is_arch_support_pdl=supports)
    install(FUSED, is_arch_support_pdl=supports)
    install("sgl_kernel.utils", is_arch_support_pdl=lambda: True)
    install("flashinfer.utils", device_support_pdl=lambda device: True)
    install("sglang.srt.layers.moe.topk", _fused_topk_deepseek=lambda scores, launch_with_pdl=True: launch_with_pdl)
    install(ALIGN, SMALL_NUMEL_LIMIT=64)
    install(
        "sglang.srt.layers.attention.linear.kda_backend", KDAAttnBackend=type("K", (), {"needs_cpu_seq_lens": False})
    )
    install("sglang.srt.layers.attention.triton_backend", _mla_decode_kv_splits_cap=lambda *_: 256)
    install(LINEAR, UnquantizedLinearMethod=type("UnquantizedLinearMethod", (), {"apply": lambda *_: "usual"}))
    install(BAILING, BailingMoEGate=type("BailingMoEGate", (), {"__init__": gate}), ParallelLMHead=dict)
    install("sglang.srt.model_loader.loader", initialize_dummy_weights=lambda model: None)
    monkeypatch.setattr(proof, "version", lambda: registry.WRITTEN_FOR)
    return hooks


@pytest.fixture
def environment(monkeypatch):
    """Sets LING_OPTIM and the like; what the plugin adds goes again."""
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def put(**values):
        os.environ.update(values)

    return put


def test_a_selection_is_read_and_written():
    assert selection.parse(" -pdl , +grouped_topk,") == {"pdl": False, "grouped_topk": True}
    assert selection.text({"pdl": False, "grouped_topk": True}) == "-pdl,+grouped_topk"
    assert selection.parse("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-pld", "LING_OPTIM: no pass 'pld'; there are bf16_gate, bf16_head, draft_extend_graph, "),
        ("pdl", "LING_OPTIM: 'pdl' has no sign; write +pdl or -pdl."),
        ("-pdl,+pdl", "LING_OPTIM names pdl twice; name each pass once."),
        ("-", "LING_OPTIM: no pass ''"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(text, says):
    with pytest.raises(UserError) as error:
        selection.parse(text)
    assert str(error.value).startswith(says)


def test_native_switches_are_set_both_ways():
    assert selection.environment({"swiglu_epilogue": True, "draft_extend_graph": True, "pdl": False}) == {
        "SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED": "1",
        "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH": "0",
    }
    assert selection.arguments({"overlap": False}) == {"disable_overlap_schedule": True}


def test_every_pass_of_the_issue_is_there_and_importing_one_imports_no_torch():
    named = "pdl bf16_gate bf16_head host_run_ahead moe_align_pairs swiglu_epilogue kda_verify metadata_glue"
    assert {*named.split(), "draft_extend_graph", "overlap"} <= passes().keys()
    code = "import sys; from optim.sglang.registry import passes; passes(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_pass_that_lacks_something_is_no_pass():
    half = ModuleType("half", "A docstring.")
    half.removes, half.exact, half.default = "a cost", True, 1
    with pytest.raises(TypeError, match=r"half\.py lacks default, took_effect, environment or arguments or change"):
        registry.checked("half", half)


def test_what_is_imported_by_name_changes_too_and_back(modules):
    def one():
        return 1

    modules(far__home={"one": one}, far__user={"one": one, "other": one}, far__kept={"one": one})
    user, kept = sys.modules["far.user"], sys.modules["far.kept"]
    with everywhere("far.home:one", lambda _: lambda: 2, leave={"far.kept"}):
        assert (user.one(), user.other(), kept.one()) == (2, 2, 1)
    assert user.one is user.other is kept.one is one


def test_an_inherited_attribute_is_inherited_again(modules):
    base = type("Base", (), {"flag": 1})
    modules(far__home={"Child": type("Child", (base,), {})})
    with exchanged("far.home:Child.flag", lambda _: 2):
        assert sys.modules["far.home"].Child.flag == 2
        assert base.flag == 1
    assert "flag" not in vars(sys.modules["far.home"].Child)


def seen(name):
    """What a pass changes, as a value."""
    import_ = importlib.import_module
    return {
        "pdl": lambda: (
            import_("sglang.kernels.ops.moe.router").is_arch_support_pdl(),
            import_("sgl_kernel.utils").is_arch_support_pdl(),
            import_("flashinfer.utils").device_support_pdl("cuda"),
            import_("sglang.srt.layers.moe.topk")._fused_topk_deepseek(0, True),  # by position, as SGLang calls it
            import_(FUSED).is_arch_support_pdl(),
        ),
        "moe_align_pairs": lambda: import_(ALIGN).SMALL_NUMEL_LIMIT,
        "host_run_ahead": lambda: (
            import_("sglang.srt.layers.attention.linear.kda_backend").KDAAttnBackend.needs_cpu_seq_lens
        ),
        "mla_splits": lambda: import_("sglang.srt.layers.attention.triton_backend")._mla_decode_kv_splits_cap(
            8, 132, 9
        ),
        "bf16_gate": lambda: import_(BAILING).BailingMoEGate(config=1, params_dtype=torch.bfloat16).dtype,
        "bf16_head": lambda: import_(BAILING).ParallelLMHead(params_dtype=torch.bfloat16)["params_dtype"],
    }[name]()


@pytest.mark.parametrize(
    ("name", "usual", "changed"),
    [
        ("pdl", (True,) * 5, (False, False, False, False, True)),
        ("moe_align_pairs", 64, 0),
        ("host_run_ahead", False, True),
        ("mla_splits", 256, 64),
        ("bf16_gate", torch.bfloat16, torch.float32),
        ("bf16_head", torch.bfloat16, torch.float32),
    ],
)
def test_a_change_is_made_and_undone(sglang, name, usual, changed):
    module = passes()[name]
    assert seen(name) == usual
    with plugin.applied({name: module.default}):
        assert seen(name) == usual
    with plugin.applied({name: not module.default}):
        assert seen(name) == changed
    assert seen(name) == usual


def test_only_a_single_token_is_projected_by_rows(sglang, monkeypatch):
    module, dice = passes()["splitk_gemv"], torch.Generator().manual_seed(0)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    weight, x = (torch.randn(*size, generator=dice).bfloat16() for size in ((40, 64), (1, 64)))
    method = sys.modules[LINEAR].UnquantizedLinearMethod()

    def product(x, weight, bias=None):
        return method.apply(SimpleNamespace(weight=weight), x, bias)

    with plugin.applied({"pdl": False, "splitk_gemv": True}):
        found = product(x[None], weight)
        strided = torch.cat([x, x], 1)[:, ::2], torch.cat([weight, weight], 1)[:, ::2]
        assert [product(other, weight) for other in (torch.cat([x, x]), x.float(), strided[0])] == ["usual"] * 3
        assert [product(x, other) for other in (weight.float(), strided[1], weight[None])] == ["usual"] * 3
        assert product(x, torch.nn.Buffer(weight)) != "usual"
        assert product(x, Wrapped(weight)) == "usual"
        assert product(x, weight, torch.zeros(40)) == "usual"
        deep = torch.zeros(1, 2 * module.DEEPEST).bfloat16()
        assert product(deep, deep) == "usual"
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert product(x, weight) == "usual"
    assert product(x, weight) == "usual"
    assert found.shape == (1, 1, 40)
    torch.testing.assert_close(found[0].float(), x.float() @ weight.float().T, rtol=1e-2, atol=1e-2)


class Wrapped(torch.Tensor):
    """As a quantized weight: what it says of itself is not what lies in memory."""

    @property
    def data(self):
        return self


@pytest.mark.parametrize(("on", "how"), [(True, launch.WAITS), (False, 0)])
def test_products_by_rows_are_chained_as_sglang_chains_its_own(sglang, monkeypatch, on, how):
    before = launch.chained
    monkeypatch.setattr(passes()["splitk_gemv"], "DEVICE", "cpu")
    monkeypatch.setattr("optim.kernels.linear.gemv.linear", lambda x, weight: torch.full((1, 2), launch.chained))
    layer, x = SimpleNamespace(weight=torch.ones(2, 8).bfloat16()), torch.ones(1, 8).bfloat16()
    with plugin.applied({"pdl": on, "splitk_gemv": True}):
        launch.chained = how ^ launch.WAITS
        assert sys.modules[LINEAR].UnquantizedLinearMethod().apply(layer, x).tolist() == [[how, how]]
    assert launch.chained == before


def test_what_sglang_lacks_is_named(sglang):
    del sys.modules[ALIGN].SMALL_NUMEL_LIMIT
    says = rf"SGLang 0.5.19 cannot switch moe_align_pairs, .*{ALIGN}.SMALL_NUMEL_LIMIT is not there.*leave"
    with pytest.raises(NotThere, match=says), plugin.applied({"bf16_head": False, "moe_align_pairs": False}):
        pass
    assert seen("bf16_head") == torch.bfloat16


def test_without_a_selection_nothing_is_touched(sglang):
    plugin.start()
    assert sglang.hooks == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"LING_OPTIM": "-pld"},
        {"LING_OPTIM_WEIGHTS": "x"},
        {"LING_OPTIM_WEIGHTS": "²"},
        {"LING_OPTIM_WEIGHTS": "1" * 5000},
        {"LING_OPTIM_PROOF": "/dev/null/proof.json"},
        {"LING_OPTIM_PROOF": "/"},
    ],
    ids=["pass", "seed", "digit", "long", "no folder", "root"],
)
def test_what_cannot_be_stops_the_start(sglang, environment, capsys, wrong):
    environment(**wrong)
    with pytest.raises(SystemExit) as stop:
        plugin.start()
    assert stop.value.code == 2
    assert sglang.hooks == []
    assert capsys.readouterr().err.startswith("ling-prof: LING_OPTIM")


def test_a_sglang_without_what_is_hooked_is_refused(sglang, environment, capsys):
    environment(LING_OPTIM="-pdl")
    del sys.modules["sglang.srt.managers.scheduler"].Scheduler
    with pytest.raises(SystemExit):
        plugin.start()
    assert "sglang.srt.managers.scheduler.Scheduler.__init__ is not there" in capsys.readouterr().err


def test_another_version_is_warned_about(sglang, environment, monkeypatch, caplog):
    environment(LING_OPTIM="-pdl")
    monkeypatch.setattr(proof, "version", lambda: "0.6.0")
    plugin.start()
    assert "written for SGLang 0.5.19; this is 0.6.0" in caplog.text


def hooked(sglang, environment, monkeypatch, tmp_path, text, tp_rank=1):
    """Starts the plugin, then a scheduler as its hooks do -> the scheduler, made on this rank."""
    environment(LING_OPTIM=text, LING_OPTIM_PROOF=str(tmp_path / "proof.json"))
    monkeypatch.setattr(plugin, "_lasting", plugin.ExitStack())
    plugin.start()
    hooks = {target.rpartition(".")[0].rpartition(".")[2]: hook for target, hook, _ in sglang.hooks}
    arguments, made = ServerArgs(), Scheduler.__new__(Scheduler)
    if "ServerArgs" in hooks:
        hooks["ServerArgs"](arguments)
    try:
        hooks["Scheduler"](Scheduler.__init__, made, arguments, tp_rank=tp_rank, dp_rank=None)
    finally:
        plugin._lasting.close()
    return made


def test_a_rank_can_be_made_to_decode_a_text(sglang, environment, monkeypatch, tmp_path):
    made = hooked(sglang, environment, monkeypatch, tmp_path, "-overlap")
    force = getattr(made, FORCED)
    assert force.runner is made.tp_worker.model_runner
    with pytest.raises(UserError, match="no text is forced"):
        force()


def test_each_rank_proves_what_is_on(sglang, environment, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    made = hooked(sglang, environment, monkeypatch, tmp_path, "-overlap,+swiglu_epilogue,+bf16_head,-bf16_gate")
    assert os.environ["SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED"] == "1"
    (found,) = proof.load(tmp_path / "proof.json")
    rows = {row["pass"]: (row["asked"], row["on"], row["evidence"]) for row in found["passes"]}
    assert rows.keys() == passes().keys()
    assert found["rank"] == "TP-1"
    assert found["refused"] is None
    assert rows["overlap"] == (False, False, "the scheduler's enable_overlap is False")
    assert rows["bf16_head"] == (True, True, "the head is torch.bfloat16")
    assert rows["pdl"] == (None, None, "no CUDA graph is captured")
    faults = proof.faults(found)
    assert faults == [
        "bf16_gate was asked off and is neither on nor off: this model has no BailingMoEGate",
        "swiglu_epilogue was asked on and is neither on nor off: this model has no unquantized experts",
    ]
    assert [record.message for record in caplog.records] == [f"ling-prof: {fault}" for fault in faults]
    (tmp_path / "proof-TP-1.json").unlink()
    getattr(made, plugin.CALLED)()
    assert len(proof.load(tmp_path / "proof.json")) == 1


def test_a_rank_that_cannot_switch_stops_and_says_so(sglang, environment, monkeypatch, tmp_path, capsys):
    del sys.modules[BAILING].BailingMoEGate
    with pytest.raises(SystemExit):
        hooked(sglang, environment, monkeypatch, tmp_path, "-bf16_gate")
    (found,) = proof.load(tmp_path / "proof.json")
    assert found["refused"].startswith("SGLang 0.5.19 cannot switch bf16_gate")
    assert found["refused"] in capsys.readouterr().err


def test_without_a_proof_the_plugin_was_not_loaded(tmp_path):
    with pytest.raises(UserError, match="SGLang left no proof, so the plugin was not loaded; install ling-prof"):
        proof.load(tmp_path / "proof.json")


def test_graphs_are_kept_while_captured(monkeypatch):
    class Plain:  # as torch's: what it is made by goes to __new__, what it heeds is that of __init__
        def __new__(cls, keep_graph=False):
            return super().__new__(cls)

        def __init__(self, keep_graph=False):
            self.keeps = keep_graph

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Plain)
    with inside.kept_graphs():
        assert torch.cuda.CUDAGraph().keeps
        assert not torch.cuda.CUDAGraph(keep_graph=False).keeps
        assert issubclass(torch.cuda.CUDAGraph, Plain)
    assert torch.cuda.CUDAGraph is Plain
    assert not torch.cuda.CUDAGraph().keeps


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: that graphs of torch are kept is NOT tested")
def test_a_graph_of_torch_is_kept_and_can_be_looked_into():
    from optim.engine.graph import kernels

    x = torch.zeros(8, device="cuda")
    x += 1  # what the first launch sets up cannot be captured
    with inside.kept_graphs():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
    assert kernels(graph).total() == 1
    graph.replay()
    assert (x == 2).all()


def test_the_graph_of_the_smallest_batch_is_looked_into(monkeypatch):
    from optim.engine import graph

    Key = namedtuple("Key", "size")
    captured = SimpleNamespace(backend=SimpleNamespace(_graphs={Key(8): "large", Key(1): "small"}))
    draft = SimpleNamespace(cuda_graph_runner=captured, cuda_graph_runner_for_draft_extend=None)
    scheduler = Scheduler(None, 0, None)
    scheduler.tp_worker.model_runner = runner(decode_cuda_graph_runner=captured)
    scheduler.draft_worker = SimpleNamespace(_draft_worker=draft)
    monkeypatch.setattr(graph, "kernels", lambda one: Counter({f"{one}_kernel": 3}))
    assert Rank(scheduler).kernels == {"verify": {"small_kernel": 3}, "draft": {"small_kernel": 3}}
    assert Rank(scheduler).launches("all_k") == 6

    def no(_):
        raise RuntimeError("not kept")

    monkeypatch.setattr(graph, "edges", no)
    with pytest.raises(NotThere, match="cannot be looked into"):
        _ = Rank(scheduler).edges


def state(name, *args, **how) -> State:
    return passes()[name].took_effect(worker(*args, **how))


def test_chained_edges_prove_pdl():
    edges = [Edge("a", "fused_moe_kernel", True), Edge("b", "nvjet_sm90", True), Edge("c", "d", False)]
    on, evidence = state("pdl", edges)
    assert on
    where = "edges of the captured graphs, but for those into libraries, are programmatic"
    assert evidence == f"1 of 2 {where}, into fused_moe_kernel 1 times"
    assert state("pdl", edges[1:]) == (False, f"0 of 1 {where}")


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("moe_align_pairs", "_moe_align_small_numel_kernel", "_Z35count_and_sort_expert_tokens_kernelIi"),
        ("grouped_topk", "_router_triton_kernel", "_ZN12tensorrt_llm7kernels24deepseek_v3_topk_kernelIf"),
    ],
)
def test_kernels_prove_which_path_was_taken(name, one, other):
    assert state(name, kernels={one: 23})[0] is True
    assert state(name, kernels={other: 23})[0] is False
    assert state(name, kernels={"else": 1})[0] is None
    assert "23 times" in state(name, kernels={one: 23}).evidence


def test_what_appends_the_shared_expert_goes():
    """Seven small operations in each of 23 layers; predicted beside measured: docs/sglang.md."""
    trace = ling_prof.load(BUNDLED / "sglang/tiny-stock.json.gz")
    found = whatif(trace, ["grouped_topk"], Options(unprofiled_tpot=2_284_100))
    assert sum(site["count"] for site in found["sites"]) == 7 * 23
    assert not any("topk" in site["site"] for site in found["sites"])
    assert whatif(ling_prof.load(BUNDLED / "sglang/tiny-splitk_gemv.json.gz"), ["grouped_topk"])["sites"] == []


def test_speculative_passes_have_nothing_to_act_on_without_drafts():
    speculative = [name for name, module in passes().items() if getattr(module, "speculative", False)]
    assert speculative == ["draft_extend_graph", "host_run_ahead", "kda_verify"]
    assert {state(name)[0] for name in speculative} == {None}


def test_speculative_passes_show_in_the_worker():
    drafts = SimpleNamespace(draft_runner=runner(), cuda_graph_runner_for_draft_extend=object())
    kda = SimpleNamespace(linear_attn_backend=SimpleNamespace(needs_cpu_seq_lens=False))
    how = {"speculator": drafts, "attn_backend": kda}
    assert state("draft_extend_graph", **how)[0] is True
    assert state("host_run_ahead", **how) == (
        True,
        "future_map.needs_cpu_seq_lens is False, that of the KDA backend False",
    )
    assert state("kda_verify", kernels={"fused_kda_conv_gating_verify_kernel": 10}, **how)[0] is True
    assert state("kda_verify", **how)[0] is False


def test_the_other_passes_show_in_the_worker():
    gate = type("BailingMoEGate", (torch.nn.Module,), {})()
    gate.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    experts = torch.nn.Module()
    experts.quant_method = SimpleNamespace(w13_swiglu_interleaved=True)
    model = torch.nn.ModuleList([gate, experts])
    assert state("bf16_gate", model=model) == (True, "1 routers are torch.bfloat16")
    assert state("swiglu_epilogue", model=model)[0] is True
    said = "the captured graphs launch 3 products by rows, 2 kernels of vendors' libraries"
    ours, theirs = {"gemv_kernel": 2, "gemv_split_kernel": 1}, {"nvjet_x": 1, "cublasLt_splitKreduce_kernel": 1}
    assert state("splitk_gemv", kernels={**ours, **theirs}) == (True, said)
    assert state("splitk_gemv", kernels={"nvjet_x": 1})[0] is False
    splits = SimpleNamespace(full_attn_backend=SimpleNamespace(use_mla=True, max_kv_splits=256))
    assert state("mla_splits", attn_backend=splits) == (False, "a context is cut into at most 256 parts")
    glue = SimpleNamespace(disabled=False, _states={1: {"graph": object()}, 2: {"graph": None}})
    said = state("metadata_glue", decode_cuda_graph_runner=SimpleNamespace(_metadata_glue=glue))
    assert said == (True, "the metadata has graphs of its own, 1 captured so far")
    assert state("metadata_glue", decode_cuda_graph_runner=SimpleNamespace(_metadata_glue=None))[0] is False


def test_a_proof_that_fails_stops_no_server():
    def broken(_):
        raise ValueError("odd")

    module = SimpleNamespace(took_effect=broken)
    assert proof._state(module, worker()) == (None, "cannot be told: ValueError, odd")


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        named = {
            "model.word_embeddings.weight": (64, 32),
            "model.layers.1.attention.A_log": (1, 1, 4, 1),
            "model.layers.1.mlp.gate.weight": (16, 32),
            "model.layers.1.mlp.gate.expert_bias": (16,),
            "model.layers.1.attention.o_proj.weight": (32, 64),
            "model.norm.weight": (32,),
            "cos_sin_cache": (4,),
        }
        self.named = {name: torch.zeros(shape, dtype=dtype) for name, shape in named.items()}

    def state_dict(self):
        return self.named


def test_dummy_weights_are_the_same_values_in_any_dtype(sglang, environment):
    environment(LING_OPTIM_WEIGHTS="3")
    wide, narrow, again = Model(torch.float32), Model(torch.bfloat16), Model(torch.float32)
    with plugin.applied({}):
        for model in (wide, narrow, again):
            sys.modules["sglang.srt.model_loader.loader"].initialize_dummy_weights(model)
    for name, one in wide.named.items():
        assert torch.equal(one, again.named[name])
        assert torch.equal(one.bfloat16(), narrow.named[name])
    assert (wide.named["model.norm.weight"] == 1).all()
    assert (wide.named["cos_sin_cache"] == 0).all()
    assert 0.1 < wide.named["model.layers.1.mlp.gate.weight"].std() * 32**0.5 < 1.2
    weights.fill(wide, 4)
    assert not torch.equal(wide.named["model.word_embeddings.weight"], again.named["model.word_embeddings.weight"])


def test_configurations_are_those_of_the_engine(tmp_path):
    assert read_config(configs.write_config("ling-3.0-tiny", tmp_path / TINY.name)) == TINY
    flash = read_config(configs.write_config("ling-3.0-flash-12", tmp_path / "ling-3.0-flash-12"))
    assert (flash.layers, flash.hidden, flash.experts, flash.mla_layers) == (12, 2560, 512, 2)
    with pytest.raises(UserError, match=r"no model 'x' for SGLang; there are ling-3\.0-tiny, ling-3\.0-flash-12"):
        configs.write_config("x", tmp_path)


def test_the_passes_are_listed():
    from test_cli import cli

    found = json.loads(cli("passes", "--target", "sglang", "--json").stdout)
    assert {row["pass"] for row in found["passes"]} == passes().keys()
    assert "LING_OPTIM=" in cli("passes", "--target", "sglang").stdout
    assert "takes no recording" in refused("passes", "x.json", "--target", "sglang")
