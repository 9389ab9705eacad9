# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The constructor's order, what is refused before it, and what shutdown gives back."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine import engine as engine_module
from tensorrt_llm_ext.engine import kv_cache, loading
from tensorrt_llm_ext.engine.errors import EngineClosedError
from tensorrt_llm_ext.llmapi import llm as llm_module

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
GRAPHS = {
    "encoder_cuda_graph": {"image": {"buckets": [[96, 4]], "warmup_steps": 1}},
    "encoder_cache_max_bytes": 0,
}
SMALL = {"device": "cpu", "encoder_max_num_tokens": 96, "max_seq_len": 128}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the lifecycle's calls, in the order they are made."""
    seen: list[str] = []

    def spy(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def record(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, record)

    spy(llm_module, "refuse_impossible")
    spy(engine_module, "load_tower")
    spy(loading, "load_language_model")
    spy(engine_module, "setup_mm_encoder_cuda_graphs")
    spy(kv_cache, "free_memory")
    spy(kv_cache, "size_kv_cache")
    from tensorrt_llm_ext.towers.mixin import MultimodalEncoderMixin

    spy(MultimodalEncoderMixin, "setup_attn_metadata")
    spy(MultimodalEncoderMixin, "capture_encoder_cuda_graphs")
    spy(MultimodalEncoderMixin, "release_encoder_cuda_graphs")
    return seen


def test_an_encoder_that_the_model_lacks_is_refused_before_weights_load(
    tiny_checkpoint: Path, calls: list[str]
) -> None:
    graphs = {"encoder_cuda_graph": {"audio": {"max_batch_size": 2}}}
    with pytest.raises(ValueError, match=r"entry for 'audio'.*it has \['image'\]"):
        LLM(model=tiny_checkpoint, multimodal_config=graphs, **SMALL)
    assert "load_tower" not in calls


def test_phases_run_in_order(tiny_checkpoint: Path, calls: list[str]) -> None:
    with LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **SMALL) as llm:
        assert calls == [
            "refuse_impossible",
            "load_tower",
            "load_language_model",
            "setup_attn_metadata",
            "setup_mm_encoder_cuda_graphs",
            "capture_encoder_cuda_graphs",
            "free_memory",
            "size_kv_cache",
        ]
        phases = ["check", "load weights", "attention metadata", "capture", "size KV cache"]
        assert list(llm.startup_report.phase_seconds) == [*phases, "get ready"]
        calls.clear()
        llm.generate("Hello", SamplingParams(max_tokens=2))
        assert calls == []  # nothing of the lifecycle runs again while serving
    assert calls == ["release_encoder_cuda_graphs"]


def test_without_configuration_no_graph_code_runs(
    tiny_checkpoint: Path, calls: list[str], picture: Image.Image
) -> None:
    with LLM(model=tiny_checkpoint, **SMALL) as llm:
        assert not [name for name in calls if "graph" in name]
        assert "capture" not in llm.startup_report.phase_seconds
        assert [tower.status for tower in llm.startup_report.towers] == ["off"]
        kv = llm.startup_report.kv_cache
        assert kv is not None
        assert kv.tokens == kv.tokens_without_graphs
        media = {"image": picture}
        llm.generate({"prompt": IMAGE, "multi_modal_data": media}, SamplingParams(max_tokens=1))
        stats = llm.encoder_stats()["image"]
        assert (stats.items, stats.replays) == (1, {})


def test_transformers_tower_is_gone_before_capture(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visual: list[Any] = []
    auto = loading.AutoModelForImageTextToText
    original = auto.from_pretrained

    def load(*args: Any, **kwargs: Any) -> Any:
        model, found = original(*args, **kwargs)
        visual.append(weakref.ref(model.model.visual))
        return model, found

    alive: list[bool] = []
    capture = engine_module.setup_mm_encoder_cuda_graphs

    def check(*args: Any, **kwargs: Any) -> Any:
        alive.append(visual[0]() is not None)
        return capture(*args, **kwargs)

    monkeypatch.setattr(auto, "from_pretrained", load)
    monkeypatch.setattr(engine_module, "setup_mm_encoder_cuda_graphs", check)
    with LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **SMALL):
        assert alive == [False]


def test_kv_cache_knows_what_graphs_took(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 200 << 20)
    with LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **SMALL) as llm:
        report = llm.startup_report
        kv = report.kv_cache
        assert kv is not None
        graph_bytes = sum(tower.graph_memory_bytes for tower in report.towers)
        assert graph_bytes > 0
        # 4 layers, 2 KV heads of 16, keys and values, 4 bytes; one layer is copied to 4 heads.
        assert kv.bytes_per_token == 4 * 2 * 16 * 2 * 4
        cost = kv.bytes_per_token * 6 / 4
        assert kv.tokens == int(((200 << 20) * 0.9 - kv.reserved_bytes) / cost)
        extra = int(graph_bytes * 0.9 / cost)
        assert kv.tokens_without_graphs - kv.tokens in (extra, extra + 1)
        assert llm._engine.loop.limits.kv_tokens == kv.tokens


def test_explicit_kv_tokens_are_left_alone(tiny_checkpoint: Path) -> None:
    with LLM(model=tiny_checkpoint, kv_cache_config={"max_tokens": 77}, **SMALL) as llm:
        kv = llm.startup_report.kv_cache
        assert kv is not None
        assert (kv.tokens, kv.explicit) == (77, True)
        assert llm._engine.loop.limits.kv_tokens == 77


def test_too_little_memory_names_numbers_and_releases_graphs(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 3 << 20)
    with pytest.raises(ValueError, match=r"3,145,728 bytes free .* max_seq_len 128,000 does not"):
        LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **{**SMALL, "max_seq_len": 128_000})
    assert calls[-1] == "release_encoder_cuda_graphs"


@pytest.fixture
def tight(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """(bytes, size of the encoder output cache) -> an engine with that much memory beside what
    1000 tokens need.

    What the towers' graphs really hold is missing from it at any time.
    """
    towers: list[Any] = []
    load = engine_module.load_tower

    def keep(*args: Any, **kwargs: Any) -> Any:
        towers.append(load(*args, **kwargs))
        return towers[-1]

    monkeypatch.setattr(engine_module, "load_tower", keep)
    options = {**SMALL, "encoder_max_num_tokens": 320, "max_seq_len": 1000}
    with LLM(model=tiny_checkpoint, **options) as llm:
        kv = llm.startup_report.kv_cache
    assert kv is not None
    needed = (1000 * kv.bytes_per_token * 6 / 4 + kv.reserved_bytes) / 0.9

    def make(spare: int, cache: int = 0) -> Any:
        def free(device: torch.device) -> int:
            held = sum(t._runner.static_bytes for t in towers if t._runner is not None)
            return int(needed) + spare - held

        monkeypatch.setattr(kv_cache, "free_memory", free)
        image = {"buckets": [[96, 4], [192, 4], [320, 8]], "warmup_steps": 1}
        graphs = {"encoder_cuda_graph": {"image": image}, "encoder_cache_max_bytes": cache}
        return LLM(model=tiny_checkpoint, multimodal_config=graphs, **options)

    return make


def test_buckets_go_until_one_request_fits(
    tight: Callable[[int], Any], picture: Image.Image, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = {"prompt": IMAGE, "multi_modal_data": {"image": picture}}
    tokens: list[int] = []
    # Static buffers of n rows hold 6376 n bytes.
    for spare, kept in ((2_100_000, [96, 192, 320]), (1_500_000, [96, 192]), (700_000, [96])):
        caplog.clear()
        with tight(spare) as llm:
            report = llm.startup_report
            (tower,) = report.towers
            assert [b.num_tokens for b in tower.buckets if b.kept] == kept
            assert report.kv_cache.tokens >= 1000
            gone = [n for n in ("image 192x4", "image 320x8") if int(n[6:9]) not in kept]
            if gone:
                (notice,) = report.notices
                assert f"given up, largest first: {', '.join(gone)}. With them" in notice
                assert "max_seq_len 1000; set max_graph_memory" in notice
                assert notice in caplog.text
                assert "max_graph_memory of" in tower.buckets[-1].reason
            else:
                assert report.notices == []
            out = llm.generate(prompt, SamplingParams(max_tokens=4))
            assert llm.encoder_stats()["image"].replays == {"96x4": 1}
            tokens.append(out.outputs[0].token_ids)
    with tight(1000) as llm:
        (tower,) = llm.startup_report.towers
        assert tower.status == "eager"
        assert llm.startup_report.kv_cache.tokens == 1000
        tokens.append(llm.generate(prompt, SamplingParams(max_tokens=4)).outputs[0].token_ids)
        assert llm.encoder_stats()["image"].replays == {}
    assert tokens == tokens[:1] * 4


def test_the_encoder_output_cache_goes_before_any_graph(tight: Callable[..., Any]) -> None:
    with tight(2_300_000, cache=100_000) as llm:  # beside all graphs
        assert llm.startup_report.encoder_cache_bytes == 100_000
        assert llm.encoder_cache_stats().max_bytes == 100_000
        assert llm.startup_report.notices == []
    with tight(2_300_000, cache=300_000) as llm:
        report = llm.startup_report
        assert [b.kept for b in report.towers[0].buckets] == [True] * 3
        assert (report.encoder_cache_bytes, llm.encoder_cache_stats().max_bytes) == (0, 0)
        (notice,) = report.notices
        assert "beside 300,000 bytes of it the KV cache would not hold one request" in notice
        assert report.kv_cache.tokens >= 1000


def test_the_kv_cache_leaves_the_encoder_output_cache_free(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 200 << 20)
    sizes = {}
    for size in (0, "16MiB"):
        config = {"encoder_cache_max_bytes": size}
        with LLM(model=tiny_checkpoint, multimodal_config=config, **SMALL) as llm:
            kv = llm.startup_report.kv_cache
            assert kv is not None
            sizes[size] = kv.tokens
            text = llm.startup_report.render()
            assert f"Encoder output cache: {'16.0 MiB' if size else 'off'}" in text
    cost = 4 * 2 * 16 * 2 * 4 * 6 / 4
    assert sizes[0] - sizes["16MiB"] == pytest.approx((16 << 20) / cost, abs=1)


def test_a_cache_larger_than_the_memory_is_an_error(tiny_checkpoint: Path) -> None:
    """Where the KV cache has a size of its own, nothing gives way."""
    config = {"encoder_cache_max_bytes": 10**18}
    explicit = {"kv_cache_config": {"max_tokens": 64}, **SMALL, "max_seq_len": 64}
    message = r"encoder_cache_max_bytes is 1,000,000,000,000,000,000, and cpu has not so much"
    with pytest.raises(ValueError, match=message):
        LLM(model=tiny_checkpoint, multimodal_config=config, **explicit)


def test_the_largest_encoder_gives_up_its_graphs_first(
    family_checkpoint: Callable[[str], Path],
) -> None:
    image = {"buckets": [[96, 4], [320, 8]], "warmup_steps": 1}
    graphs = {"encoder_cuda_graph": {"image": image, "audio": {"max_batch_size": 2}}}
    folder = family_checkpoint("qwen3_omni")
    with LLM(
        model=folder, device="cpu", encoder_max_num_tokens=320, multimodal_config=graphs
    ) as llm:
        engine = llm._engine

        def state() -> dict[str, tuple[str, int, int]]:
            return {
                r.modality: (r.status, sum(b.kept for b in r.buckets), r.graph_memory_bytes)
                for r in engine._tower_reports
            }

        full = state()
        assert full["image"][:2] == ("captured", 2)
        assert full["image"][2] > full["audio"][2] > 0
        assert engine._give_up_graphs(1)
        assert state()["image"][:2] == ("captured", 1)
        assert state()["audio"] == full["audio"]
        rest = state()["image"][2]
        assert engine._give_up_graphs(rest + 1)
        assert state()["image"] == ("eager", 0, 0)
        assert state()["audio"][1] == full["audio"][1] - 1
        assert engine._give_up_graphs(1 << 40)
        assert {s[0] for s in state().values()} == {"eager"}
        assert not engine._give_up_graphs(1)


def test_without_any_graph_it_still_does_not_fit(tight: Callable[[int], Any]) -> None:
    with pytest.raises(ValueError, match=r"hold 9\d\d tokens .* Set max_seq_len=9\d\d or less"):
        tight(-50_000)


def test_max_seq_len_beyond_the_model_is_told(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"device": "cpu", "max_num_tokens": 64}
    with LLM(model=tiny_checkpoint, max_seq_len=32768, **options) as llm:
        assert llm.startup_report.notices == []
    with LLM(model=tiny_checkpoint, max_seq_len=32769, **options) as llm:
        (notice,) = llm.startup_report.notices
        assert "max_seq_len is 32,769, but the model was made for 32,768 positions" in notice
        assert notice in caplog.text
        assert llm._engine.loop.limits.max_seq_len == 32769


def test_max_seq_len_defaults_to_the_model_or_to_what_fits(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"device": "cpu", "max_num_tokens": 64}
    with LLM(model=tiny_checkpoint, **options) as llm:
        assert llm._engine.loop.limits.max_seq_len == 32768
        assert llm.startup_report.notices == []
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 8 << 20)
    with LLM(model=tiny_checkpoint, **options) as llm:
        kv = llm.startup_report.kv_cache
        assert kv is not None
        assert llm._engine.loop.limits.max_seq_len == kv.tokens < 32768
        assert any(f"max_seq_len is {kv.tokens}" in note for note in llm.startup_report.notices)


# ---- refused before anything is built ----


def test_engine_without_the_lifecycle_is_refused_with_graphs(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that says nothing counts as one that cannot; it is not even constructed."""

    class Foreign:
        def __init__(self, args: Any) -> None:
            made.append(args)

    made: list[Any] = []
    for backend in ("torch", "tensorrt_llm"):
        monkeypatch.setitem(llm_module._ENGINES, backend, Foreign)
        for chosen in (backend, "auto"):
            with pytest.raises(ValueError, match="engine Foreign does not capture"):
                LLM(model=tiny_checkpoint, backend=chosen, multimodal_config=GRAPHS, **SMALL)
            assert made == []
            LLM(model=tiny_checkpoint, backend=chosen, **SMALL)
            assert len(made) == 1
            made.clear()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            {"multimodel_config": {}},
            [
                "LLM: multimodel_config: unknown key 'multimodel_config'; did you mean "
                "'multimodal_config'? allowed: backend, device, dtype,",
                "keys without effect (docs/upstream-keys.md)",
            ],
        ),
        (
            {"multimodal_config": {"encoder_cuda_graphs": {}}, "dtype": "bf16"},
            [
                "LLM: dtype: Input should be 'auto', 'float32'",
                "LLM: multimodal_config.encoder_cuda_graphs: unknown key 'encoder_cuda_graphs'; "
                "did you mean 'encoder_cuda_graph'? allowed: encoder_cache_max_bytes, "
                "encoder_cuda_graph, and without effect: encoder_scheduling_policy, "
                "encoder_side_stream_max_ahead",
            ],
        ),
    ],
)
def test_wrong_arguments_are_named_with_what_is_allowed(
    tiny_checkpoint: Path, arguments: dict[str, Any], messages: list[str]
) -> None:
    with pytest.raises(ValueError, match="unknown key") as caught:
        LLM(model=tiny_checkpoint, **arguments)
    for message in messages:
        assert message in str(caught.value)


def test_tensorrt_llm_backend_is_a_clear_error(tiny_checkpoint: Path, calls: list[str]) -> None:
    with pytest.raises(ValueError, match="backend 'tensorrt_llm' is not available here"):
        LLM(model=tiny_checkpoint, backend="tensorrt_llm")
    assert calls == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device")
def test_missing_device_is_a_clear_error(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="device 'cuda:3' is not there: 0 CUDA devices found"):
        LLM(model=tiny_checkpoint, device="cuda:3")


def test_folders_that_cannot_be_loaded(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        LLM(model=tmp_path / "nowhere", device="cpu")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        LLM(model=tmp_path, device="cpu")
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny_checkpoint, pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no \*\.safetensors weights; it has pytorch_model\.bin"):
        LLM(model=pickled, device="cpu")


def test_code_in_a_checkpoint_does_not_run(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "with_code"
    shutil.copytree(tiny_checkpoint, folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace("{", '{"auto_map": {"AutoConfig": "evil.Config"},', 1)
    )
    (folder / "evil.py").write_text("raise SystemExit('this code ran')")
    with pytest.raises(ValueError, match="trust_remote_code=True if you trust it"):
        LLM(model=folder, device="cpu")


# ---- the end ----


def test_shutdown_twice_and_generate_after(tiny_checkpoint: Path) -> None:
    llm = LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **SMALL)
    begun = llm._engine.submit("Hello", SamplingParams(max_tokens=5))
    llm.shutdown()
    llm.shutdown()
    assert llm._engine.take(begun).outputs[0].finish_reason == "cancelled"
    for call in (
        lambda: llm.generate("Hello"),
        lambda: llm.generate([]),
        lambda: llm.encode_multimodal({"image": []}),
        lambda: llm._engine.submit("Hello"),
        lambda: llm._engine.step(),
    ):
        with pytest.raises(EngineClosedError, match="make a new LLM"):
            call()
    # What was learned stays readable.
    assert llm.startup_report.towers[0].status == "captured"
    assert llm.encoder_stats()["image"].items == 0
