# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Real server processes, and what they say of themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .checkpoints import make_tiny_checkpoint

STANDBY = Path(__file__).with_name("standby.py")
ROOT = STANDBY.parents[2]
_START_TIMEOUT = 300.0
_SERVING = re.compile(r"serving .* on (http://\S+)")


class ServerError(RuntimeError):
    """A server that did not start or did not stop; the message has the end of its log."""


class Server:
    """A process that waits, serves, and stops.

    Args:
        log: File for what it writes.
        environment: Variables on top of ours.
    """

    def __init__(self, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.url = ""
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(STANDBY)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **own, **(environment or {})},
            )

    def serve(self, arguments: Sequence[str], timeout: float) -> str:
        """Tell it what to serve and wait until it does.

        Args:
            arguments: Of `trtllm-ext`; port 0 is best.
            timeout: Seconds to wait.

        Returns:
            Its URL.

        Raises:
            ServerError: It ended, or the time did.
        """
        if self.process.stdin is None:
            raise ServerError("the process has no standard input")
        self.process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
        self.process.stdin.flush()
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if found := _SERVING.search(self.log.read_text(errors="replace")):
                self.url = found[1]
                return self.url
            if self.process.poll() is not None:
                raise ServerError(f"the server ended with {self.process.returncode}{self._tail()}")
            time.sleep(0.05)
        raise ServerError(f"no server within {timeout:g} s{self._tail()}")

    def serve_checkpoint(
        self, folder: Path, file: Path, config: Mapping[str, Any], name: str, *flags: str
    ) -> str:
        """Serve a checkpoint on this machine alone, on any free port.

        Args:
            folder: The checkpoint.
            file: Where the configuration is written.
            config: What it is.
            name: What clients call the model.
            flags: More of `trtllm-ext serve`.

        Returns:
            The server's URL.
        """
        file.write_text(json.dumps(config))  # JSON is YAML
        arguments = ["serve", str(folder), "--config", str(file), "--host", "127.0.0.1"]
        arguments += ["--port", "0", "--served_model_name", name, *flags]
        return self.serve(arguments, _START_TIMEOUT)

    def serve_tiny(
        self, work: Path, family: str, config: Mapping[str, Any], name: str, *flags: str
    ) -> tuple[str, Path]:
        """Make a tiny checkpoint and serve it; see `serve_checkpoint`.

        Args:
            work: Folder for the checkpoint and the configuration.
            family: Of `examples/make_tiny_checkpoint.py`.
            config: What the configuration is.
            name: What clients call the model.
            flags: More of `trtllm-ext serve`.

        Returns:
            The server's URL, and the checkpoint.
        """
        folder = make_tiny_checkpoint(work / "model", family)
        return self.serve_checkpoint(folder, work / "serve.yaml", config, name, *flags), folder

    def stop(self, timeout: float = 60.0) -> int:
        """Ask it to drain and wait for its end.

        Returns:
            Its exit code.

        Raises:
            ServerError: It was still there and had to be killed.
        """
        if self.process.stdin is not None:
            self.process.stdin.close()  # where it still waits for a word, this is its end
        if self.url:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ServerError(f"no end within {timeout:g} s of SIGTERM{self._tail()}") from None

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "".join(f"\n  {line}" for line in lines)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(url: str) -> Series:
    """Every sample of a server's Prometheus page, by name and sorted labels."""
    page = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).raise_for_status().text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def by_label(series: Series, name: str, *labels: str) -> dict[str, float]:
    """Samples of one name, added up by the values of some labels, which are joined by "/"."""
    sums: dict[str, float] = {}
    for (sample, found), value in series.items():
        if sample == name:
            key = "/".join(dict(found)[label] for label in labels)
            sums[key] = sums.get(key, 0.0) + value
    return sums


def difference(before: Series, after: Series) -> Series:
    """What was counted in between."""
    return {key: value - before.get(key, 0.0) for key, value in after.items()}
