# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The audio towers of Qwen3-Omni and Qwen3-ASR: each clip as transformers encodes it alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_tiny_checkpoint import make_tiny_checkpoint
from real_media import speech
from torch.utils._python_dispatch import TorchDispatchMode
from tower_oracle import AudioOracle

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.layout import SegmentRun
from tensorrt_llm_ext.towers import load_tower, modalities_of
from tensorrt_llm_ext.towers.registry import tower_entry

from .checks import (
    CPU,
    ORACLE,
    capture,
    check_isolation,
    check_replays,
    poison,
    relative_error,
    run_fake,
    worst,
)

MEL, OUT = 128, 40


def save(family: str, folder: Path, **audio: Any) -> AudioOracle:
    return AudioOracle(make_tiny_checkpoint(folder, family, audio={"output_dim": OUT, **audio}))


FAMILIES = ("qwen3_omni", "qwen3_asr")
CHUNKS = 10  # the budget of the captured towers, 130 tokens


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: Any, tmp_path_factory: Any) -> AudioOracle:
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def tower(saved: AudioOracle) -> Any:
    tower = load_tower(saved.folder, modality="audio")
    capture(tower, 13 * CHUNKS, max_batch_size=CHUNKS)
    return tower


def clips_of(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(MEL, frames, generator=generator) for frames in lengths]


def items_of(clips: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{"input_features": clip} for clip in clips]


def tokens(frames: int) -> int:
    """13 a second, and three halvings of the rest, as the model cards count."""
    rest = frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return frames // 100 * 13 + rest


LENGTHS = [
    [100, 101, 205],
    [3000],
    [1230, 333, 61],
    [205, 150],
    [801, 100],
    [1],
    [1, 2, 99, 100, 101, 199, 800, 801],
    [61],
    [61, 7, 33, 16, 17, 8, 9],
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_each_clip_is_what_transformers_says_of_it_alone(
    lengths: list[int], saved: AudioOracle, tower: Any
) -> None:
    clips = clips_of(lengths)
    expected = saved.ask(clips)
    outs = check_replays(tower, items_of(clips))
    assert [len(out.features) for out in outs] == [tokens(n) for n in lengths]
    assert worst(outs, expected) <= ORACLE
    assert worst(tower.encode(items_of(clips), eager=True), expected) <= ORACLE


def test_a_long_clip_is_cut_at_windows_and_replayed(saved: AudioOracle, tower: Any) -> None:
    clips = clips_of([12200, 61])
    steps = tower.plan([tower.pack_item(item).segment_lengths for item in items_of(clips)])
    assert sum(step.load.num_tokens for step in steps) == 123 * 13
    assert worst(check_replays(tower, items_of(clips)), saved.ask(clips)) <= ORACLE


@pytest.mark.parametrize("frames", [801, 861, 1661])
def test_a_short_tail_alone_in_a_replay_is_no_short_clip(saved: AudioOracle, frames: int) -> None:
    """It belongs to a long clip, whose last chunk was filled up in training."""
    tower = load_tower(saved.folder, modality="audio")
    capture(tower, 4096, buckets=[(104, 8)])
    clips = clips_of([frames])
    plan = tower.plan([tower.pack_item(items_of(clips)[0]).segment_lengths])
    assert plan[-1].segment_lengths == (13,)
    assert worst(check_replays(tower, items_of(clips)), saved.ask(clips)) <= ORACLE


def test_every_length_of_a_short_clip(saved: AudioOracle, tower: Any) -> None:
    """The masks of the columns: every border of three halvings, next to long and short clips."""
    lengths = [*range(1, 40), 47, 48, 49, 50, 51, 63, 64, 65, 75, 76, 77, 95, 96, 97, 98, 99]
    clips = clips_of(lengths)
    expected = saved.ask(clips)
    mates = items_of([*clips[::-1], *clips_of([150, 230])])
    together = tower.encode(mates)
    assert worst(together[-3::-1], expected) <= ORACLE
    for clip, wanted in list(zip(clips, expected, strict=True))[::7]:
        assert worst(tower.encode(items_of([clip])), [wanted]) <= ORACLE


@pytest.fixture(scope="module")
def sounds() -> list[torch.Tensor]:
    """A tone, a chord in noise, a click and speech, through transformers' own mel extractor."""
    from transformers import WhisperFeatureExtractor

    rate = 16000
    noise = np.random.default_rng(2)

    def seconds(n: float) -> np.ndarray:
        return np.arange(int(n * rate)) / rate

    t = seconds(8.3)
    rising = np.sin(2 * np.pi * (200 + 400 * t) * t)
    t = seconds(2.37)
    chord = sum(np.sin(2 * np.pi * f * t) for f in (220, 277, 330)) / 3
    chord = chord + 0.1 * noise.standard_normal(len(t))
    t = seconds(0.61)
    click = np.exp(-40 * t) * noise.standard_normal(len(t))
    spoken = speech("A sentence that nobody has to understand.")[: int(2.2 * rate)]
    waves = [wave.astype(np.float32) for wave in (rising, chord, click, spoken)]
    batch = WhisperFeatureExtractor(feature_size=MEL)(
        waves,
        sampling_rate=rate,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    lengths = batch["attention_mask"].sum(1).tolist()
    features = batch["input_features"]
    return [mel[:, :n] for mel, n in zip(features, lengths, strict=True)]


def test_sounds(saved: AudioOracle, tower: Any, sounds: list[torch.Tensor]) -> None:
    assert [s.shape[1] for s in sounds] == [830, 237, 61, 220]
    assert not sounds[1].is_contiguous()
    outs = check_replays(tower, items_of(sounds))
    assert worst(outs, saved.ask(sounds)) <= ORACLE


def test_batch_mates_change_nothing(tower: Any) -> None:
    check_isolation(tower, items_of(clips_of([61, 100, 1, 333, 801, 250, 99])))


# ---- inputs of every kind --------------------------------------------------------------------


def test_strides_and_float_types(tower: Any) -> None:
    for frames in (333, 61):
        (clip,) = clips_of([frames])
        wide = torch.zeros(2 * MEL, 3 * frames)
        wide[::2, 1::3] = clip
        for eager in (False, True):
            expected = tower.encode(items_of([clip]), eager=eager)
            for same in (
                wide[::2, 1::3],
                clip.T.contiguous().T,
                clip.double(),
                clip.clone().requires_grad_(),
            ):
                outs = tower.encode(items_of([same]), eager=eager)
                assert worst(outs, expected) == 0.0
                assert not outs[0].features.requires_grad
            half = tower.encode(items_of([clip.half()]), eager=eager)
            assert half[0].features.dtype == torch.float32
            assert 0 < worst(half, expected) < 1e-2


def test_changed_tails_at_the_same_number_of_chunks(saved: AudioOracle, tower: Any) -> None:
    """Short after long in the same bucket: nothing of the longer one is left."""
    for frames in (299, 201, 250, 208, 300, 209, 99, 1, 100, 61):
        clips = clips_of([frames], seed=frames)
        poison(tower)
        assert worst(tower.encode(items_of(clips)), saved.ask(clips)) <= ORACLE


def test_repeated_lengths_with_new_values(saved: AudioOracle, tower: Any) -> None:
    for seed in range(3):
        clips = clips_of([205, 61, 130], seed=seed)
        assert worst(tower.encode(items_of(clips)), saved.ask(clips)) <= ORACLE
        clip = clips[0]
        clip.mul_(1.5)  # the very same tensor, changed in place
        assert worst(tower.encode(items_of([clip])), saved.ask([clip])) <= ORACLE


def test_reordered_clips(saved: AudioOracle, tower: Any) -> None:
    clips = clips_of([61, 205, 8, 130])
    expected = saved.ask(clips)
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1], [1, 1, 0, 0]):
        outs = tower.encode(items_of([clips[i] for i in order]))
        assert worst(outs, [expected[i] for i in order]) <= ORACLE


def test_malformed_items(tower: Any) -> None:
    (good,) = items_of(clips_of([50]))
    bad: list[tuple[Any, str]] = [
        ({"input_features": torch.zeros(MEL, 0)}, rf"\[{MEL}, 0\]; expected \[{MEL}, frames\]"),
        ({"input_features": torch.zeros(MEL - 1, 9)}, rf"expected \[{MEL}, frames\] with at least"),
        ({"input_features": torch.zeros(1, MEL, 9)}, rf"\[1, {MEL}, 9\]; expected"),
        ({"input_features": torch.zeros(MEL)}, rf"\[{MEL}\]; expected"),
        ({"input_features": torch.zeros(MEL, 9).int()}, "torch.int32; expected a floating-point"),
        ({"input_features": np.zeros((MEL, 9))}, "is a ndarray; expected a floating-point tensor"),
        ({"features": 1}, r"keys are \['features'\]; expected \['input_features'\]"),
        ({1: 2, "a": 3}, r"keys are \[1, 'a'\]; expected \['input_features'\]"),
        (None, "keys are those of a NoneType; expected"),
        ({**good, "frames": 50}, r"'frames'\]; expected \['input_features'\]"),
    ]
    before = tower.encoder_stats()
    for item, message in bad:
        with pytest.raises(ValueError, match=f"^item 1: .*{message}"):
            tower.encode([good, item])
    assert tower.encoder_stats() == before


# ---- layout ----------------------------------------------------------------------------------


def attention_lengths(tower: Any, lengths: list[int]) -> list[tuple[int, ...]]:
    """What attends to itself, per clip, unused rows included."""
    adapter = tower.make_io_adapter()
    found = []
    for item in map(tower.pack_item, items_of(clips_of(lengths))):
        run = SegmentRun(0, 0, len(item.segment_lengths), 0, 0, item.num_tokens)
        found.append(tuple(adapter.segment_lengths([item], [run])))
    return found


def test_chunks_tokens_and_windows(tower: Any) -> None:
    assert attention_lengths(tower, [100, 101, 205]) == [(13,), (14, 12), (27, 12)]
    assert attention_lengths(tower, [3000]) == [(104, 104, 104, 78)]
    assert attention_lengths(tower, [1230, 333, 61]) == [(104, 56, 9), (44, 8), (8, 5)]
    assert attention_lengths(tower, [800, 801]) == [(104,), (104, 1, 12)]
    assert attention_lengths(tower, [12200]) == [(104,) * 15 + (26,)]
    (long,) = map(tower.pack_item, items_of(clips_of([12200])))
    assert long.segment_lengths == (104,) * 15 + (26,)
    plan = tower.plan([long.segment_lengths])  # ten chunks hold a window, and the last two hold two
    assert [step.segment_lengths for step in plan] == [(104,)] * 14 + [(104, 26)]


def test_runs_in_the_middle_of_a_clip(tower: Any) -> None:
    """Unused rows belong to the clip's last window and to no other."""
    (item,) = map(tower.pack_item, items_of(clips_of([1730])))
    adapter = tower.make_io_adapter()
    assert item.segment_lengths == (104, 104, 26)
    runs = [SegmentRun(0, 0, 1, 0, 0, 104), SegmentRun(0, 2, 1, 208, 208, 26)]
    assert tuple(adapter.segment_lengths([item], runs)) == (104, 17, 9)
    assert tuple(adapter.segment_lengths([item], runs[:1])) == (104,)


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_staging_is_one_copy_per_run_of_whole_windows(tower: Any) -> None:
    adapter = tower.make_io_adapter()
    items = [tower.pack_item(i) for i in items_of(clips_of([2400, 333, 61, 100]))]
    # Three windows at once; three chunks and a tail; a tail; a chunk; slack.
    runs = [
        SegmentRun(0, 0, 3, 0, 0, 312),
        SegmentRun(1, 0, 1, 0, 312, 52),
        SegmentRun(2, 0, 1, 0, 364, 13),
        SegmentRun(3, 0, 1, 0, 377, 13),
    ]
    inputs = adapter.allocate_inputs(32 * 13, CPU)
    adapter.fill(inputs, items, runs)  # the masks are cached now
    with Operations() as seen:
        adapter.fill(inputs, items, runs)
    copies = seen.names.count("copy_")
    assert copies == 3 + 2 + 2  # whole chunks, tails, masks
    views = {"slice", "view", "transpose", "select", "unsqueeze", "as_strided", "alias"}
    assert set(seen.names) <= views | {"copy_", "zero_", "detach"}, "a temporary was made"
    assert seen.names.count("zero_") == 3  # after each tail, and the slack


# ---- captured region and configuration -------------------------------------------------------


def test_captured_region_reads_nothing_from_the_device(saved: AudioOracle) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    factory = tower_entry(saved.model_type, "audio").factory
    assert run_fake(lambda: factory(config), Bucket(20 * 13, 20)) == {"features": (260, OUT)}
    assert "audio" in modalities_of(saved.folder)


def test_buckets_count_chunks(saved: AudioOracle) -> None:
    tower = load_tower(saved.folder, modality="audio")
    report = capture(tower, 4096, max_batch_size=13)
    assert [(b.num_tokens, b.max_segments) for b in report.buckets] == [
        (13 * n, n) for n in (1, 2, 4, 6, 8, 10, 12, 13)
    ]
    tower.encode(items_of(clips_of([500, 150])))
    stats = tower.encoder_stats()
    assert stats.replays == {"104x8": 1}
    assert (stats.real_tokens, stats.padded_tokens) == (7 * 13, 13)


def ladder(tower: Any, chunks: int, budget: int = 1 << 20) -> list[int]:
    buckets = tower.make_io_adapter().buckets(
        explicit=None, max_segments=chunks, token_budget=budget, enable_padding=True
    )
    assert all(b.num_tokens == 13 * b.max_segments for b in buckets)
    return [b.max_segments for b in buckets]


def test_ladder(tower: Any) -> None:
    assert ladder(tower, 1) == [1]
    assert ladder(tower, 7) == [1, 2, 4, 6, 7]
    assert ladder(tower, 64) == [1, 2, 4, 6, 8, 10, 12, 15, 18, 22, 26, 30, 37, 46, 57, 64]
    for top in range(1, 300):
        sizes = ladder(tower, top)
        assert sizes[-1] == top
        assert sizes == sorted(set(sizes))
        assert sizes[:-1][:5] == [n for n in (1, 2, 4, 6, 8) if n < top]
        assert all(b <= a * 5 / 4 for a, b in itertools.pairwise(sizes) if a >= 8)
        assert len(sizes) < 30


def test_budgets_that_cannot_hold_the_chunks(saved: AudioOracle, tower: Any) -> None:
    assert ladder(tower, 4, budget=52)[-1] == 4
    with pytest.raises(
        ValueError,
        match=r"4 audio chunks take 52 tokens, 13 each, but the budget is 51\. Set "
        r"max_num_tokens: 52 or max_batch_size: 3\.",
    ):
        ladder(tower, 4, budget=51)
    fresh = load_tower(saved.folder, modality="audio")
    with pytest.raises(ValueError, match="5 audio chunks take 65 tokens"):
        capture(fresh, 64, max_batch_size=5)
    assert fresh.encoder_stats().items == 0


def test_explicit_buckets(saved: AudioOracle) -> None:
    tower = load_tower(saved.folder, modality="audio")
    with pytest.raises(ValueError, match=r"bucket \(51, 4\): 4 audio chunks take 52 .*\[52, 4\]"):
        capture(tower, 4096, buckets=[(13, 1), (51, 4)])
    report = capture(tower, 4096, buckets=[(104, 8), (39, 3)])
    assert [(b.num_tokens, b.max_segments) for b in report.buckets] == [(39, 3), (104, 8)]
    clips = clips_of([205, 61, 801])
    assert worst(check_replays(tower, items_of(clips)), saved.ask(clips)) <= ORACLE
    # A window that no bucket holds runs eagerly, and says so.
    small = load_tower(saved.folder, modality="audio")
    capture(small, 4096, buckets=[(39, 3)])
    assert worst(small.encode(items_of(clips)), saved.ask(clips)) <= ORACLE
    assert small.encoder_stats().eager == {"too_many_tokens": 1}


def test_exact_buckets_only(saved: AudioOracle) -> None:
    tower = load_tower(saved.folder, modality="audio")
    capture(tower, 4096, buckets=[(39, 3)], enable_padding=False)
    clips = clips_of([205, 150])
    for clip in clips:
        assert worst(tower.encode(items_of([clip])), saved.ask([clip])) <= ORACLE
    stats = tower.encoder_stats()
    assert (stats.replays, stats.eager) == ({"39x3": 1}, {"no_exact_bucket": 1})


# ---- config and checkpoint -------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "change",
    [
        {"n_window_infer": 200},
        {"activation_function": "silu"},
        {"num_mel_bins": 20},
        {"encoder_layers": 1, "encoder_attention_heads": 4},
    ],
    ids=str,
)
def test_keys_of_the_config(family: str, change: dict[str, Any], tmp_path: Path) -> None:
    saved = save(family, tmp_path, **change)
    tower = load_tower(tmp_path, modality="audio")
    clips = [clip[: change.get("num_mel_bins", MEL)] for clip in clips_of([850, 61])]
    assert worst(tower.encode(items_of(clips)), saved.ask(clips)) <= ORACLE


def test_every_weight_is_used(saved: AudioOracle) -> None:
    tower = load_tower(saved.folder, modality="audio")
    items = items_of(clips_of([61, 205]))
    before = tower.encode(items)
    for name, parameter in tower.named_parameters():
        with torch.no_grad():
            parameter[-1] += 0.5
            assert worst(tower.encode(items), before) > 0, name
            parameter[-1] -= 0.5
    assert worst(tower.encode(items), before) <= ORACLE


def check_folder(saved: AudioOracle) -> None:
    clips = clips_of([61, 205])
    tower = load_tower(saved.folder, modality="audio")
    assert worst(tower.encode(items_of(clips)), saved.ask(clips)) <= ORACLE


@pytest.mark.parametrize("family", ["qwen3_omni_thinker", "qwen3_asr_original"])
def test_other_forms(family: str, tmp_path: Path) -> None:
    """``save_pretrained`` of the thinker drops its prefix and the nesting of the config, and the
    first Qwen3-ASR had Qwen3-Omni's tower under its names, by the other model type."""
    check_folder(save(family, tmp_path))


def test_the_aligner_of_qwen3_asr(tmp_path: Path) -> None:
    """Another head, the same tower under the same keys."""
    from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

    folder = save("qwen3_asr", tmp_path).folder
    Qwen3ASRForTokenClassification.from_pretrained(folder).save_pretrained(tmp_path / "aligner")
    check_folder(AudioOracle(tmp_path / "aligner"))


def test_half_precision_is_clamped(saved: AudioOracle) -> None:
    """Residuals beyond what fp16 holds stay finite, as in transformers."""
    tower = load_tower(saved.folder, modality="audio", dtype=torch.float16)
    items = items_of(clips_of([61]))
    for block in tower.blocks:
        block.mlp.linear_fc2.bias.fill_(50000.0)
    for eager in (False, True):
        (out,) = tower.encode(items, eager=eager)
        assert out.features.dtype == torch.float16
        assert torch.isfinite(out.features).all()


def test_bf16_is_as_good_as_transformers(saved: AudioOracle, sounds: list[torch.Tensor]) -> None:
    expected = saved.ask(sounds)
    tower = load_tower(saved.folder, modality="audio", dtype=torch.bfloat16)
    ours = tower.encode(items_of(sounds))
    assert all(out.features.dtype == torch.bfloat16 for out in ours)
    errors = [
        relative_error(o.features.float(), e["features"])
        for o, e in zip(ours, expected, strict=True)
    ]
    assert max(errors) < 2e-2
