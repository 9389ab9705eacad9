# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a failed capture must leave behind on a GPU: nothing (make test-gpu)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.backends import CudaGraphBackend
from tensorrt_llm_ext.graphs.runner import CaptureError
from tensorrt_llm_ext.towers import load_tower, setup_mm_encoder_cuda_graphs

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
VISION = {
    "depth": 3,
    "hidden_size": 144,
    "num_heads": 2,
    "intermediate_size": 256,
    "out_hidden_size": 96,
    "deepstack_visual_indexes": [1],
}
AUDIO = {
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 256,
    "output_dim": 64,
    "downsample_hidden_size": 32,
}
MODEL = {
    "model_type": "qwen3_omni_moe_thinker",
    "vision_config": VISION,
    "audio_config": AUDIO,
}


def make_tower(modality: str = "image") -> Any:
    return load_tower(MODEL, modality=modality, device=CUDA, dtype=torch.bfloat16, init_std=0.05)


def picture() -> list[dict[str, Any]]:
    rows = torch.randn(256, 1536, device=CUDA, dtype=torch.bfloat16)
    return [{"pixel_values": rows, "grid_thw": (1, 16, 16)}]


def in_capture() -> bool:
    return torch.cuda.is_current_stream_capturing()


def host_read(x: torch.Tensor) -> None:
    x.max().item()


def host_read_only_while_capturing(x: torch.Tensor) -> None:
    if in_capture():
        x.max().item()


def python_error(x: torch.Tensor) -> None:
    if in_capture():
        raise ValueError("a bug of the encoder")


def explicit_synchronize(x: torch.Tensor) -> None:
    if in_capture():
        torch.cuda.synchronize()


def out_of_memory(x: torch.Tensor) -> None:
    if in_capture():
        torch.empty(1 << 48, dtype=torch.uint8, device=CUDA)


FAULTS: dict[str, tuple[Callable[[torch.Tensor], None], str]] = {
    "host read": (host_read, "synchronizing"),
    "host read in capture": (host_read_only_while_capturing, "synchronizing"),
    "python error": (python_error, "ValueError: a bug of the encoder"),
    "explicit synchronize": (explicit_synchronize, "captur"),
    "out of memory": (out_of_memory, "out of memory"),
}


def break_bucket(tower: Any, tokens: int, fault: Callable[[torch.Tensor], None]) -> Any:
    forward = tower.encoder_forward

    def broken(inputs: Any, metadata: Any) -> Any:
        if inputs["pixel_values"].shape[0] == tokens:
            fault(inputs["positions"])
        return forward(inputs, metadata)

    tower.encoder_forward = broken
    return forward


def capture(tower: Any, **entry: Any) -> Any:
    # No bucket is left out because of what another test has found.
    graphs = {"image": {"max_batch_size": 8, "search_seconds": 0, **entry}}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=graphs))
    tower.setup_attn_metadata(max_num_tokens=512)
    return tower.capture_encoder_cuda_graphs()


@pytest.fixture(autouse=True)
def _libraries_loaded() -> None:
    """What a first run loads for good must not count as left behind."""
    tower = make_tower()
    capture(tower)
    tower.release_encoder_cuda_graphs()
    del tower
    gc.collect()


@pytest.mark.parametrize("name", list(FAULTS))
def test_fault_is_rolled_back(name: str) -> None:
    fault, cause = FAULTS[name]
    tower = make_tower()
    forward = break_bucket(tower, 128, fault)
    stream, rng = torch.cuda.current_stream(), torch.cuda.get_rng_state()
    gc.collect()
    backend = CudaGraphBackend(CUDA)
    before = backend.memory_in_use()
    report = capture(tower)
    assert report.status == "eager"
    assert "bucket 128x8" in report.reason
    assert cause in report.reason
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.get_sync_debug_mode() == 0
    assert gc.isenabled()
    assert torch.is_grad_enabled()
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    torch.randn(8, device=CUDA)  # the generator no longer counts as captured
    # The allocator still gives memory back.
    block = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    reserved = torch.cuda.memory_reserved()
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (1 << 30)
    gc.collect()
    assert backend.memory_in_use() - before < 32 << 20
    # It serves, and a later capture works.
    tower.encoder_forward = forward
    assert torch.isfinite(tower.encode(picture())[0].features).all()
    assert tower.encoder_stats().eager == {"capture_failed": 1}
    tower.release_encoder_cuda_graphs()
    assert capture(tower).status == "captured"
    tower.encode(picture())
    assert sum(tower.encoder_stats().replays.values()) == 1


@pytest.mark.parametrize("name", ["python error", "explicit synchronize"])
def test_other_towers_keep_their_graphs(name: str) -> None:
    vision, audio = make_tower(), make_tower("audio")
    break_bucket(vision, 128, FAULTS[name][0])
    for tower in (vision, audio):
        tower.setup_attn_metadata(max_num_tokens=512)
    config = MultimodalConfig(
        encoder_cuda_graph={"image": {"max_batch_size": 8}, "audio": {"max_batch_size": 4}}
    )
    clip = [{"input_features": torch.randn(128, 250, device=CUDA, dtype=torch.bfloat16)}]
    expected = audio.encode(clip, eager=True)[0].features
    reports = setup_mm_encoder_cuda_graphs({"audio": audio, "image": vision}, config)
    assert [r.status for r in reports] == ["captured", "eager"]
    got = audio.encode(clip)[0].features
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert error < 2e-2
    assert sum(audio.encoder_stats().replays.values()) == 1


def test_raise_stops_with_the_same_message() -> None:
    tower = make_tower()
    break_bucket(tower, 128, python_error)
    with pytest.raises(CaptureError, match="bucket 128x8 failed: ValueError: a bug of the"):
        capture(tower, on_capture_failure="raise")


def test_another_thread_may_allocate_while_we_capture() -> None:
    tower = make_tower()
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    torch.ones(1 << 20, device=CUDA).mul_(2).sum()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    report = capture(tower)
    stop.set()
    thread.join()
    assert errors == []
    assert report.status == "captured"
    tower.encode(picture())
    assert tower.encoder_stats().eager == {}


def test_garbage_with_device_tensors_does_not_end_a_capture() -> None:
    tower = make_tower()

    def litter(x: torch.Tensor) -> None:
        for _ in range(50):
            cycle: list[Any] = [torch.empty(1024, device=CUDA)]
            cycle.append(cycle)

    break_bucket(tower, 128, litter)
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # collect at every allocation
    try:
        assert capture(tower).status == "captured"
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()


def test_self_check_passes_for_real_graphs() -> None:
    report = capture(make_tower(), self_check=True)
    assert all(b.kept or "self-check" not in b.reason for b in report.buckets)


def test_rebound_weights_are_noticed_and_captured_again() -> None:
    tower = make_tower()
    capture(tower)
    items = picture()
    tower.merger.linear_fc2.weight.data = tower.merger.linear_fc2.weight.data * 3
    moved = tower.encode(items)[0].features
    assert tower.encoder_stats().eager == {"weights_moved": 1}
    tower.recapture()
    replayed = tower.encode(items)[0].features
    assert tower.encoder_stats().eager == {"weights_moved": 1}
    error = (replayed.float() - moved.float()).norm() / moved.float().norm()
    assert error < 2e-2
