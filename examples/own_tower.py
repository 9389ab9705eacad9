# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A tower of one's own: clips of up to 64 frames, masked attention, one row for four frames."""

import torch
import torch.nn.functional as F
from torch import nn

from tensorrt_llm_ext import MultimodalConfig, MultimodalEncoderMixin, register_tower
from tensorrt_llm_ext.graphs import EncoderGraphTensorSpec, EncoderItem, PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.towers import ItemOutput, load_tower

TIME, MEL, WIDTH, JOIN = 64, 16, 32, 4


class ClipTower(MultimodalEncoderMixin, nn.Module):
    encoder_cuda_graph_modality = "audio"

    def __init__(self, config):
        super().__init__()
        self.embed = nn.Linear(MEL, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(JOIN * WIDTH, config["output_dim"])

    def make_io_adapter(self):  # one row of [batch, time, mel] is worth TIME tokens
        spec, dtype = EncoderGraphTensorSpec, self.dtype
        rows = {"frames": spec((TIME, MEL), dtype, TIME), "mask": spec((TIME,), torch.bool, TIME)}
        features = {"features": spec((self.down.out_features,), dtype, JOIN)}
        return PackedEncoderGraphIOAdapter(row_specs=rows, output_specs=features, unit=TIME)

    def pack_item(self, item):
        frames = item["frames"]
        if frames.dim() != 2 or frames.shape[1] != MEL or not 1 <= len(frames) <= TIME:
            raise ValueError(f"frames is {list(frames.shape)}; expected [1..{TIME}, {MEL}]")
        rows = F.pad(frames, (0, 0, 0, TIME - len(frames)))[None]
        mask = torch.arange(TIME, device=frames.device)[None] < len(frames)
        return EncoderItem((TIME,), {"frames": rows, "mask": mask}, layout=len(frames))

    def encoder_forward(self, inputs, metadata):  # captured: tensors in, tensors out
        mask = inputs["mask"]
        x = self.embed(inputs["frames"])  # [batch, time, width]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        seen = mask[:, None, :] | ~mask[:, :, None]  # unused rows see all: no empty softmax
        x = (x + F.scaled_dot_product_attention(q, k, v, seen)) * mask[..., None]
        return {"features": self.down(x.reshape(-1, JOIN * WIDTH))}

    def make_output(self, item, tensors):
        return ItemOutput(features=tensors["features"][: -(-item.layout // JOIN)])


register_tower("my_audio_model", modality="audio", prefixes=("encoder.",))(ClipTower)

if __name__ == "__main__":
    tower = load_tower({"model_type": "my_audio_model", "output_dim": 24}, modality="audio")
    graphs = {"audio": {"max_batch_size": 4}}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=graphs))
    tower.setup_attn_metadata(max_num_tokens=4 * TIME)
    tower.capture_encoder_cuda_graphs()
    print([out.features.shape for out in tower.encode([{"frames": torch.randn(50, MEL)}] * 3)])
