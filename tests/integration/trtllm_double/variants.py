# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How the variants of the double differ from ``base``.

* ``before_20213``: the design of commit 06048c6cee66, which ``base`` is.
* ``pre_18524``: an earlier design. Set-up is a method of the engine, attention lives in
  ``attention_backend`` and ``setup_attn_metadata`` takes a number of items first (as Qwen3-VL's did
  at commit 002f3cc3d055; the keywords of the engine's call are inferred).
* ``after_20213``: from the public description of pull request #20213 only, whose source nobody here
  has read. Names that the description does not give are ours.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """Text to replace in a file of the package; ``old=None`` writes it (or removes it)."""

    file: str
    old: str | None
    new: str | None


class Variant(NamedTuple):
    moves: tuple[tuple[str, str], ...] = ()
    everywhere: tuple[tuple[str, str], ...] = ()
    edits: tuple[Edit, ...] = ()


_ENGINE = "_torch/pyexecutor/model_engine.py"
_ENCODER = "_torch/models/modeling_multimodal_encoder.py"
_MULTIMODAL = "_torch/pyexecutor/engine/multimodal.py"
_ARGS = "llmapi/llm_args.py"

_OLD_SIGNATURE = """    def setup_attn_metadata(
        self, max_num_tokens: int, attention_metadata_capacity: dict[str, int] | None = None
    ) -> None:
"""
_ITEMS_SIGNATURE = """    def setup_attn_metadata(
        self,
        max_num_items: int,
        max_num_tokens: int,
        attention_metadata_capacity: dict[str, int] | None = None,
    ) -> None:
"""
_SETUP_CALL = """        setup_mm_encoder_attn_metadata(
            self.model,
            self.input_processor,
            self.encoder_max_num_tokens,
            mm_item_scheduler.attention_metadata_capacity
            if mm_item_scheduler is not None
            else None,
        )
"""

PRE_18524 = Variant(
    moves=(
        ("_torch/attention/backends", "_torch/attention_backend"),
        ("_torch/attention/__init__.py", "_torch/_unused.py"),
        (_MULTIMODAL, "_torch/pyexecutor/_double_multimodal.py"),
        ("_torch/pyexecutor/engine/__init__.py", "_torch/_unused2.py"),
    ),
    everywhere=(("attention.backends", "attention_backend"),),
    edits=(
        Edit("_torch/_unused.py", None, None),
        Edit("_torch/_unused2.py", None, None),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            "from ..llm_request import",
            "from .llm_request import",
        ),
        Edit(
            _ENGINE,
            """from .engine.multimodal import (
    MultimodalItemScheduler,
    is_multimodal,
    mm_encoder_cache_enabled,
    setup_mm_encoder_attn_metadata,
)
""",
            """from . import _double_multimodal as _mm
from ._double_multimodal import (
    MultimodalItemScheduler,
    is_multimodal,
    mm_encoder_cache_enabled,
)
""",
        ),
        Edit(
            _ENGINE,
            _SETUP_CALL,
            """        self.mm_encoder_attention_metadata_capacity = (
            mm_item_scheduler.attention_metadata_capacity
            if mm_item_scheduler is not None
            else None
        )
        self._set_up_multimodal_encoder_attn_metadata()
""",
        ),
        Edit(
            _ENGINE,
            "        checkpoint_loader: BaseCheckpointLoader | None = None,\n",
            "        is_draft_model: bool = False,\n"
            "        drafting_loop_wrapper: Any = None,\n"
            "        model: torch.nn.Module | None = None,\n"
            "        checkpoint_loader: BaseCheckpointLoader | None = None,\n",
        ),
        Edit(
            _ENGINE,
            "        spec_config: Any = None,\n        model: torch.nn.Module | None = None,\n",
            "        spec_config: Any = None,\n",
        ),
        Edit(
            _ENGINE,
            "        self.is_spec_decode = spec_config is not None\n",
            "        self.is_spec_decode = spec_config is not None\n"
            "        self.is_draft_model = is_draft_model\n",
        ),
        Edit(
            "_torch/pyexecutor/py_executor_creator.py",
            "            spec_config=spec_config,\n        )\n    resources",
            "            spec_config=spec_config,\n            is_draft_model=True,\n"
            "        )\n    resources",
        ),
        Edit(
            _ENGINE,
            "    def _init_max_seq_len(self) -> None:\n",
            """    def _set_up_multimodal_encoder_attn_metadata(self) -> None:
        _mm.setup_mm_encoder_attn_metadata(
            self.model,
            self.input_processor,
            self.encoder_max_num_tokens,
            self.mm_encoder_attention_metadata_capacity,
            self.encoder_batch_size,
        )

    def _init_max_seq_len(self) -> None:
""",
        ),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            """    attention_metadata_capacity: dict[str, int] | None,
) -> None:
    encoders""",
            """    attention_metadata_capacity: dict[str, int] | None,
    max_num_items: int,
) -> None:
    encoders""",
        ),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            'setup_kwargs: dict[str, Any] = {"max_num_tokens": encoder_max_num_tokens}',
            "setup_kwargs: dict[str, Any] = {\n"
            '            "max_num_items": max_num_items,\n'
            '            "max_num_tokens": encoder_max_num_tokens,\n'
            "        }",
        ),
        # Item scheduling is a capability of the model, and cannot be switched off.
        Edit(
            _ARGS,
            """    encoder_scheduling_policy: MultimodalEncoderSchedulingPolicy = Field(
        default=MultimodalEncoderSchedulingPolicy.DEFAULT, status="prototype"
    )
""",
            "    enable_eager_encoder_scheduling: bool = "
            'Field(default=False, status="prototype")\n',
        ),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            "    policy = llm_args.multimodal_config.encoder_scheduling_policy\n",
            "",
        ),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            "        and policy != MultimodalEncoderSchedulingPolicy.DISABLED\n",
            "",
        ),
        Edit(
            "_torch/pyexecutor/_double_multimodal.py",
            "    eager = config.encoder_scheduling_policy == "
            "MultimodalEncoderSchedulingPolicy.EAGER\n",
            "    eager = config.enable_eager_encoder_scheduling\n",
        ),
        Edit(
            "_torch/models/modeling_multimodal_mixin.py",
            "    build_multimodal_encoder_input = "
            "MultimodalEncoderMixin.build_multimodal_encoder_input\n",
            """    def build_multimodal_encoder_input(
        self, param: MultimodalParams, item_indices: Sequence[int]
    ) -> MultimodalParams:
        return MultimodalEncoderMixin.build_multimodal_encoder_input(self, param, item_indices)

""",
        ),
        Edit(
            _ENCODER,
            "param, [metadata.item_refs[i][1] for i in indices], modality=modality\n",
            "param, [metadata.item_refs[i][1] for i in indices]\n",
        ),
        Edit(_ENCODER, _OLD_SIGNATURE, _ITEMS_SIGNATURE),
        Edit("_torch/models/modeling_qwen3vl.py", _OLD_SIGNATURE, _ITEMS_SIGNATURE),
        Edit("_torch/models/modeling_glm5_next_vision.py", _OLD_SIGNATURE, _ITEMS_SIGNATURE),
        Edit(
            "_torch/models/modeling_qwen3vl.py",
            "super().setup_attn_metadata(max_num_tokens, attention_metadata_capacity)",
            "super().setup_attn_metadata(\n"
            "            max_num_items, max_num_tokens, attention_metadata_capacity\n"
            "        )",
        ),
        Edit(
            "_torch/models/modeling_glm5_next_vision.py",
            "super().setup_attn_metadata(max_num_tokens, attention_metadata_capacity)",
            "super().setup_attn_metadata(\n"
            "            max_num_items, max_num_tokens, attention_metadata_capacity\n"
            "        )",
        ),
        Edit(
            "_torch/models/modeling_radio.py",
            "def setup_attn_metadata(self, max_num_tokens: int) -> None:",
            "def setup_attn_metadata(self, max_num_items: int, max_num_tokens: int) -> None:",
        ),
        Edit(
            "_torch/models/modeling_radio.py",
            "self.setup_attn_metadata(max_num_tokens=model_config.max_num_tokens)",
            "self.setup_attn_metadata(8192, max_num_tokens=model_config.max_num_tokens)",
        ),
    ),
)

AFTER_20213 = Variant(
    edits=(
        Edit(
            _ARGS,
            "    buckets: list[tuple[PositiveInt, PositiveInt]] = Field("
            'min_length=1, status="prototype")\n',
            """    buckets: list[tuple[PositiveInt, PositiveInt]] | None = Field(
        default=None, min_length=1, status="prototype"
    )
    max_batch_size: PositiveInt | None = Field(default=None, status="prototype")
    max_num_tokens: PositiveInt | None = Field(default=None, status="prototype")
""",
        ),
        Edit(
            _ARGS,
            "        for total_tokens, num_contexts in self.buckets:\n",
            """        if (self.buckets is None) == (self.max_batch_size is None):
            raise ValueError("set exactly one of `buckets` and `max_batch_size`")
        if self.buckets is None:
            return self
        for total_tokens, num_contexts in self.buckets:
""",
        ),
        Edit(
            _ENCODER,
            "    def set_attn_max_seq_len(self, max_seq_len: int) -> None:\n        pass\n",
            """    def set_attn_max_seq_len(self, max_seq_len: int) -> None:
        pass

    # -- pull request #20213, from its description ------------------------------------------

    encoder_cuda_graph_modality: str | None = None
    _encoder_cuda_graph_config: Any = None
    _encoder_cuda_graph_budget: int | None = None
    _encoder_cuda_graphs: list[tuple[int, int]] | None = None

    def configure_encoder_cuda_graph(self, config: Any, max_num_tokens: int) -> None:
        entries = config.encoder_cuda_graph or {}
        self._encoder_cuda_graph_config = entries.get(self.encoder_cuda_graph_modality)
        self._encoder_cuda_graph_budget = max_num_tokens

    def capture_encoder_cuda_graphs(self) -> None:
        entry = self._encoder_cuda_graph_config
        if entry is None or self._encoder_cuda_graphs is not None:
            return
        cap = entry.max_num_tokens or self._encoder_cuda_graph_budget
        buckets = entry.buckets or [(cap, n) for n in range(1, entry.max_batch_size + 1)]
        self._encoder_cuda_graphs = sorted(buckets, reverse=True)
        for bucket in self._encoder_cuda_graphs:
            _double.record("upstream_capture", key=list(bucket))

    def release_encoder_cuda_graphs(self) -> None:
        if self._encoder_cuda_graphs is not None:
            _double.record("upstream_release")
        self._encoder_cuda_graphs = None
""",
        ),
        Edit(_ENCODER, "import torch\n\n", "import torch\n\nfrom tensorrt_llm import _double\n"),
        Edit(
            _MULTIMODAL,
            "def resolve_bytes_per_mm_encoder_embedding(",
            '''def setup_mm_encoder_cuda_graphs(
    model: nn.Module, multimodal_config: Any, encoder_max_num_tokens: int
) -> None:
    """Every key must have a tower before any capture; then each tower captures once."""
    requested = set(multimodal_config.encoder_cuda_graph or {})
    encoders = [module for module in model.modules() if isinstance(module, MultimodalEncoderMixin)]
    known = {module.encoder_cuda_graph_modality for module in encoders} - {None}
    if requested - known:
        raise ValueError(
            f"no local encoder captures graphs for {sorted(requested - known)}; "
            f"this model has {sorted(known)}"
        )
    _double.record("setup_cuda_graphs", tokens=encoder_max_num_tokens)
    for module in encoders:
        if module.encoder_cuda_graph_modality in requested:
            module.configure_encoder_cuda_graph(multimodal_config, encoder_max_num_tokens)
            module.capture_encoder_cuda_graphs()


def resolve_bytes_per_mm_encoder_embedding(''',
        ),
        Edit(
            _ENGINE,
            "    mm_encoder_cache_enabled,\n    setup_mm_encoder_attn_metadata,\n",
            "    mm_encoder_cache_enabled,\n    setup_mm_encoder_attn_metadata,\n"
            "    setup_mm_encoder_cuda_graphs,\n",
        ),
        Edit(
            _ENGINE,
            "        mm_item_scheduler = MultimodalItemScheduler.maybe_create(\n",
            "        configured_encoder_tokens = self.encoder_max_num_tokens\n"
            "        mm_item_scheduler = MultimodalItemScheduler.maybe_create(\n",
        ),
        Edit(
            _ENGINE,
            _SETUP_CALL,
            _SETUP_CALL
            + """        setup_mm_encoder_cuda_graphs(
            self.model, self.llm_args.multimodal_config, configured_encoder_tokens
        )
""",
        ),
        Edit(
            _ENGINE,
            "        self._release_cuda_graphs()\n        self.model = None\n",
            """        for module in self.model.modules():
            release = getattr(module, "release_encoder_cuda_graphs", None)
            if release is not None:
                release()
        self._release_cuda_graphs()
        self.model = None
""",
        ),
        # One lifecycle: nothing captures inside load_weights any more, every tower has a key.
        Edit(
            "_torch/models/modeling_glm5_next_vision.py",
            "            self.mm_encoder.enable_blocks_cuda_graph()\n",
            "",
        ),
        Edit(
            "_torch/models/modeling_nemotron_nano.py",
            "        self.vision_encoder.vision_model.enable_blocks_cuda_graph()\n",
            "",
        ),
        Edit(
            "_torch/models/modeling_nemotron_nano.py",
            "            encoder_cuda_graph_config=_get_vision_encoder_cuda_graph_config("
            "model_config),\n",
            "",
        ),
        Edit(
            "_torch/models/modeling_glm5_next_vision.py",
            "        self._encoder_cuda_graph_config = _image_encoder_cuda_graph_config("
            "model_config)\n",
            "",
        ),
        Edit(
            "_torch/models/modeling_qwen3vl.py",
            "class Qwen3VisionModel(nn.Module, MultimodalEncoderMixin):\n",
            "class Qwen3VisionModel(nn.Module, MultimodalEncoderMixin):\n"
            '    encoder_cuda_graph_modality = "image"\n\n',
        ),
        Edit(
            "_torch/models/modeling_glm5_next_vision.py",
            "class Glm5NextVisionModel(nn.Module, MultimodalEncoderMixin):\n",
            "class Glm5NextVisionModel(nn.Module, MultimodalEncoderMixin):\n"
            '    encoder_cuda_graph_modality = "image"\n\n',
        ),
        Edit(
            "_torch/models/modeling_radio.py",
            "class VisionTransformer(nn.Module, MultimodalEncoderMixin):\n",
            "class VisionTransformer(nn.Module, MultimodalEncoderMixin):\n"
            '    encoder_cuda_graph_modality = "vision"\n\n',
        ),
    )
)

VARIANTS: dict[str, Variant] = {
    "before_20213": Variant(),
    "pre_18524": PRE_18524,
    "after_20213": AFTER_20213,
}
