# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts with media: what a caller writes to the token ids that the model reads.

Placeholders are expanded as the processor of each family in transformers expands them: a picture or
a clip becomes one placeholder a feature, a video what its family says. Qwen3-VL, for one, writes
``<12.3 seconds>`` and marks of its own around the tokens of every frame pair, inside whatever the
prompt already put around the placeholder.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
)

from .errors import RequestError
from .families import Family
from .media_inputs import Item, MediaInputs, MediaItem

MODALITIES = ("image", "video", "audio")
"""In the order of their token types, 1 to 3."""
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
_OTHER_KEYS = ("multi_modal_data", "add_generation_prompt", "chat_template_kwargs")
_RESERVED_KWARGS = set(
    inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
) - {"kwargs", "tools", "documents", "continue_final_message"}
"""Arguments of the call that renders, not of the template."""
# A template is the checkpoint's code on the caller's data: it may object to them by itself
# (TemplateError), or trip over them like any other code.
_RENDER_FAULTS = (
    *(TemplateError, DocstringParsingException, TypeHintParsingException),
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
)


@dataclass(frozen=True)
class PreparedPrompt:
    """Token ids with placeholders expanded, and the media they stand for.

    Attributes:
        text: The prompt before expansion; None when token ids were given.
        token_ids: Expanded ids.
        token_types: One entry a token: 0 text, 1 image, 2 video, 3 audio (``mm_token_type_ids``).
        items: Media in prompt order within each modality.
        order: Modality of each item, in prompt order.
    """

    text: str | None
    token_ids: list[int]
    token_types: list[int]
    items: dict[str, list[Item]] = field(repr=False)
    order: tuple[str, ...] = ()


class PromptBuilder:
    """Builds prompts for one checkpoint.

    Args:
        tokenizer: The checkpoint's tokenizer.
        media: The checkpoint's media rules.
        family: What the model expects around and in place of media.
        config: The model's configuration, which has the ids of special tokens.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, media: MediaInputs, family: Family, config: Any
    ) -> None:
        self.tokenizer = tokenizer
        self.media = media
        self._family = family
        self._ids = {name: int(getattr(config, key)) for name, key in family.tokens.items()}
        self._words = {
            name: str(tokenizer.convert_ids_to_tokens(i)) for name, i in self._ids.items()
        }
        self._expand_video = family.video_expander(media.processor_class)
        self.placeholder_ids = {m: self._ids[m] for m in family.modalities}
        self.placeholders = {m: self._words[m] for m in family.modalities}
        self._fillers = {m: m for m in family.modalities}
        self._fillers["video"] = family.video_filler

    def prepare(self, inputs: Any) -> PreparedPrompt:
        """Check a request's input, render and expand it. Pixels are not touched yet.

        Args:
            inputs: A string; a list of token ids; or a mapping with exactly one of ``prompt``,
                ``prompt_token_ids``, ``messages``, and optionally ``multi_modal_data``
                (``{"image": [...], "video": [...], "audio": [...]}``). With ``messages`` the media
                stand in the content parts (``{"type": "image", "image": picture}``).

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
        variables = _template_variables(request.get("chat_template_kwargs", {}))
        try:
            text = self.tokenizer.apply_chat_template(
                plain,
                tokenize=False,
                add_generation_prompt=request.get("add_generation_prompt", True),
                **variables,
            )
        except _RENDER_FAULTS as error:
            raise RequestError(
                f"the chat template cannot render these messages and chat_template_kwargs: "
                f"{type(error).__name__}: {error}"
            ) from error
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
        _check_encodable(text)
        pattern = "|".join(map(re.escape, self.placeholders.values()))
        pieces = re.split(f"({pattern})", text)
        modality_of = {token: m for m, token in self.placeholders.items()}
        order = tuple(modality_of[token] for token in pieces[1::2])
        items = self._plan(order, media)
        pieces[1::2] = [self._replacement(item) for item in _in_order(order, items)]
        ids = self.tokenizer("".join(pieces))["input_ids"]
        return self._finish(text, list(ids), items, order)

    def _expand_ids(self, ids: Any, media: dict[str, list[Any]]) -> PreparedPrompt:
        if not is_token_ids(ids):
            raise RequestError("prompt_token_ids must be a non-empty list of non-negative integers")
        size = len(self.tokenizer)
        too_big = [i for i in ids if not 0 <= i < size]
        if too_big:
            raise RequestError(
                f"prompt_token_ids holds {too_big[0]}; ids must lie in 0..{size - 1}"
            )
        modality_of = {token: m for m, token in self.placeholder_ids.items()}
        order = tuple(modality_of[token] for token in map(int, ids) if token in modality_of)
        items = self._plan(order, media)
        replacements = map(self._replacement, _in_order(order, items))
        out: list[int] = []
        for token in map(int, ids):
            if token in modality_of:
                out += self.tokenizer(next(replacements), add_special_tokens=False)["input_ids"]
            else:
                out.append(token)
        return self._finish(None, out, items, order)

    def _plan(self, order: tuple[str, ...], media: dict[str, list[Any]]) -> dict[str, list[Item]]:
        for modality in media:
            if modality not in self.placeholders:
                raise RequestError(
                    f"multi_modal_data has {modality!r}; this model takes "
                    f"{', '.join(self.placeholders)}"
                )
        for modality, word in self.placeholders.items():
            count, given = order.count(modality), len(media.get(modality, []))
            if given != count:
                raise RequestError(
                    f"the prompt has {count} {word} placeholders and the request has {given} "
                    f"{modality} items; they must be equal (a placeholder typed as text counts too)"
                )
        return {
            modality: [self.media.plan(modality, item) for item in given]
            for modality, given in media.items()
            if given
        }

    def _replacement(self, item: Item) -> str:
        if isinstance(item, MediaItem) and item.modality == "video":
            return self._expand_video(item, self._words)
        return self.placeholders[item.modality] * item.num_tokens

    def _finish(
        self,
        text: str | None,
        ids: list[int],
        items: dict[str, list[Item]],
        order: tuple[str, ...],
    ) -> PreparedPrompt:
        if not ids:
            raise RequestError("the prompt is empty; give at least one token")
        array = np.asarray(ids)
        types = np.zeros(len(ids), dtype=np.int64)
        filled = np.flatnonzero(np.isin(array, [self._ids[f] for f in self._fillers.values()]))
        number = {m: n for n, m in enumerate(MODALITIES, start=1)}
        planned = _in_order(order, items)
        kinds = np.repeat(
            [number[item.modality] for item in planned] or [0],
            [item.num_tokens for item in planned] or [0],
        )
        if len(kinds) != len(filled):
            raise RuntimeError(f"{len(filled)} placeholders for {len(kinds)} features")
        types[filled] = kinds
        self._check_runs(types, planned)
        self._family.check_marks(types, array, self._ids, self._words)
        return PreparedPrompt(text, ids, types.tolist(), items, order)

    def _check_runs(self, types: np.ndarray, planned: list[Item]) -> None:
        """Positions are given a run of placeholders at a time, so two items must not touch."""
        starts = np.flatnonzero(np.diff(types, prepend=0))
        runs = types[starts]
        for number, modality in enumerate(MODALITIES, start=1):
            if modality not in self.placeholders:
                continue
            filler = re.escape(self._words[self._fillers[modality]])
            wanted = sum(
                len(re.findall(f"(?:{filler})+", self._replacement(item)))
                for item in planned
                if item.modality == modality
            )
            if int((runs == number).sum()) != wanted:
                raise RequestError(
                    f"two {self.placeholders[modality]} placeholders stand side by side; put text "
                    "or the marks of the chat template around each"
                )


def _template_variables(given: Any) -> Mapping[str, Any]:
    """Check chat_template_kwargs."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise RequestError(
            f"chat_template_kwargs is {given!r:.80}; it must be a mapping from names of the "
            "template's variables to values"
        )
    reserved = sorted(_RESERVED_KWARGS & set(given))
    if reserved:
        raise RequestError(
            f"chat_template_kwargs has {', '.join(reserved)}, which belong to the engine; give "
            "variables of the checkpoint's template only (and add_generation_prompt beside "
            "'messages')"
        )
    return given


def _check_encodable(text: str) -> None:
    """Half a surrogate pair, as broken JSON escapes leave it, is no text to any tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the prompt holds {text[error.start]!a} at character {error.start}, half of a "
            "surrogate pair; repair or remove it"
        ) from error


def _in_order(order: tuple[str, ...], items: Mapping[str, Sequence[Item]]) -> list[Item]:
    """Items of all modalities in prompt order."""
    queues = {modality: iter(planned) for modality, planned in items.items()}
    return [next(queues[modality]) for modality in order]


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
    several videos: a list whose entries are pictures is one video. Under "audio" a tuple is one
    clip with its rate.
    """
    if not isinstance(value, (list, tuple)) or (modality == "audio" and isinstance(value, tuple)):
        return [value]
    if modality != "video" or not value:
        return list(value)
    is_frames = all(not isinstance(v, (list, tuple, Mapping)) and _ndim(v) in (2, 3) for v in value)
    return [list(value)] if is_frames else list(value)


def _ndim(value: Any) -> int:
    return len(value.shape) if hasattr(value, "shape") else 3
