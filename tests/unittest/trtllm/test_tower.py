# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A tower of ours answers what upstream's engine and models ask of an encoder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.towers.loading import load_tower
from tensorrt_llm_ext.trtllm import items, models
from tensorrt_llm_ext.trtllm.models import FAMILIES, take_over
from tensorrt_llm_ext.trtllm.probe import ItemContractError
from tensorrt_llm_ext.trtllm.tower import GridHost, RadioHost

from .small import PREFIX, QWEN, Params, host_tower, request, rows


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ((), {"max_num_tokens": 48}),
        ((), {"max_num_tokens": 48, "attention_metadata_capacity": {"attention": 5}}),
        ((), {"max_num_tokens": 48, "attention_metadata_capacity": None}),
        ((), {"max_num_items": 3, "max_num_tokens": 48}),
        ((), {"max_num_requests": 3, "max_num_tokens": 48}),
        ((48,), {}),
        ((3, 48), {}),
        ((3,), {"max_num_tokens": 48, "attention_metadata_capacity": {"attention": 5}}),
    ],
)
def test_every_variant_of_metadata_setup(limits: tuple[int, ...], named: dict[str, Any]) -> None:
    host = host_tower()
    host.setup_attn_metadata(*limits, **named)
    capacity = named.get("attention_metadata_capacity") or {"attention": 48 // 4}
    assert host.tower.attn_metadata.max_segments == capacity["attention"]
    assert host.attn_metadata is host.tower.attn_metadata
    assert host.tower._eager_token_budget == 48


@pytest.mark.parametrize(
    ("limits", "named"), [((), {}), ((1, 2, 3), {}), ((), {"max_num_tokens": 4, "max_frames": 2})]
)
def test_unknown_metadata_setup_is_refused(limits: tuple[int, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="trtllm-ext doctor"):
        host_tower().setup_attn_metadata(*limits, **named)


def test_capacity_in_both_forms() -> None:
    host = host_tower()
    assert host.get_encoder_attention_metadata_capacity(64) == {"attention": 16}
    assert host.get_encoder_attention_metadata_capacity(2, 64) == {"attention": 16}
    assert host.get_encoder_attention_metadata_capacity(max_num_tokens=3) == {"attention": 1}


def test_forward_is_what_upstreams_wrapper_expects() -> None:
    host = host_tower()
    pixels, grid = rows((1, 4, 4), (2, 2, 4))
    features, deepstack = host(pixels, grid_thw=grid)
    one = host.tower.encode([{"pixel_values": pixels[:16], "grid_thw": (1, 4, 4)}])[0]
    assert features.shape == (8, 16)
    torch.testing.assert_close(features[:4], one.features)
    torch.testing.assert_close(deepstack[0][:4], one.deepstack[0])
    plain = host_tower(GridHost)
    torch.testing.assert_close(plain(pixels, grid), features)


def test_weights_come_from_the_same_keys() -> None:
    host = host_tower(seed=1)
    other = load_tower(QWEN, seed=2)
    on_disk = {
        PREFIX + tensor.key: parameter.detach().reshape(tensor.shape)
        for name, parameter in other.named_parameters()
        for tensor in other.disk_tensors()[name]
    }
    host.load_weights({**on_disk, "model.language_model.norm.weight": torch.ones(1)})
    for name, parameter in host.tower.named_parameters():
        assert torch.equal(parameter, dict(other.named_parameters())[name]), name
    on_disk.pop(PREFIX + "merger.norm.bias")
    with pytest.raises(ValueError, match=r"missing model.visual.merger.norm.bias"):
        host.load_weights(on_disk)
    with pytest.raises(ValueError, match="in parts"):
        host.load_weights(on_disk, allow_partial_loading=True)


# ---- items ----


def test_rows_of_requests_in_order_with_deepstack_beside_features() -> None:
    host = host_tower()
    first = request(image=((1, 4, 4), (1, 2, 2)), video=((2, 2, 2),))
    second = request(image=((1, 2, 4),))
    out = host.encode_multimodal_inputs([first, second])
    assert out.shape == (4 + 1 + 2 + 2, 32)
    features, deepstack = host(
        first.multimodal_data["video"]["pixel_values_videos"], torch.tensor([[2, 2, 2]])
    )
    torch.testing.assert_close(out[5:7], torch.cat([features, *deepstack], dim=1))


def with_metadata(param: Params, refs: list[tuple[str, int]], lengths: list[int]) -> Params:
    param.multimodal_data["metadata"] = SimpleNamespace(
        item_refs=refs, output_embedding_lengths=lengths
    )
    return param


@pytest.fixture
def upstream_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's look-up of the items' order."""
    look_up = lambda data: data.get("metadata")  # noqa: E731
    monkeypatch.setattr(items, "find", lambda *names: look_up)


@pytest.mark.usefixtures("upstream_metadata")
def test_items_in_order_of_the_prompt() -> None:
    host = host_tower()
    grids = {"image": ((1, 4, 4), (1, 2, 2)), "video": ((2, 2, 2),)}
    plain = host.encode_multimodal_inputs([request(**grids)])
    refs = [("image", 1), ("video", 0), ("image", 0)]
    ordered = host.encode_multimodal_inputs([with_metadata(request(**grids), refs, [1, 2, 4])])
    torch.testing.assert_close(ordered, plain[[4, 5, 6, 0, 1, 2, 3]])


@pytest.mark.usefixtures("upstream_metadata")
@pytest.mark.parametrize(
    ("refs", "lengths", "message"),
    [
        ([("image", 0)], [5], "has 4 rows, but 5 were declared"),
        ([("image", 1)], [4], "image 1, which it does not have"),
        ([("video", 0)], [4], "video 0, which it does not have"),
    ],
)
def test_broken_item_contract(refs: Any, lengths: list[int], message: str) -> None:
    param = with_metadata(request(image=((1, 4, 4),)), refs, lengths)
    with pytest.raises(ItemContractError, match=message):
        host_tower().encode_multimodal_inputs([param])


def test_malformed_requests() -> None:
    host = host_tower()
    with pytest.raises(ItemContractError, match=r"neither of \['image', 'video'\]"):
        host.encode_multimodal_inputs([Params({"audio": {}})])
    with pytest.raises(ItemContractError, match="expected pixel_values and image_grid_thw"):
        host.encode_multimodal_inputs([Params({"image": {"pixel_values": torch.zeros(4, 24)}})])
    param = request(image=((1, 4, 4),))
    param.multimodal_data["image"]["image_grid_thw"] = torch.tensor([[1, 4, 2]])
    with pytest.raises(ItemContractError, match="has 16 rows"):
        host.encode_multimodal_inputs([param])
    odd = request(image=((1, 3, 4),))
    with pytest.raises(ItemContractError, match="multiples of 2"):
        host.encode_multimodal_inputs([odd])


def test_part_of_a_request() -> None:
    host = host_tower()
    param = request(image=((1, 4, 4), (1, 2, 2), (1, 2, 4)), video=((2, 2, 2),))
    image = param.multimodal_data["image"]
    image |= {"names": ["a", "b", "c"], "sizes": torch.tensor([1, 2, 3]), "scale": 2}
    param.multimodal_data |= {"audio": {"input_features": 1}, "mrope": "kept"}
    part = host.build_multimodal_encoder_input(param, [2, 0], modality="image")
    assert part.multimodal_data.keys() == {"image", "mrope"}
    chosen = part.multimodal_data["image"]
    assert (chosen["names"], chosen["sizes"].tolist(), chosen["scale"]) == (["c", "a"], [3, 1], 2)
    assert chosen["image_grid_thw"].tolist() == [[1, 2, 4], [1, 4, 4]]
    whole = host.encode_multimodal_inputs([param])
    torch.testing.assert_close(host.encode_multimodal_inputs([part]), whole[[5, 6, 0, 1, 2, 3]])
    assert image["names"] == ["a", "b", "c"]  # the request is as it was


@pytest.mark.parametrize(
    ("indices", "modality", "message"),
    [
        ([0], None, "modality None"),
        ([0], "audio", "modality 'audio'"),
        ([2], "image", "there are no such"),
        ([-1], "image", "there are no such"),
        ([], "image", "there are no such"),
    ],
)
def test_no_such_part(indices: list[int], modality: str | None, message: str) -> None:
    param = request(image=((1, 4, 4), (1, 2, 2)), video=((2, 2, 2),))
    with pytest.raises(ItemContractError, match=message):
        host_tower().build_multimodal_encoder_input(param, indices, modality)


def test_modality_may_be_left_out_where_there_is_one() -> None:
    part = host_tower().build_multimodal_encoder_input(request(image=((1, 4, 4),)), [0])
    assert part.multimodal_data["image"]["image_grid_thw"].tolist() == [[1, 4, 4]]


# ---- taking over ----


class UpstreamMixin:
    def encode_multimodal_inputs(self) -> None: ...

    def something_newer(self) -> str:
        return "upstream's"


class Config(dict):  # type: ignore[type-arg]
    def to_dict(self) -> dict[str, Any]:
        return dict(self)


def wrapper(dtype: torch.dtype, device: str) -> torch.nn.Module:
    module = torch.nn.Module()
    module.visual = torch.nn.Linear(2, 2, dtype=dtype, device=device)
    return module


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_take_over(device: str) -> None:
    owner = wrapper(torch.bfloat16, device)
    hook: Any = SimpleNamespace(kind="capacity")
    config = SimpleNamespace(multimodal_config="theirs", mapping="m")
    host = take_over(owner, QWEN, FAMILIES[0], UpstreamMixin, hook, config)
    assert owner.visual is host
    assert isinstance(host, UpstreamMixin)
    assert host.something_newer() == "upstream's"
    assert host.encode_multimodal_inputs.__func__ is not UpstreamMixin.encode_multimodal_inputs
    assert host.dtype == torch.bfloat16
    assert host.device.type == device
    assert (host.multimodal_config, host.mapping) == ("theirs", "m")
    assert owner.load_weights == host.load_weights
    assert host.at_last_call is None


def test_take_over_where_the_towers_are_the_hook() -> None:
    owner = wrapper(torch.float32, "cpu")
    hook: Any = SimpleNamespace(kind="towers")
    host = take_over(owner, QWEN, FAMILIES[0], UpstreamMixin, hook, SimpleNamespace())
    tower_ref, anchor_ref = host.at_last_call.args  # type: ignore[union-attr]
    assert (tower_ref(), anchor_ref()) == (host, owner)


def test_constants_follow_the_weights() -> None:
    host = host_tower()
    moved: list[Any] = []
    host.tower.to = lambda device: moved.append(device)
    host.setup_attn_metadata(max_num_tokens=8)
    assert moved == [host.device]


def test_take_over_under_a_mode_that_forbids_fills() -> None:
    """Upstream builds models under such a mode; ours are built outside of it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoFills(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "fill_" in str(func) or "uniform_" in str(func):
                raise RuntimeError(f"{func} while upstream builds")
            return func(*args, **(kwargs or {}))

    owner = wrapper(torch.float32, "meta")
    hook: Any = SimpleNamespace(kind="capacity")
    with NoFills():
        host = take_over(owner, QWEN, FAMILIES[0], UpstreamMixin, hook, SimpleNamespace())
        with pytest.raises(RuntimeError, match="while upstream builds"):
            torch.nn.LayerNorm(2)
    assert host.device.type == "meta"


def test_an_encoder_that_is_not_ours_stays(caplog: pytest.LogCaptureFixture) -> None:
    class Upstream(torch.nn.Module):
        def __init__(self, model_config: Any, extra: int = 0) -> None:
            super().__init__()
            self.mm_encoder = wrapper(torch.float32, "cpu")
            self.extra = extra

    hook: Any = SimpleNamespace(kind="capacity")
    ours = models.model_class(Upstream, FAMILIES[0], UpstreamMixin, hook)
    assert (ours.__name__, ours.__module__) == ("Upstream", models.__name__)
    odd = Config(QWEN, vision_config={**QWEN["vision_config"], "deepstack_visual_indexes": [9]})
    model = ours(SimpleNamespace(pretrained_config=odd), extra=3)
    assert isinstance(model.mm_encoder.visual, torch.nn.Linear)
    assert model.extra == 3
    assert "upstream's encoder stays" in caplog.text
    taken = ours(SimpleNamespace(pretrained_config=Config(QWEN)))
    assert isinstance(taken.mm_encoder.visual, UpstreamMixin)


def radio(**changes: Any) -> Any:
    patches = SimpleNamespace(
        temporal_patch_size=1, cpe_mode=True, num_rows=4, num_cls_tokens=2, num_registers=1
    )
    norm: torch.nn.Module = torch.nn.Identity()
    vars(patches).update({k: v for k, v in changes.items() if k != "norm"})
    norm = changes.get("norm", norm)
    block = SimpleNamespace(norm1=torch.nn.LayerNorm(32, eps=1e-3))
    vit = SimpleNamespace(patch_generator=patches, norm=norm, patch_size=2, blocks=[block])
    theirs = torch.nn.Linear(1, 1)
    theirs.radio_model = SimpleNamespace(model=vit)  # type: ignore[assignment]
    theirs.config = SimpleNamespace(args={"model": "tiny"})  # type: ignore[assignment]
    return theirs


@pytest.fixture
def radio_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = SimpleNamespace(embed_dim=32, depth=2, num_attention_heads=2, intermediate_size=64)
    monkeypatch.setattr(models, "find", lambda *names: {"tiny": sizes})


@pytest.mark.usefixtures("radio_sizes")
def test_radio_takes_its_sizes_from_upstreams() -> None:
    tower, prefixes = models._build_radio(radio(), torch.float32)
    config: Any = tower.config
    assert (config.hidden_size, config.num_hidden_layers, config.mlp_ratio) == (32, 2, 2.0)
    assert (config.layer_norm_eps, config.max_img_size, config.num_learned) == (1e-3, 8, 3)
    assert not config.align_corners
    assert prefixes == ("radio_model.",)


@pytest.mark.usefixtures("radio_sizes")
@pytest.mark.parametrize(
    "changes", [{"temporal_patch_size": 2}, {"cpe_mode": False}, {"norm": torch.nn.LayerNorm(2)}]
)
def test_radio_that_ours_does_not_compute(changes: dict[str, Any]) -> None:
    with pytest.raises(models.CannotTakeOverError, match="this RADIO"):
        models._build_radio(radio(**changes), torch.float32)


def test_radio_that_nobody_knows() -> None:
    theirs = radio()
    del theirs.radio_model.model.patch_generator
    with pytest.raises(models.CannotTakeOverError, match="not built as tensorrt_llm_ext knows it"):
        models._build_radio(theirs, torch.float32)


@pytest.mark.usefixtures("radio_sizes")
def test_radio_in_both_forms() -> None:
    tower, prefixes = models._build_radio(radio(), torch.float32)
    tower.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)
    host = RadioHost(tower, prefixes)
    host.setup_attn_metadata(max_num_tokens=64)
    pictures = torch.randn(2, 3, 4, 6, generator=generator)
    whole = host(pictures)
    assert whole.shape == (2, 6, 32)
    patches = pictures.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(1, 12, 12)
    packed = host(patches, image_sizes=[(4, 6), (4, 6)])
    torch.testing.assert_close(packed[0], whole.flatten(0, 1))


def test_upstreams_own_graphs_are_off() -> None:
    host = host_tower()
    host.enable_blocks_cuda_graph(device=torch.device("cpu"))
    assert not host.has_graphs
    config = MultimodalConfig(encoder_cuda_graph={"image": {"buckets": [(16, 1)]}})
    host.tower.configure_encoder_cuda_graph(config)
    host.tower.capture_encoder_cuda_graphs()
    assert host.has_graphs
    host.release_encoder_cuda_graphs()
    host.release_encoder_cuda_graphs()
    assert not host.has_graphs
