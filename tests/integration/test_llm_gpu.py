# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The engine on a CUDA GPU: real graphs, driver memory, half precision."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine import kv_cache

pytestmark = pytest.mark.gpu

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
# Nothing is dropped for its speed: what these tests look at is replayed.
IMAGE_GRAPHS = {"buckets": [[96, 4], [320, 8]], "prune_slower_than_eager": False}
GRAPHS = {"encoder_cuda_graph": {"image": IMAGE_GRAPHS}}
LIMITS = {
    "device": "cuda",
    "encoder_max_num_tokens": 320,
    "max_seq_len": 512,
    "max_num_tokens": 1024,
}


def batch(picture: Image.Image, clip: np.ndarray) -> list[Any]:
    return [
        {"prompt": f"{IMAGE}What?", "multi_modal_data": {"image": picture}},
        "The sky",
        {"prompt": f"{VIDEO}And?", "multi_modal_data": {"video": [clip]}},
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_give_the_eager_tokens(
    tiny_checkpoint: Path, picture: Image.Image, clip: np.ndarray, dtype: str
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = batch(picture, clip)
    with LLM(model=tiny_checkpoint, dtype=dtype, multimodal_config=GRAPHS, **LIMITS) as llm:
        graphs = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
        assert sum(llm.encoder_stats()["image"].replays.values()) > 0
        assert llm.startup_report.towers[0].accelerated
    with LLM(model=tiny_checkpoint, dtype=dtype, **LIMITS) as llm:
        assert [out.outputs[0].token_ids for out in llm.generate(prompts, params)] == graphs


def test_float32_tokens_are_the_oracles(
    tiny_checkpoint: Path, picture: Image.Image, clip: np.ndarray, oracle: Any
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with LLM(model=tiny_checkpoint, dtype="float32", multimodal_config=GRAPHS, **LIMITS) as llm:
        outs = llm.generate(batch(picture, clip), params)
    expected = [
        oracle.inputs(f"{IMAGE}What?", [picture]),
        oracle.inputs("The sky"),
        oracle.inputs(f"{VIDEO}And?", videos=[clip]),
    ]
    for out, inputs in zip(outs, expected, strict=True):
        assert out.outputs[0].token_ids == oracle.generate(inputs, 12, eos_token_id=[])


def test_kv_cache_is_sized_from_driver_memory(tiny_checkpoint: Path) -> None:
    with LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **LIMITS) as llm:
        kv = llm.startup_report.kv_cache
        assert kv is not None
        free, total = torch.cuda.mem_get_info()
        assert kv.free_bytes <= total
        assert kv.free_bytes == pytest.approx(free, rel=0.05)
        assert kv.reserved_bytes > 0
        assert kv.tokens <= kv.tokens_without_graphs


def test_kv_cache_and_the_largest_eager_picture_fit_into_what_was_free(
    tiny_checkpoint: Path, photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests fill the KV cache to the admission limit while a picture is encoded eagerly."""
    free = 300 << 20
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: free)
    limits = {**LIMITS, "max_seq_len": 8192, "max_num_tokens": 8192, "max_batch_size": 128}
    config = {**GRAPHS, "encoder_cache_max_bytes": "16MiB"}
    options = {"dtype": "bfloat16", "multimodal_config": config, **limits}
    with LLM(model=tiny_checkpoint, **options) as llm:
        loop, kv = llm._engine.loop, llm.startup_report.kv_cache
        assert kv is not None
        count = -(-kv.tokens // 8192)
        assert 8 <= count <= 128
        span, new = kv.tokens // count, count + 8
        params = SamplingParams(max_tokens=new, ignore_eos=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ids = [llm._engine.submit([7] * (span - new), params) for _ in range(count - 1)]
        large = {
            "prompt": f"{IMAGE}What?",
            "multi_modal_data": {"image": photo.resize((1024,) * 2)},
        }
        ids.append(llm._engine.submit(large, params))
        most = 0
        while not loop.idle:
            llm._engine.step()
            most = max(most, sum(loop._generator.batch.lengths))
        assert [llm._engine.take(i).error for i in ids] == [None] * count
        stats = llm.encoder_stats()["image"]
        assert (stats.real_tokens, stats.replays) == (1024, {})
        assert most > 0.95 * (count - 1) * span
        # The cache's block was there before.
        assert torch.cuda.max_memory_allocated() - before <= free - (16 << 20)


def test_reserve_is_what_the_largest_eager_picture_takes(
    tiny_checkpoint: Path, photo: Image.Image
) -> None:
    with LLM(model=tiny_checkpoint, dtype="bfloat16", **LIMITS) as llm:
        media, tower = llm._engine.encoders.media, llm._engine._towers["image"]
        item = media.load(media.plan("image", photo.resize((512, 512))))
        rows = item["pixel_values"].shape[0]
        device = torch.device("cuda", 0)
        tower.encode([item], eager=True)
        real = kv_cache.measure_peak(device, lambda: tower.encode([item], eager=True))
        dry = kv_cache.measure_peak(device, lambda: tower.dry_run(rows))
        assert 0.98 * real <= dry <= 1.2 * real
        kv = llm.startup_report.kv_cache
        assert kv is not None
        assert kv.reserved_bytes >= dry


def test_graphs_are_given_up_until_one_request_fits(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the driver's memory so little is called free that one bucket, or all, have to go."""
    read, options = kv_cache.free_memory, {"dtype": "bfloat16", **LIMITS}
    image = {**IMAGE_GRAPHS, "buckets": [[320, 8], [8192, 8]]}
    graphs = {"encoder_cuda_graph": {"image": image}, "encoder_cache_max_bytes": 0}
    with LLM(model=tiny_checkpoint, multimodal_config=graphs, **options) as llm:
        report = llm.startup_report
        taken, kv = report.towers[0].graph_memory_bytes, report.kv_cache
        assert taken > 16 << 20
    gc.collect()
    needed = (512 * kv.bytes_per_token * 6 / 4 + kv.reserved_bytes) / 0.9
    for share, kept in ((0.7, [320]), (0.03, [])):
        start: list[int] = []

        def little(device: torch.device, share: float = share, start: list[int] = start) -> int:
            free = read(device)
            if not start:  # all graphs are there
                start.append(free - int(needed - (1 - share) * taken))
            return free - start[0]

        monkeypatch.setattr(kv_cache, "free_memory", little)
        with LLM(model=tiny_checkpoint, multimodal_config=graphs, **options) as llm:
            (tower,) = llm.startup_report.towers
            assert [b.num_tokens for b in tower.buckets if b.kept] == kept
            assert any("given up" in notice for notice in llm.startup_report.notices)
            assert llm.startup_report.kv_cache.tokens >= 512
        gc.collect()


def test_known_media_come_from_the_cache(
    tiny_checkpoint: Path, picture: Image.Image, clip: np.ndarray
) -> None:
    """On two streams, without a wait for the device, and bit for bit what was encoded."""
    data = {"image": [picture], "video": [clip]}
    config = {**GRAPHS, "encoder_cache_max_bytes": 10 * 38 * 64 * 3 * 2}
    with LLM(model=tiny_checkpoint, dtype="bfloat16", multimodal_config=config, **LIMITS) as llm:
        first = llm.encode_multimodal(data)
        encoded, side = llm.encoder_stats(), torch.cuda.Stream()
        torch.cuda.synchronize()
        for stream in (torch.cuda.current_stream(), side) * 5:
            with torch.cuda.stream(stream):
                torch.cuda.set_sync_debug_mode("error")
                try:
                    again = llm.encode_multimodal(data)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                same = [
                    torch.equal(a, b)
                    for modality, outputs in first.items()
                    for ours, theirs in zip(outputs, again[modality], strict=True)
                    for a, b in zip(
                        (ours.features, *ours.deepstack),
                        (theirs.features, *theirs.deepstack),
                        strict=True,
                    )
                ]
                assert same == [True] * 6
        assert again["image"][0].features.device == first["image"][0].features.device
        stats = llm.encoder_cache_stats()
        assert (stats.hits, stats.misses, llm.encoder_stats()) == (20, 2, encoded)
        assert stats.bytes == 38 * 64 * 3 * 2


def test_the_block_of_the_cache_is_there_from_the_start(
    tiny_checkpoint: Path, picture: Image.Image, picture2: Image.Image
) -> None:
    config = {"encoder_cache_max_bytes": "64MiB"}
    with LLM(model=tiny_checkpoint, multimodal_config=config, **LIMITS) as llm:
        block = llm._engine.encoders.cache._arena._bytes
        assert (block.device.type, block.numel()) == ("cuda", 64 << 20)
        llm.encode_multimodal({"image": [picture]})
        gc.collect()
        before = torch.cuda.memory_allocated()
        llm.encode_multimodal({"image": [picture2, picture]})
        gc.collect()
        assert llm.encoder_cache_stats().entries == 2
        assert torch.cuda.memory_allocated() - before < 1 << 20


def test_memory_comes_back_after_shutdown(tiny_checkpoint: Path) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    llm = LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **LIMITS)
    report = llm.startup_report
    assert report.towers[0].backend == "cuda_graph"
    assert report.kv_cache is not None
    assert report.kv_cache.tokens < report.kv_cache.tokens_without_graphs
    llm.shutdown()
    llm.shutdown()
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20
