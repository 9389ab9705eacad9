# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets, packer, static buffers, runner, lifecycle, report: no model, no host, no HTTP."""
