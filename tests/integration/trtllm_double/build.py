# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Puts a variant of the double into a folder, to be put on ``PYTHONPATH``.

    python tests/integration/trtllm_double/build.py --variant after_20213 DEST

The folder is a copy, so a test may change it: ``edits`` are (file, text, new text), and a text that
is not there is an error. ``DEST/bin`` holds a ``trtllm-serve``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from variants import VARIANTS, Edit  # noqa: E402  (a folder of programs, not a package)


def build_double(dest: str | Path, variant: str, edits: Iterable[Edit] = ()) -> Path:
    """Writes the double.

    Args:
        dest: Folder to write, replaced when it is there.
        variant: One of ``VARIANTS``.
        edits: Changes on top, for tests of what a changed upstream leads to.

    Returns:
        ``dest``.

    Raises:
        ValueError: The variant is not known, or an edit's text is not in its file.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is not known; choose one of {', '.join(VARIANTS)}")
    dest = Path(dest)
    package = dest / "tensorrt_llm"
    if package.exists():
        shutil.rmtree(package)
    shutil.copytree(
        HERE / "base" / "tensorrt_llm", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    plan = VARIANTS[variant]
    for source, target in plan.moves:
        (package / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(package / source, package / target)
    for old, new in plan.everywhere:
        for path in package.rglob("*.py"):
            path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    for edit in (*plan.edits, *edits):
        _apply(package, edit)
    info = dest / "tensorrt_llm-1.4.0rc1+double.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.4.0rc1+double\n", "utf-8"
    )
    command = dest / "bin" / "trtllm-serve"
    command.parent.mkdir(exist_ok=True)
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m tensorrt_llm.commands.serve "$@"\n', "utf-8"
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return dest


def double_environment(dest: Path, **more: str) -> Mapping[str, str]:
    """Environment of a subprocess that finds the double (and the repository under test)."""
    root = HERE.parents[2]
    path = os.pathsep.join([str(dest), str(root), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": path.rstrip(os.pathsep),
        "PATH": f"{dest / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def _apply(package: Path, edit: Edit) -> None:
    path = package / edit.file
    if edit.old is None:
        if edit.new is None:
            path.unlink()
        else:
            path.write_text(edit.new, "utf-8")
        return
    text = path.read_text("utf-8")
    if edit.old not in text:
        raise ValueError(f"{edit.file} does not contain {edit.old!r}")
    path.write_text(text.replace(edit.old, edit.new or ""), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="before_20213")
    parser.add_argument("dest", type=Path)
    args = parser.parse_args()
    print(build_double(args.dest, args.variant))


if __name__ == "__main__":
    main()
