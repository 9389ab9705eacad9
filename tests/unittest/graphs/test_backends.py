# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Which backend a device has, and the modes that a capture is kept free of."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.graphs.backends import can_capture, graph_backend_for, plain_mode
from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend


@pytest.mark.parametrize(("device", "yes"), [("cpu", True), ("cuda", True), ("meta", False)])
def test_can_capture(device, yes):
    assert can_capture(torch.device(device)) is yes


def test_backend_of_a_device():
    assert isinstance(graph_backend_for(torch.device("cpu")), StaticGraphBackend)
    assert graph_backend_for(torch.device("meta")) is None
    first, second = (graph_backend_for(torch.device("cpu")) for _ in range(2))
    assert first is not second  # a pool of its own


def test_plain_mode():
    a = torch.randn(4, 4, requires_grad=True)
    with (
        torch.enable_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        plain_mode(torch.device("cpu")),
    ):
        product = a @ a
        assert product.dtype is torch.float32
        assert not product.requires_grad
    with torch.inference_mode():
        with plain_mode(torch.device("cpu")):
            buffer = torch.zeros(2)
        assert torch.is_inference_mode_enabled()
    buffer.copy_(torch.ones(2))  # not an inference tensor: it can be written out here
    assert torch.is_grad_enabled()
