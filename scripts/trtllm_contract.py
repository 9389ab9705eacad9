# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Writes ``tensorrt_llm_ext/trtllm/contract.json`` from files of TensorRT-LLM's source.

    python scripts/trtllm_contract.py ROOT [ROOT ...]           # rewrite it
    python scripts/trtllm_contract.py --check ROOT [ROOT ...]   # exit 1 when it is stale

A ROOT is a checkout of upstream, or a folder with some of its files under their paths, named by its
commit (``--commit ROOT=COMMIT`` names it otherwise). Files are parsed, never run, and nothing of
them but names, parameters and literal defaults is written. A ROOT may hold a ``SOURCES.json``:
path -> {"commit": ..., "extent": "declarations", "chars": ...}. It says which commit a file was
last read at, and that what lies there is not the whole file but its declarations, copied from a
reader that shows a file and does not hand it over; such a file has no hash.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tensorrt_llm_ext" / "trtllm" / "contract.json"
REPOSITORY = "NVIDIA/TensorRT-LLM"

Json = dict[str, Any]


class Name(NamedTuple):
    """A name we rely on.

    Attributes:
        use: What for.
        modules: Where it is, the newest place first, below ``tensorrt_llm``.
        path: ``function``, ``Class``, ``Class.method`` or a value.
        kind: ``function``, ``class`` (there or not), ``fields`` or ``value``.
    """

    use: str
    modules: tuple[str, ...]
    path: str
    kind: str = "function"


def _names(use: str, modules: str, kind: str, *paths: str) -> Iterator[Name]:
    for path in paths:
        yield Name(use, tuple(modules.split("|")), path, kind)


MODELS = "_torch.models"
ENCODER = f"{MODELS}.modeling_multimodal_encoder"
ATTENTION = "_torch.attention.backends.interface|_torch.attention_backend.interface"
TRTLLM = "_torch.attention.backends.trtllm|_torch.attention_backend.trtllm"
GRAPH = f"{MODELS}.multimodal_encoder_graph"
ENGINE = "_torch.pyexecutor.model_engine"
MULTIMODAL = "_torch.pyexecutor.engine.multimodal"

NAMES: tuple[Name, ...] = (
    *_names(
        "hook",
        ENGINE,
        "function",
        "PyTorchModelEngine.__init__",
        "PyTorchModelEngine._init_model_capacity",
        "PyTorchModelEngine._release_cuda_graphs",
    ),
    *_names(
        "hook",
        MULTIMODAL,
        "function",
        "setup_mm_encoder_attn_metadata",
        "resolve_mm_encoder_token_budget",
        "mm_item_scheduling_enabled",
        "MultimodalItemScheduler.__init__",
        "MultimodalItemScheduler.maybe_create",
        "MultimodalItemScheduler.create",
        "MultimodalItemScheduler.forward_items",
    ),
    *_names("tower", ENCODER, "class", "MultimodalEncoderMixin", "MultimodalEncoderContractError"),
    *_names(
        "tower",
        ENCODER,
        "function",
        "MultimodalEncoderMixin.setup_attn_metadata",
        "MultimodalEncoderMixin.set_attn_max_seq_len",
        "MultimodalEncoderMixin.get_encoder_attention_metadata_capacity",
    ),
    *_names(
        "items",
        ENCODER,
        "function",
        "MultimodalEncoderMixin.encode_multimodal_inputs",
        "MultimodalEncoderMixin.prepare_multimodal_encoder_inputs",
        "MultimodalEncoderMixin.forward_multimodal_encoder_items",
        "MultimodalEncoderMixin.build_multimodal_encoder_input",
    ),
    *_names(
        "items",
        f"{MODELS}.modeling_multimodal_mixin",
        "function",
        "MultimodalModelMixin.encode_multimodal_inputs",
        "MultimodalModelMixin.encoder_cache_active",
    ),
    *_names(
        "items",
        "inputs.registry",
        "function",
        "get_multimodal_encoder_item_metadata",
        "register_input_processor",
        "create_input_processor",
    ),
    *_names("registration", "inputs.registry", "value", "INPUT_PROCESSOR_REGISTRY"),
    *_names(
        "registration",
        f"{MODELS}.modeling_utils",
        "function",
        "register_auto_model",
        "register_vision_encoder",
        "get_registered_model_class",
        "get_registered_vision_encoder",
        "export_external_model_modules",
        "register_external_model_modules",
        "filter_weights",
    ),
    *_names("registration", f"{MODELS}._arch_index", "function", "is_builtin_zoo_module"),
    *_names("registration", f"{MODELS}._arch_index", "value", "MODEL_ARCH_TO_MODULE"),
    *_names(
        "registration",
        "tools.importlib_utils",
        "function",
        "import_custom_module",
        "import_custom_module_from_dir",
        "import_custom_module_from_file",
    ),
    *_names(
        "weights",
        "_torch.pyexecutor.model_loader",
        "function",
        "ModelLoader.load",
        "ModelLoader._call_load_weights",
    ),
    *_names("models", f"{MODELS}.modeling_qwen3vl", "class", "Qwen3VisionModel", "Qwen3VLModel"),
    *_names(
        "models",
        f"{MODELS}.modeling_qwen3vl",
        "function",
        "Qwen3VisionModel.__init__",
        "Qwen3VisionModel.forward",
        "Qwen3VisionModelBase.__init__",
        "Qwen3VisionModelBase.load_weights",
        "Qwen3VisionModelBase.forward",
        "Qwen3VLModelBase.__init__",
        "Qwen3VLModelBase.encode_multimodal_inputs",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_qwen2vl",
        "function",
        "_prepare_qwen_vl_vision_attn_metadata",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_glm5_next_vision",
        "function",
        "_image_encoder_cuda_graph_config",
        "Glm5NextVisionModel.__init__",
        "Glm5NextVisionModel.enable_blocks_cuda_graph",
        "Glm5NextVisionModel.setup_attn_metadata",
        "Glm5NextVisionModel.set_attn_max_seq_len",
        "Glm5NextVisionModel.forward",
        "Glm5NextVisionModelBase.__init__",
        "Glm5NextVisionModelBase.load_weights",
        "Glm5NextVisionModelBase.enable_blocks_cuda_graph",
        "Glm5NextVisionModelBase.encode_batched",
        "Glm5NextVisionModelBase.forward",
        "Glm5NextVLM.__init__",
        "Glm5NextVLM.encode_multimodal_inputs",
        "Glm5NextVLM.load_weights",
    ),
    *_names("models", f"{MODELS}.modeling_radio", "value", "VIT_TIMM_CONFIG_BY_NAME"),
    *_names(
        "models",
        f"{MODELS}.modeling_radio",
        "function",
        "VisionTransformer.setup_attn_metadata",
        "VisionTransformer.enable_blocks_cuda_graph",
        "VisionTransformer.prepare_attn_metadata",
        "VisionTransformer.forward_features",
        "RADIOVisionModel.__init__",
        "RADIOVisionModel.load_weights",
        "RADIOVisionModel.enable_blocks_cuda_graph",
        "RADIOVisionModel.forward",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_nemotron_nano",
        "function",
        "NanoV2VLVisionEncoder.__init__",
        "NanoV2VLVisionEncoder.load_weights",
        "NanoV2VLVisionEncoder.pixel_shuffle",
        "NanoV2VLVisionEncoder.extract_feature",
        "NanoV2VLVisionEncoder.forward",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "fields",
        "MultimodalEncoderCudaGraphConfig",
        "MultimodalConfig",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "value",
        "TorchLlmArgs.multimodal_config",
        "TorchLlmArgs.encoder_max_batch_size",
        "TorchLlmArgs.encoder_max_num_tokens",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "function",
        "update_llm_args_with_extra_dict",
        "update_llm_args_with_extra_options",
    ),
    *_names(
        "attention",
        ATTENTION,
        "function",
        "AttentionMetadata.prepare",
        "AttentionMetadata.prepare_encoder_only",
        "AttentionMetadata.create_cuda_graph_metadata",
        "AttentionBackend.__init__",
        "AttentionBackend.forward",
        "AttentionBackend.support_fused_qkv",
    ),
    *_names("attention", ATTENTION, "class", "PredefinedAttentionMask"),
    *_names(
        "attention",
        TRTLLM,
        "function",
        "TrtllmAttentionMetadata.bind_encoder_cuda_graph_seq_lens",
        "TrtllmAttentionMetadata.prepare_encoder_only",
    ),
    *_names("graphs", GRAPH, "fields", "EncoderGraphKey", "EncoderGraphTensorSpec"),
    *_names(
        "graphs",
        GRAPH,
        "function",
        "MultimodalEncoderGraphRunner.__init__",
        "MultimodalEncoderGraphRunner.capture_all",
        "MultimodalEncoderGraphRunner.maybe_run",
    ),
    *_names(
        "nccl",
        "_torch.nccl_window_graph",
        "function",
        "nccl_window_graph_owner",
        "nccl_window_graph_capture",
        "abandon_nccl_window_graph_owner",
        "release_nccl_window_graph_owner",
    ),
)


class Snapshot(NamedTuple):
    """A folder with (some) files of one state of upstream."""

    commit: str
    root: Path
    sources: dict[str, Json]

    @classmethod
    def read(cls, root: Path, commit: str | None = None) -> Snapshot:
        """Reads what ``root`` says about its files."""
        listing = root / "SOURCES.json"
        sources = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
        return cls(commit or root.name, root, sources)


def build_contract(snapshots: Sequence[Snapshot], names: Sequence[Name] = NAMES) -> Json:
    """Makes the contract.

    Args:
        snapshots: What was read, the newest first.
        names: What to look for.

    Returns:
        The contract, ready for JSON.

    Raises:
        ValueError: A name is in none of the snapshots.
    """
    trees: dict[tuple[str, str], ast.Module] = {}
    used: dict[str, Json] = {snapshot.commit: {} for snapshot in snapshots}
    out = []
    for name in names:
        seen: Json = {}
        for snapshot in snapshots:
            found = _find(snapshot, name, trees, used[snapshot.commit])
            if found is not None:
                seen[snapshot.commit] = found
        if not seen:
            raise ValueError(f"{name.modules[0]}:{name.path} is in none of the snapshots")
        out.append(
            {
                "name": name.path,
                "modules": [f"tensorrt_llm.{module}" for module in name.modules],
                "kind": name.kind,
                "use": name.use,
                "seen": seen,
            }
        )
    return {
        "format": 1,
        "repository": REPOSITORY,
        "snapshots": {commit: dict(sorted(files.items())) for commit, files in used.items()},
        "names": out,
    }


def _find(
    snapshot: Snapshot, name: Name, trees: dict[tuple[str, str], ast.Module], used: Json
) -> Json | None:
    for module in name.modules:
        path = f"tensorrt_llm/{module.replace('.', '/')}.py"
        file = snapshot.root / path
        if not file.exists():
            continue
        key = (snapshot.commit, path)
        if key not in trees:
            trees[key] = ast.parse(file.read_text("utf-8"))
        node = _lookup(trees[key].body, name.path.split("."))
        if node is not None:
            used[path] = _source(snapshot, path, file)
            return {"parameters": _describe(node, name.kind)}
    return None


def _source(snapshot: Snapshot, path: str, file: Path) -> Json:
    said = snapshot.sources.get(path, {})
    source: Json = {"commit": said.get("commit", snapshot.commit)}
    if said.get("extent", "whole") == "whole":
        source["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    else:
        source |= {"sha256": None, "extent": said["extent"], "chars": said.get("chars")}
    if "note" in said:
        source["note"] = said["note"]
    return source


def _lookup(body: Sequence[ast.stmt], path: Sequence[str]) -> ast.stmt | None:
    for node in body:
        if _declares(node, path[0]):
            if len(path) == 1:
                return node
            if isinstance(node, ast.ClassDef):
                return _lookup(node.body, path[1:])
    return None


def _declares(node: ast.stmt, name: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return False


def _describe(node: ast.stmt, kind: str) -> list[list[str | None]] | None:
    if kind == "function" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return list(_parameters(node.args))
    if kind == "fields" and isinstance(node, ast.ClassDef):
        return [
            [field.target.id, "field", _field_default(field.value)]
            for field in node.body
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and not field.target.id.startswith("_")
        ]
    return None


def _parameters(args: ast.arguments) -> Iterator[list[str | None]]:
    positional = [*args.posonlyargs, *args.args]
    missing = len(positional) - len(args.defaults)
    for i, arg in enumerate(positional):
        kind = "positional_only" if i < len(args.posonlyargs) else "positional_or_keyword"
        yield [arg.arg, kind, None if i < missing else literal(args.defaults[i - missing])]
    if args.vararg:
        yield [args.vararg.arg, "var_positional", None]
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield [arg.arg, "keyword_only", None if default is None else literal(default)]
    if args.kwarg:
        yield [args.kwarg.arg, "var_keyword", None]


def _field_default(value: ast.expr | None) -> str | None:
    """Default of a field: given, inside a call of ``Field``, or none."""
    if value is None:
        return None
    if isinstance(value, ast.Call):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in given:
            return literal(given["default"])
        if value.args:
            return literal(value.args[0])
        return "..." if "default_factory" in given else None
    return literal(value)


def literal(node: ast.expr) -> str:
    """A default in source form; ``...`` for what is not a plain literal."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return "..."
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return repr(value) if value in ((), []) else "..."


def render(contract: Json) -> str:
    """The file's text: one name a line, so that a change shows as such."""
    lines = ["{", f'"format": {contract["format"]},']
    lines.append(f'"repository": {json.dumps(contract["repository"])},')
    lines.append('"snapshots": ' + json.dumps(contract["snapshots"], indent=1) + ",")
    entries = [json.dumps(entry) for entry in contract["names"]]
    lines += ['"names": [', ",\n".join(entries), "]", "}"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", type=Path, help="newest first")
    parser.add_argument("--commit", action="append", default=[], metavar="ROOT=COMMIT")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, default=TARGET)
    args = parser.parse_args(argv)
    named = dict(pair.rsplit("=", 1) for pair in args.commit)
    snapshots = [Snapshot.read(root, named.get(str(root))) for root in args.roots]
    text = render(build_contract(snapshots))
    if not args.check:
        args.output.write_text(text, "utf-8")
        print(f"wrote {args.output}")
        return 0
    if args.output.read_text("utf-8") == text:
        return 0
    print(f"{args.output} is stale: run this script without --check", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
