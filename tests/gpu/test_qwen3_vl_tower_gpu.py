# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-VL tower in real CUDA graphs (make test-gpu)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from published_towers import CUDA, QWEN3_VL_8B
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.backends import CudaGraphBackend
from tensorrt_llm_ext.graphs.layout import Eager, Replay
from tensorrt_llm_ext.towers import load_tower

pytestmark = pytest.mark.gpu

SMALL = {
    "depth": 3,
    "hidden_size": 144,
    "num_heads": 2,
    "intermediate_size": 256,
    "out_hidden_size": 96,
    "deepstack_visual_indexes": [1],
    "num_position_embeddings": 2304,
}


@pytest.fixture(autouse=True, scope="module")
def _fp32_means_fp32() -> Iterator[None]:
    """transformers embeds patches by a convolution, which cuDNN runs in TF32 unless told not to."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def make_tower(vision: dict[str, Any], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Any:
    config = {"model_type": "qwen3_vl", "vision_config": vision}
    return load_tower(config, device=CUDA, dtype=dtype, seed=seed, init_std=0.05)


def capture(tower: Any, budget: int = 2048, **entry: Any) -> Any:
    # No bucket is left out because of what another test has found.
    entry = {"search_seconds": 0, **(entry or {"max_batch_size": 8})}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph={"image": entry}))
    tower.setup_attn_metadata(max_num_tokens=budget)
    return tower.capture_encoder_cuda_graphs()


def make_items(grids: list[tuple[int, int, int]], seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(t * h * w, 1536, generator=generator) for t, h, w in grids]
    return [
        {"pixel_values": r.to(CUDA, torch.bfloat16), "grid_thw": g}
        for r, g in zip(rows, grids, strict=True)
    ]


def oracle(tower: Any, vision: dict[str, Any], dtype: torch.dtype) -> Qwen3VLVisionModel:
    """transformers' tower with the same weights (theirs keep fp32 rope frequencies in bf16)."""
    with CUDA:
        model = Qwen3VLVisionModel(Qwen3VLVisionConfig(**vision)).eval()
    disk = tower.disk_tensors()
    weights = {
        disk[n][0].key: p.detach().view(disk[n][0].shape) for n, p in tower.named_parameters()
    }
    model.load_state_dict(weights, strict=True)
    frequencies = model.rotary_pos_emb.inv_freq.clone()
    model.to(dtype)
    model.rotary_pos_emb.inv_freq = frequencies
    return model


def run_oracle(model: Qwen3VLVisionModel, items: list[dict[str, Any]], dtype: torch.dtype) -> list:
    grid = torch.tensor([item["grid_thw"] for item in items], device=CUDA)
    pixels = torch.cat([item["pixel_values"] for item in items]).to(dtype)
    with torch.no_grad():
        out = model(pixels, grid_thw=grid)
    return [out.pooler_output, *out.deepstack_features]


def joined(outputs: list[Any]) -> list[torch.Tensor]:
    columns = [[o.features, *o.deepstack] for o in outputs]
    return [torch.cat(parts) for parts in zip(*columns, strict=True)]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def assert_all_replayed(tower: Any) -> None:
    assert tower.encoder_stats().eager == {}


def test_dirty_buckets_change_nothing() -> None:
    """Small after large after small, and poisoned arenas: the same bits each time."""
    tower = make_tower(SMALL)
    capture(tower)
    small, large = make_items([(1, 6, 6)], 1), make_items([(1, 30, 30), (4, 12, 12)], 2)
    first, first_large = joined(tower.encode(small)), joined(tower.encode(large))
    for poison in (float("nan"), 1e30):
        tower._runner._inputs["pixel_values"].fill_(poison)
        assert all(map(torch.equal, joined(tower.encode(small)), first))
        assert all(map(torch.equal, joined(tower.encode(large)), first_large))
    assert_all_replayed(tower)


def test_outputs_belong_to_the_caller() -> None:
    tower = make_tower(SMALL)
    capture(tower)
    kept = tower.encode(make_items([(1, 16, 16)], 1))[0].features
    before = kept.clone()
    tower.encode(make_items([(1, 16, 16)], 2))
    assert torch.equal(kept, before)


def test_encode_never_waits_for_the_device() -> None:
    """Inputs on the device: no synchronisation, on a new layout and on a repeated one."""
    tower = make_tower(SMALL)
    capture(tower)
    batches = [make_items([(1, 16, 16)] * 3), make_items([(2, 6, 8), (1, 10, 4)])]
    tower.encode(batches[0])
    torch.cuda.synchronize()
    torch._C._cuda_set_sync_debug_mode(2)
    try:
        for batch in (*batches, *batches):
            tower.encode(batch)
    finally:
        torch._C._cuda_set_sync_debug_mode(0)


def test_two_streams_and_two_threads_are_kept_apart() -> None:
    tower = make_tower(SMALL)
    capture(tower)
    batches = [make_items([(1, 20, 20)] * 4, seed) for seed in range(2)]
    expected = [joined(tower.encode(batch)) for batch in batches]
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                got = joined(tower.encode(batches[index]))
                if not all(map(torch.equal, got, expected[index])):
                    wrong.append(index)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_long_video_is_cut_at_frame_pairs_and_replayed() -> None:
    tower = make_tower(SMALL)
    capture(tower)
    items = make_items([(40, 12, 12), (1, 8, 8)])
    exact = run_oracle(oracle(tower, SMALL, torch.float32), items, torch.float32)
    got = joined(tower.encode(items))
    assert all(relative(*pair) < 3e-2 for pair in zip(got, exact, strict=True))
    stats = tower.encoder_stats()
    assert stats.eager == {}
    assert stats.segments == 41
    assert sum(stats.replays.values()) > 1


def test_a_segment_above_the_largest_bucket_runs_eagerly() -> None:
    tower = make_tower(SMALL)
    capture(tower, budget=1024)
    items = make_items([(1, 40, 40), (1, 8, 8)])
    steps = tower.plan([tower.pack_item(item).segment_lengths for item in items])
    assert {type(step) for step in steps} == {Replay, Eager}
    exact = run_oracle(oracle(tower, SMALL, torch.float32), items, torch.float32)
    got = joined(tower.encode(items))
    assert all(relative(*pair) < 3e-2 for pair in zip(got, exact, strict=True))


def test_fp32_uses_the_block_mask_and_matches() -> None:
    tower = make_tower(SMALL, torch.float32)
    report = capture(tower, budget=512)
    assert report.attention == "block_mask"
    items = make_items([(1, 10, 12), (2, 6, 6)])
    exact = run_oracle(oracle(tower, SMALL, torch.float32), items, torch.float32)
    got = joined(tower.encode(items))
    assert all(relative(*pair) < 1e-5 for pair in zip(got, exact, strict=True))
    assert_all_replayed(tower)


def test_weights_changed_in_place_are_seen_by_a_replay() -> None:
    tower = make_tower(SMALL)
    capture(tower)
    items = make_items([(1, 16, 16)])
    before = tower.encode(items)[0].features
    with torch.no_grad():
        tower.merger.linear_fc2.weight.mul_(2)
    after = tower.encode(items)[0].features
    assert not torch.equal(after, before)
    assert relative(after, tower.encode(items, eager=True)[0].features) < 1e-2


def test_capture_is_ordered_accounted_and_given_back() -> None:
    tower = make_tower(QWEN3_VL_8B)
    tower.setup_attn_metadata(max_num_tokens=16384)
    tower.encode(make_items([(1, 64, 64)]))  # libraries and workspaces loaded
    gc.collect()
    backend = CudaGraphBackend(CUDA)
    before = backend.memory_in_use()
    eager_slots = tower.attn_metadata.cu_seqlens.data_ptr(), tower.attn_metadata.max_segments
    report = capture(tower, budget=16384)
    assert eager_slots[1] == tower.attn_metadata.max_segments
    taken = backend.memory_in_use() - before
    print(
        f"{len(report.buckets)} buckets, {report.capture_seconds:.1f} s, "
        f"{report.graph_memory_bytes / 2**20:.0f} MiB reported, {taken / 2**20:.0f} MiB measured"
    )
    assert report.accelerated
    assert sum(b.kept for b in report.buckets) >= 30  # of 64: others are as fast
    assert abs(report.graph_memory_bytes - taken) < 64 << 20, (report.graph_memory_bytes, taken)
    tower.release_encoder_cuda_graphs()
    tower.release_encoder_cuda_graphs()
    gc.collect()
    # Driver-side memory of graphs stays with the process; the pool and the arenas come back.
    assert backend.memory_in_use() - before < 192 << 20


def test_graphs_keep_their_workspaces_when_torch_gives_back_its_own() -> None:
    """As torch's compiler does around graphs of its own; they were unmapped then."""
    tower = make_tower(QWEN3_VL_8B)
    there = {s["address"] for s in torch.cuda.memory_snapshot()}  # streams of earlier tests
    capture(tower, budget=4096, buckets=[[256, 8], [4096, 8]], prune_slower_than_eager=False)
    batches = [make_items([(1, 16, 16)]), make_items([(1, 32, 32)] * 4)]
    before = [[out.features.clone() for out in tower.encode(batch)] for batch in batches]
    held = [
        s
        for s in torch.cuda.memory_snapshot()
        if s["stream"] and s["allocated_size"] >= 1 << 20  # not the default stream's
    ]
    pools = {tuple(s["segment_pool_id"]) for s in held}
    assert pools - {(0, 0)}
    new = {tuple(s["segment_pool_id"]) for s in held if s["address"] not in there}
    assert (0, 0) not in new  # where anybody gets memory from
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    stranger = torch.full((1 << 30,), 255, dtype=torch.uint8, device=CUDA)  # NaN, if it is read
    for batch, expected in zip(batches, before, strict=True):
        for out, features in zip(tower.encode(batch), expected, strict=True):
            assert torch.equal(out.features, features)
    assert (stranger == 255).all()


def test_a_hidden_device_read_rolls_the_capture_back() -> None:
    tower = make_tower(SMALL)
    forward = tower.encoder_forward

    def reads_the_device(inputs: Any, metadata: Any) -> Any:
        if inputs["pixel_values"].shape[0] == 128:
            inputs["positions"].max().item()
        return forward(inputs, metadata)

    tower.encoder_forward = reads_the_device
    stream = torch.cuda.current_stream()
    report = capture(tower, budget=512)
    assert report.status == "eager"
    assert "bucket 128x8" in report.reason
    assert "synchronizing" in report.reason
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.get_sync_debug_mode() == 0
    assert gc.isenabled()
    block = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    reserved = torch.cuda.memory_reserved()
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (1 << 30)
    items = make_items([(1, 16, 16)])
    tower.encoder_forward = forward
    assert torch.isfinite(tower.encode(items)[0].features).all()
    assert tower.encoder_stats().eager == {"capture_failed": 1}


def test_capture_release_cycles_stay_flat() -> None:
    tower = make_tower(SMALL)
    backend = CudaGraphBackend(CUDA)
    sizes = []
    for _ in range(6):
        capture(tower)
        tower.encode(make_items([(1, 16, 16)]))
        tower.release_encoder_cuda_graphs()
        gc.collect()
        sizes.append(backend.memory_in_use())
    assert max(sizes) - sizes[0] < 64 << 20
