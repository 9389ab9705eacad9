# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""An ordinary Hugging Face folder to a language model whose towers are ours.

The transformers model keeps its own forward: it scatters features over placeholders, computes mRoPE
positions and adds deepstack features. Only the modules that would compute the features are
replaced, by ones that unpack features already computed.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from .families import Family, family_of

_TOWER_MODULES = {"image": "visual", "audio": "audio_tower"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class EncodedFeatures(nn.Module):
    """Stands where the language model expects its visual tower; its input is the tower's output.

    The "pixel values" of a forward are features packed side by side, so that a forward carries
    everything it needs and no state is shared between forwards.

    Args:
        out_hidden_size: Width of one feature row.
        spatial_merge_size: Merge size of the tower.
        dtype: Dtype of the features.
    """

    def __init__(self, out_hidden_size: int, spatial_merge_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_hidden_size = out_hidden_size
        self.spatial_merge_size = spatial_merge_size
        self.dtype = dtype

    @staticmethod
    def pack(outputs: Sequence[Any]) -> torch.Tensor:
        """Pack tower outputs for one forward.

        Args:
            outputs: Item outputs of ``tower.encode``, in the order of the forward's grids.

        Returns:
            Tensor [tokens, out * (1 + deepstack)], dtype of the tower: features, then each
            deepstack output.
        """
        rows = [torch.cat([out.features, *out.deepstack], dim=-1) for out in outputs]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def forward(
        self, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any
    ) -> BaseModelOutputWithDeepstackFeatures:
        """Unpack features.

        Args:
            hidden_states: Packed features [tokens, out * (1 + deepstack)], dtype of the tower.
            grid_thw: Int64 tensor [items, 3].
            **kwargs: What transformers passes to a tower; nothing is left to compute with it.

        Returns:
            ``pooler_output`` [tokens, out] and ``deepstack_features``, a list of the same shape.
        """
        pooler, *deepstack = hidden_states.split(self.out_hidden_size, dim=-1)
        return BaseModelOutputWithDeepstackFeatures(
            pooler_output=pooler, deepstack_features=list(deepstack)
        )


class EncodedClips(nn.Module):
    """Stands where the language model expects its audio tower.

    The "mel frames" of a forward are features, one clip of all of them.

    Args:
        dtype: Dtype of the features.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    @staticmethod
    def arguments(outputs: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Arguments of the model's forward that carry features here.

        Args:
            outputs: Item outputs of ``tower.encode``, in prompt order.

        Returns:
            ``input_features`` [1, out, tokens], dtype of the tower, and ``feature_attention_mask``,
            int64 [1, tokens], all ones.
        """
        features = torch.cat([out.features for out in outputs])  # [tokens, out]
        mask = torch.ones(1, len(features), dtype=torch.long, device=features.device)
        return {"input_features": features.T[None], "feature_attention_mask": mask}

    def forward(
        self, input_features: torch.Tensor, **kwargs: Any
    ) -> BaseModelOutputWithDeepstackFeatures:
        """Unpack features.

        Args:
            input_features: Features [out, tokens], dtype of the tower.
            **kwargs: What transformers passes to a tower; nothing is left to compute with it.

        Returns:
            ``last_hidden_state`` and ``pooler_output`` [tokens, out].
        """
        features: Any = input_features.T  # annotated as a subclass that nobody uses
        return BaseModelOutputWithDeepstackFeatures(
            last_hidden_state=features, pooler_output=features
        )


def stand_ins(towers: Mapping[str, Any]) -> dict[str, nn.Module]:
    """A module for the place of each tower, by modality.

    Args:
        towers: The towers whose outputs it is to hand on.
    """
    modules: dict[str, nn.Module] = {}
    if "image" in towers:
        tower = towers["image"]
        modules["image"] = EncodedFeatures(
            tower.out_hidden_size, tower.spatial_merge_size, tower.dtype
        )
    if "audio" in towers:
        modules["audio"] = EncodedClips(towers["audio"].dtype)
    return modules


@dataclass
class LoadedModel:
    """The language model and what the engine reads from its configuration.

    Attributes:
        model: The transformers model.
        owner: The module in it that had the towers and knows rotary positions.
        family: What the engine knows about it.
        config: Configuration of the model.
        eos_token_ids: Ids that end a text.
        max_positions: Longest sequence that the model was made for.
        cache_argument: Name of the forward's cache argument.
    """

    model: nn.Module
    owner: nn.Module
    family: Family
    config: Any
    eos_token_ids: tuple[int, ...]
    max_positions: int
    cache_argument: str


def check_folder(checkpoint: str | Path) -> Path:
    """Check that a checkpoint folder can be loaded, before anything large is read.

    Raises:
        ValueError: No such folder, no config.json, or no safetensors weights.
    """
    folder = Path(checkpoint)
    if not folder.is_dir():
        raise ValueError(
            f"model {str(checkpoint)!r} is not a folder; give the path of a checkpoint folder"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} has no config.json; give the folder of a Hugging Face checkpoint"
        )
    if not any(folder.glob("*.safetensors")):
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        found = f"; it has {', '.join(others)}, which can run code when read" if others else ""
        raise ValueError(
            f"{folder} has no *.safetensors weights{found}; convert them with transformers: "
            "model.save_pretrained(folder)"
        )
    return folder


def load_config(checkpoint: Path, *, trust_remote_code: bool) -> Any:
    """Read config.json; code shipped with a checkpoint is refused unless trusted.

    Returns:
        The transformers configuration of the model that is served.

    Raises:
        ValueError: The checkpoint needs its own code, or its model is not known or not complete.
    """
    raw: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if raw.get("auto_map") and not trust_remote_code:
        raise ValueError(
            f"{checkpoint} names code of its own (auto_map in config.json); read it, then set "
            "trust_remote_code=True if you trust it"
        )
    family = family_of(str(raw.get("model_type")))
    if not family.tokens:
        raise ValueError(
            f"{checkpoint}: the torch engine serves {family.name} without a language model only; "
            "set mm_encoder_only=True"
        )
    whole = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust_remote_code)
    config = family.served_config(whole)
    missing = [key for key in family.tokens.values() if getattr(config, key, None) is None]
    if missing:
        raise ValueError(
            f"{checkpoint} has model_type {whole.model_type!r} without {', '.join(missing)} in "
            "config.json"
        )
    return config


def resolve_device(device: str) -> torch.device:
    """Device of "auto" (the first CUDA device, else the CPU) or of a name.

    Raises:
        ValueError: The device is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = resolved.index or 0
        if index >= count:
            raise ValueError(
                f"device {device!r} is not there: {count} CUDA devices found; use device='cpu'"
            )
        return torch.device("cuda", index)
    return resolved


def resolve_dtype(dtype: str, checkpoint: Path) -> torch.dtype:
    """Dtype of a name, or for "auto" the one the checkpoint was saved in, else bfloat16.

    Raises:
        ValueError: The name is not known.
    """
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != "auto":
        raise ValueError(f"dtype {dtype!r} is not known; choose one of auto, {', '.join(DTYPES)}")
    sections = [json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))]
    for section in sections:  # the whole, then its parts
        stored = section.get("dtype") or section.get("torch_dtype")
        if stored:
            return DTYPES.get(str(stored).removeprefix("torch."), torch.bfloat16)
        sections += [part for part in section.values() if isinstance(part, dict)]
    return torch.bfloat16


def load_language_model(
    checkpoint: Path,
    config: Any,
    *,
    family: Family,
    stand_ins: Mapping[str, nn.Module],
    dtype: torch.dtype,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load the language model and put modules of ours where its towers were.

    The weights are read to host memory, the towers are dropped there, and the rest moves to the
    device: the device never holds a tower that is not used.

    Args:
        checkpoint: Checkpoint folder.
        config: Configuration of the model that is served.
        family: What the engine knows about it.
        stand_ins: Modules that take the towers' places, by modality.
        dtype: Dtype of the weights.
        device: Device of the model.
        tokenizer: Knows the end of a text where the folder does not say it.
        trust_remote_code: Whether code in the folder may run.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: Weights are missing or of another shape; all of them are listed.
    """
    loaded: Any = AutoModelForImageTextToText.from_pretrained(
        checkpoint,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # all are listed below
    )
    model, report = loaded
    _check_loaded(report, checkpoint)
    owner = model
    for modality, stand_in in stand_ins.items():
        owner = _owner_of(model, _TOWER_MODULES[modality])
        setattr(owner, _TOWER_MODULES[modality], stand_in)
    gc.collect()
    model = model.to(device).eval().requires_grad_(False)
    # Nobody needs the logits of a whole prompt, they can take gigabytes, and not every family's
    # forward has an argument to leave them out.
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(lambda module, args: (args[0][:, -1:], *args[1:]))
    return LoadedModel(
        model=model,
        owner=owner,
        family=family,
        config=config,
        eos_token_ids=eos_token_ids(checkpoint, config, tokenizer),
        max_positions=config.get_text_config().max_position_embeddings,
        cache_argument=_cache_argument(model),
    )


def _check_loaded(report: Mapping[str, Any], checkpoint: Path) -> None:
    """Refuse a model that transformers filled up with random weights."""
    missing = [f"missing {key}" for key in sorted(report["missing_keys"])]
    shapes = [
        f"{key} is {list(found)}, expected {list(expected)}"
        for key, found, expected in sorted(report["mismatched_keys"])
    ]
    if missing or shapes:
        raise ValueError(
            f"{checkpoint} does not fit the language model of its config.json: "
            + "; ".join(missing + shapes)
        )


def _owner_of(model: nn.Module, name: str) -> nn.Module:
    """The outermost module with a tower of a name: transformers moves them between versions."""
    for _, module in model.named_modules():
        if name in module._modules:
            return module
    raise ValueError(
        f"{type(model).__name__} of the installed transformers has no module {name!r}; use a "
        "version that setup.py allows"
    )


def eos_token_ids(
    checkpoint: Path, config: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Ids that end a text: of generation_config.json, else the model, else the tokenizer."""
    ids: Any = None
    if (checkpoint / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    if ids is None:
        ids = getattr(config.get_text_config(), "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)


def _cache_argument(model: nn.Module) -> str:
    """Name of the forward's cache argument: transformers renames it between 5.17 and 5.24."""
    parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
    return "past_key_values" if "past_key_values" in parameters else "cache"
