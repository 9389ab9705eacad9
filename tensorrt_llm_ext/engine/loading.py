# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""An ordinary Hugging Face folder to a language model whose visual tower is ours.

The transformers model keeps its own forward: it scatters features over placeholders, computes mRoPE
positions and adds deepstack features. Only the module that would compute the features is replaced,
by one that unpacks features already computed.
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
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

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


@dataclass
class LoadedModel:
    """The language model and what the engine reads from its configuration."""

    model: nn.Module
    config: Any
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]
    max_positions: int
    cache_argument: str

    @property
    def placeholder_ids(self) -> dict[str, int]:
        """Placeholder token id of each modality."""
        return {"image": self.config.image_token_id, "video": self.config.video_token_id}


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

    Raises:
        ValueError: The checkpoint needs its own code, or is not a model with image and video
            placeholders.
    """
    raw: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if raw.get("auto_map") and not trust_remote_code:
        raise ValueError(
            f"{checkpoint} names code of its own (auto_map in config.json); read it, then set "
            "trust_remote_code=True if you trust it"
        )
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust_remote_code)
    missing = [
        key for key in ("image_token_id", "video_token_id") if getattr(config, key, None) is None
    ]
    if missing:
        raise ValueError(
            f"{checkpoint} has model_type {config.model_type!r} without {', '.join(missing)}; "
            "the torch engine serves Qwen3-VL models"
        )
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise ValueError(
            f"{checkpoint} has decoder layers of type {sorted(layer_types)}; the torch engine "
            "batches "
            "'full_attention' only"
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


def resolve_dtype(dtype: str, config: Any) -> torch.dtype:
    """Dtype of a name, or the one the checkpoint was saved in for "auto".

    Raises:
        ValueError: The name is not known.
    """
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != "auto":
        raise ValueError(f"dtype {dtype!r} is not known; choose one of auto, {', '.join(DTYPES)}")
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return stored if isinstance(stored, torch.dtype) else torch.bfloat16


def load_language_model(
    checkpoint: Path,
    config: Any,
    *,
    visual: EncodedFeatures,
    device: torch.device,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load the language model and put ``visual`` where its own tower was.

    The weights are read to host memory, the tower is dropped there, and the rest moves to the
    device: the device never holds the tower that is not used.

    Args:
        checkpoint: Checkpoint folder.
        config: Its configuration.
        visual: Module that takes the tower's place.
        device: Device of the model.
        tokenizer: Another folder to take the tokenizer from.
        trust_remote_code: Whether code in the folder may run.

    Returns:
        The model in evaluation mode, and its tokenizer.
    """
    model: Any = AutoModelForImageTextToText.from_pretrained(
        checkpoint,
        config=config,
        dtype=visual.dtype,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    model.model.visual = visual
    gc.collect()
    model = model.to(device).eval().requires_grad_(False)
    source = tokenizer or checkpoint
    loaded_tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    _add_template(loaded_tokenizer, checkpoint)
    return LoadedModel(
        model=model,
        config=config,
        tokenizer=loaded_tokenizer,
        eos_token_ids=eos_token_ids(checkpoint, config, loaded_tokenizer),
        max_positions=config.get_text_config().max_position_embeddings,
        cache_argument=_cache_argument(model),
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


def _add_template(tokenizer: PreTrainedTokenizerBase, checkpoint: Path) -> None:
    """Older checkpoints keep the template of the processor in a file of its own."""
    path = checkpoint / "chat_template.json"
    if not getattr(tokenizer, "chat_template", None) and path.is_file():
        tokenizer.chat_template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]


def _cache_argument(model: nn.Module) -> str:
    """Name of the forward's cache argument: transformers renames it between 5.17 and 5.24."""
    parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
    return "past_key_values" if "past_key_values" in parameters else "cache"
