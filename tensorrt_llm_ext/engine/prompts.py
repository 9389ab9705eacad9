# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts with media: what a caller writes to the token ids that the model reads.

Placeholders are expanded as transformers' ``Qwen3VLProcessor`` expands them: a picture becomes one
``<|image_pad|>`` a merged patch; a video becomes, for every frame pair, ``<12.3 seconds>`` and its
own ``<|vision_start|>...<|vision_end|>`` around the ``<|video_pad|>`` tokens, inside whatever the
prompt already put around the placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from .errors import RequestError
from .media_inputs import MediaInputs, MediaItem

MODALITIES = ("image", "video")
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
_OTHER_KEYS = ("multi_modal_data", "add_generation_prompt", "chat_template_kwargs")


@dataclass(frozen=True)
class PreparedPrompt:
    """Token ids with placeholders expanded, and the media they stand for.

    Attributes:
        text: The prompt before expansion; None when token ids were given.
        token_ids: Expanded ids.
        token_types: One entry a token: 0 text, 1 image, 2 video (``mm_token_type_ids``).
        items: Media in prompt order within each modality.
    """

    text: str | None
    token_ids: list[int]
    token_types: list[int]
    items: dict[str, list[MediaItem]] = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Patch rows of all media together."""
        return sum(item.num_rows for items in self.items.values() for item in items)

    @property
    def num_items(self) -> int:
        """Pictures and videos together."""
        return sum(map(len, self.items.values()))


class PromptBuilder:
    """Builds prompts for one checkpoint.

    Args:
        tokenizer: The checkpoint's tokenizer.
        media: The checkpoint's media rules.
        token_ids: Placeholder token id of each modality, from the model's config.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, media: MediaInputs, token_ids: Mapping[str, int]
    ) -> None:
        self.tokenizer = tokenizer
        self.media = media
        self.placeholder_ids = dict(token_ids)
        self.placeholders = {
            m: str(tokenizer.convert_ids_to_tokens(i)) for m, i in token_ids.items()
        }
        self._vision_start = str(getattr(tokenizer, "vision_start_token", "<|vision_start|>"))
        self._vision_end = str(getattr(tokenizer, "vision_end_token", "<|vision_end|>"))

    def prepare(self, inputs: Any) -> PreparedPrompt:
        """Check a request's input, render and expand it. Pixels are not touched yet.

        Args:
            inputs: A string; a list of token ids; or a mapping with exactly one of ``prompt``,
                ``prompt_token_ids``, ``messages``, and optionally ``multi_modal_data``
                (``{"image": [...], "video": [...]}``). With ``messages`` the media stand in the
                content parts (``{"type": "image", "image": picture}``).

        Returns:
            The prepared prompt.

        Raises:
            RequestError: Anything in the input cannot be used.
        """
        request = self._normalise(inputs)
        if "messages" in request:
            text, media = self._render(request)
            return self._expand_text(text, media)
        media = _media_lists(request.get("multi_modal_data"))
        if "prompt" in request:
            prompt = request["prompt"]
            if not isinstance(prompt, str):
                raise RequestError(f"prompt is a {type(prompt).__name__}; it must be a string")
            return self._expand_text(prompt, media)
        return self._expand_ids(request["prompt_token_ids"], media)

    def _normalise(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, str):
            return {"prompt": inputs}
        if is_token_ids(inputs):
            return {"prompt_token_ids": list(inputs)}
        if not isinstance(inputs, Mapping):
            raise RequestError(
                f"prompt is a {type(inputs).__name__}; give a string, token ids or a mapping with "
                "one of "
                f"{', '.join(_PROMPT_KEYS)}"
            )
        unknown = sorted(map(str, set(inputs) - set(_PROMPT_KEYS) - set(_OTHER_KEYS)))
        if unknown:
            raise RequestError(
                f"prompt has unknown keys {unknown}; allowed: "
                f"{', '.join(_PROMPT_KEYS + _OTHER_KEYS)}"
            )
        given = [key for key in _PROMPT_KEYS if inputs.get(key) is not None]
        if len(given) != 1:
            raise RequestError(
                f"prompt has {given or 'none'} of {', '.join(_PROMPT_KEYS)}; give exactly one"
            )
        keep = (given[0], *_OTHER_KEYS)
        return {key: value for key, value in inputs.items() if key in keep and value is not None}

    def _render(self, request: dict[str, Any]) -> tuple[str, dict[str, list[Any]]]:
        """Apply the chat template; media move from the content parts into lists."""
        if "multi_modal_data" in request:
            raise RequestError(
                "messages and multi_modal_data were both given; put the media into the messages"
            )
        if not getattr(self.tokenizer, "chat_template", None):
            raise RequestError(
                "the checkpoint has no chat template; give 'prompt' instead of 'messages'"
            )
        messages = request["messages"]
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise RequestError("messages must be a non-empty list of {'role': ..., 'content': ...}")
        media: dict[str, list[Any]] = {}
        plain = [self._plain_message(message, media) for message in messages]
        text = self.tokenizer.apply_chat_template(
            plain,
            tokenize=False,
            add_generation_prompt=request.get("add_generation_prompt", True),
            **request.get("chat_template_kwargs", {}),
        )
        return str(text), media

    def _plain_message(self, message: Any, media: dict[str, list[Any]]) -> dict[str, Any]:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"message {message!r:.80} is not a mapping with a string 'role'")
        content = message.get("content")
        if isinstance(content, str):
            self._refuse_typed_placeholder(content)
            return dict(message)
        if not isinstance(content, Sequence):
            raise RequestError(
                f"content of a {message['role']} message must be a string or a list of parts"
            )
        parts = []
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "text" and isinstance(part.get("text"), str):
                self._refuse_typed_placeholder(part["text"])
                parts.append({"type": "text", "text": part["text"]})
            elif kind in self.placeholders and part.get(kind) is not None:
                media.setdefault(kind, []).append(part[kind])
                parts.append({"type": kind})
            else:
                raise RequestError(
                    f"content part of type {kind!r} cannot be used; allowed: "
                    f"{{'type': 'text', 'text': str}}, "
                    + ", ".join(f"{{'type': {m!r}, {m!r}: ...}}" for m in self.placeholders)
                )
        return {**message, "content": parts}

    def _refuse_typed_placeholder(self, text: str) -> None:
        for modality, token in self.placeholders.items():
            if token in text:
                raise RequestError(
                    f"a message's text contains the placeholder token {token}; remove it, and "
                    "give the "
                    f"{modality} as a content part of its own"
                )

    def _expand_text(self, text: str, media: dict[str, list[Any]]) -> PreparedPrompt:
        """Expand in the text, then tokenize: timestamps may merge with the text beside them."""
        pattern = "|".join(map(re.escape, self.placeholders.values()))
        pieces = re.split(f"({pattern})", text)
        found = {m: pieces[1::2].count(token) for m, token in self.placeholders.items()}
        items = self._plan(found, media)
        queues = {self.placeholders[m]: iter(planned) for m, planned in items.items()}
        for i in range(1, len(pieces), 2):
            pieces[i] = self._replacement(next(queues[pieces[i]]))
        ids = self.tokenizer("".join(pieces))["input_ids"]
        return self._finish(text, list(ids), items)

    def _expand_ids(self, ids: Any, media: dict[str, list[Any]]) -> PreparedPrompt:
        if not is_token_ids(ids):
            raise RequestError("prompt_token_ids must be a non-empty list of non-negative integers")
        size = len(self.tokenizer)
        too_big = [i for i in ids if not 0 <= i < size]
        if too_big:
            raise RequestError(
                f"prompt_token_ids holds {too_big[0]}; ids must lie in 0..{size - 1}"
            )
        found = {m: list(ids).count(token) for m, token in self.placeholder_ids.items()}
        items = self._plan(found, media)
        queues = {self.placeholder_ids[m]: iter(planned) for m, planned in items.items()}
        out: list[int] = []
        for token in map(int, ids):
            if token in queues:
                replacement = self._replacement(next(queues[token]))
                out += self.tokenizer(replacement, add_special_tokens=False)["input_ids"]
            else:
                out.append(token)
        return self._finish(None, out, items)

    def _plan(
        self, found: dict[str, int], media: dict[str, list[Any]]
    ) -> dict[str, list[MediaItem]]:
        for modality in media:
            if modality not in self.placeholders:
                raise RequestError(
                    f"multi_modal_data has {modality!r}; this model takes "
                    f"{', '.join(self.placeholders)}"
                )
        for modality, count in found.items():
            given = len(media.get(modality, []))
            if given != count:
                raise RequestError(
                    f"the prompt has {count} {self.placeholders[modality]} placeholders and the "
                    "request has "
                    f"{given} {modality} items; they must be equal (a placeholder typed as text "
                    "counts too)"
                )
        return {
            modality: [self.media.plan(modality, item) for item in given]
            for modality, given in media.items()
            if given
        }

    def _replacement(self, item: MediaItem) -> str:
        rule = self.media.image_rule if item.modality == "image" else self.media.video_rule
        token = self.placeholders[item.modality]
        if item.modality == "image":
            return token * (item.num_rows // rule.merge_size**2)
        t, h, w = item.grid_thw
        run = self._vision_start + token * (h * w // rule.merge_size**2) + self._vision_end
        return "".join(f"<{seconds:.1f} seconds>{run}" for seconds in item.frame_times[:t])

    def _finish(
        self, text: str | None, ids: list[int], items: dict[str, list[MediaItem]]
    ) -> PreparedPrompt:
        if not ids:
            raise RequestError("the prompt is empty; give at least one token")
        array = np.asarray(ids)
        types = np.zeros(len(ids), dtype=np.int64)
        for number, modality in enumerate(MODALITIES, start=1):
            types[array == self.placeholder_ids[modality]] = number
        self._check_runs(types, items)
        return PreparedPrompt(text, ids, types.tolist(), items)

    def _check_runs(self, types: np.ndarray, items: dict[str, list[MediaItem]]) -> None:
        """Positions are given a run of placeholders at a time, so two items must not touch."""
        starts = np.flatnonzero(np.diff(types, prepend=0))
        runs = types[starts]
        for number, modality in enumerate(MODALITIES, start=1):
            planned = items.get(modality, [])
            wanted = sum(item.grid_thw[0] for item in planned)
            if int((runs == number).sum()) != wanted:
                raise RequestError(
                    f"two {self.placeholders[modality]} placeholders stand side by side; put text "
                    "or "
                    f"{self._vision_start} and {self._vision_end} around each"
                )


def is_token_ids(value: Any) -> bool:
    """Whether a value is a non-empty sequence of ints (bools are not ids)."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.size > 0 and np.issubdtype(value.dtype, np.integer)
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in value)


def _media_lists(data: Any) -> dict[str, list[Any]]:
    """Normalise multi_modal_data to lists; a single picture or video may stand alone."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise RequestError(
            f"multi_modal_data is a {type(data).__name__}; it must be a mapping such as "
            f"{{'image': [...]}}"
        )
    return {str(m): as_items(str(m), value) for m, value in data.items() if value is not None}


def as_items(modality: str, value: Any) -> list[Any]:
    """A modality's media as a list of items.

    A list of pictures is several images, but under "video" it could be one video's frames or
    several
    videos: a list whose entries are pictures is one video.
    """
    if not isinstance(value, (list, tuple)):
        return [value]
    if modality != "video" or not value:
        return list(value)
    is_frames = all(not isinstance(v, (list, tuple, Mapping)) and _ndim(v) in (2, 3) for v in value)
    return [list(value)] if is_frames else list(value)


def _ndim(value: Any) -> int:
    return len(value.shape) if hasattr(value, "shape") else 3
