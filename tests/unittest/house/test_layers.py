# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, how long a file may be, and what every file begins with."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "tensorrt_llm_ext"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Imports go llmapi.llm -> engine -> towers -> graphs -> ops; the configuration modules of llmapi
# import nothing of the package but each other, and everything may import them.
HOSTS = {"engine", "serve", "trtllm", "media", "cli", "commands", "llmapi.llm"}
FORBIDDEN = {
    "ops": {*HOSTS, "towers", "graphs"},
    "graphs": {*HOSTS, "towers"},
    "towers": HOSTS,
    "engine": {"serve", "trtllm", "cli", "commands", "llmapi.llm"},
    "media": {"serve", "trtllm", "cli", "commands", "llmapi.llm", "towers", "graphs", "ops"},
    "llmapi": {"serve", "trtllm", "cli", "commands"},
}
HOST_PACKAGES = {"transformers", "tensorrt_llm"}
# Towers of transformers as they are; imported at the first such tower only.
ADAPTER = "tensorrt_llm_ext.towers.hf_adapter"


def imported(source: str, module: str) -> Iterator[str]:
    """Absolute names of everything a module imports, inside functions too."""
    parts = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = parts[: len(parts) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """Dotted name; a package's own file keeps its ``__init__``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def violations(source: str, module: str) -> set[str]:
    """Imports that the layering forbids."""
    area = module.split(".")[1]
    names = set(imported(source, module))
    bad = set()
    for name in names:
        top, *rest = name.split(".")
        if top == "tensorrt_llm" and area != "trtllm":
            bad.add(name)
        adapted = top == "transformers" and module == ADAPTER
        if top in HOST_PACKAGES and area in ("ops", "graphs", "towers") and not adapted:
            bad.add(name)
        if top == "tensorrt_llm_ext" and rest:
            inner = ".".join(rest)
            for other in FORBIDDEN.get(area, set()):
                if inner == other or inner.startswith(other + "."):
                    bad.add(name)
    return bad


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_layers(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module_name(path)) == set()


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import transformers.utils", "tensorrt_llm_ext.towers.x"),
        ("from transformers import AutoModel", "tensorrt_llm_ext.graphs.x"),
        ("def f():\n    import tensorrt_llm", "tensorrt_llm_ext.engine.x"),
        ("from ..towers import mixin", "tensorrt_llm_ext.graphs.x"),
        ("from .. import engine", "tensorrt_llm_ext.towers.__init__"),
        ("from tensorrt_llm_ext.graphs.runner import Runner", "tensorrt_llm_ext.ops.x"),
        ("from ..llmapi.llm import LLM", "tensorrt_llm_ext.towers.x"),
    ],
)
def test_layer_check_sees_it(source: str, module: str) -> None:
    assert violations(source, module)


def test_layer_check_allows_configuration_everywhere() -> None:
    source = "from ..llmapi.mm_config import MultimodalConfig\nfrom ..graphs import runner"
    assert violations(source, "tensorrt_llm_ext.towers.x") == set()
    assert violations("import tensorrt_llm", "tensorrt_llm_ext.trtllm.x") == set()


# Of third parties, `import tensorrt_llm_ext.towers` needs these.
BASE = {"numpy", "pydantic", "safetensors", "torch"}
# Helpers of theirs, which they load late.
HELPERS = {
    "annotated_types",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "triton",
    "typing_extensions",
}


def imported_at_once(source: str) -> set[str]:
    """Third-party packages that a module imports outside functions and type checking."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
        todo += ast.iter_child_nodes(node)
    return found - set(sys.stdlib_module_names) - {"tensorrt_llm_ext"}


@pytest.mark.parametrize("area", ["ops", "graphs", "towers"])
def test_lower_layers_import_four_packages_only(area: str) -> None:
    for path in (PACKAGE / area).rglob("*.py"):
        loaded = imported_at_once(path.read_text(encoding="utf-8"))
        # Triton comes with torch's CUDA builds; without it the kernels' references run.
        allowed = {"triton"} if path == PACKAGE / "ops" / "kernels.py" else set()
        assert loaded <= {*BASE, "typing_extensions"} | allowed, path


def test_import_check_sees_it() -> None:
    source = "import yaml\nif TYPE_CHECKING:\n    import av\ndef f():\n    import tqdm\nimport os"
    assert imported_at_once(source) == {"yaml"}
    assert imported_at_once("try:\n    import PIL.Image\nexcept ImportError: ...") == {"PIL"}


def third_party_after(statement: str) -> set[str]:
    """Third-party packages that a fresh interpreter has loaded after a statement."""
    code = (
        f"import json, sys; start = set(sys.modules); {statement}; "
        "print(json.dumps(sorted({m.split('.')[0] for m in set(sys.modules) - start})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(json.loads(run.stdout.splitlines()[-1]))
    return {n for n in names - set(sys.stdlib_module_names) if not n.startswith("_")}


def test_towers_load_four_packages_only() -> None:
    base = third_party_after("import numpy, pydantic, safetensors.torch, torch")
    loaded = third_party_after(
        "import numpy, pydantic, safetensors.torch, torch; import tensorrt_llm_ext.towers"
    )
    assert "tensorrt_llm_ext" in loaded
    assert loaded - base - HELPERS == {"tensorrt_llm_ext"}
    assert not loaded & {"transformers", "tensorrt_llm", "yaml", "click", "PIL", "rich"}


def test_package_itself_loads_nothing() -> None:
    assert third_party_after("import tensorrt_llm_ext") == {"tensorrt_llm_ext"}


LINE_LIMITS = {
    "graphs/runner.py": 250,
    "llmapi/upstream_keys.py": 600,  # a table of upstream's keys, one entry each, no logic
}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_file_length(path: Path) -> None:
    limit = LINE_LIMITS.get(path.relative_to(PACKAGE).as_posix(), 400)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= limit, f"{lines} lines, at most {limit}: split it"


SOURCES = sorted(
    [
        *(p for folder in ("tensorrt_llm_ext", "tests", "examples", "scripts", "benchmarks")
          for p in (ROOT / folder).rglob("*.py")),
        *(ROOT / name for name in ("setup.py", "pyproject.toml", "Makefile", ".ci/run")),
    ]
)  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_spdx_header(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    assert lines[:2] == [
        "# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors",
        "# SPDX-License-Identifier: Apache-2.0",
    ]
