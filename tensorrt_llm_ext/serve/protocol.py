# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What clients send: OpenAI's requests with the parts and the sampling keys of trtllm-serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from ..llmapi.base import MAX_INT, json_equal
from ..llmapi.sampling_params import SamplingParams
from ..media import MediaPart
from .errors import bad_request

_MOST = 4096
"""Messages, or parts of one. The first that is wrong is enough: an error for each would
take seconds to write, and far more memory than the request."""
_MOST_KEYS = 64
"""Of an object; more than any has."""


class WireModel(BaseModel):
    """Strict: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _bound_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > _MOST_KEYS:  # each would be an error of its own
            text = "an object has {count} keys; at most {most} are known"
            raise PydanticCustomError(
                "too_many_keys", text, {"count": len(data), "most": _MOST_KEYS}
            )
        return data


class TextPart(WireModel):
    """Text."""

    type: Literal["text"]
    text: str


class ImageUrl(WireModel):
    """Where a picture is."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class MediaUrl(WireModel):
    """Where a video or a clip is."""

    url: str


class InputAudio(WireModel):
    """A clip itself."""

    data: str = Field(description="Base64.")
    format: Literal["wav", "mp3", "flac", "ogg"]


class ImagePart(WireModel):
    """A picture."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def media(self) -> MediaPart:
        """The picture."""
        return MediaPart("image", self.image_url.url)


class VideoPart(WireModel):
    """A video."""

    type: Literal["video_url"]
    video_url: MediaUrl

    def media(self) -> MediaPart:
        """The video."""
        return MediaPart("video", self.video_url.url)


class AudioPart(WireModel):
    """A clip, by URL."""

    type: Literal["audio_url"]
    audio_url: MediaUrl

    def media(self) -> MediaPart:
        """The clip."""
        return MediaPart("audio", self.audio_url.url)


class InputAudioPart(WireModel):
    """A clip, as OpenAI's clients send it."""

    type: Literal["input_audio"]
    input_audio: InputAudio

    def media(self) -> MediaPart:
        """The clip; its base64 text is decoded where its bytes are."""
        kind = "mpeg" if self.input_audio.format == "mp3" else self.input_audio.format
        return MediaPart("audio", f"data:audio/{kind};base64,{self.input_audio.data}")


MediaContent = ImagePart | VideoPart | AudioPart | InputAudioPart


def _kind_of_part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"@{kind}"


def _text_or_list(value: Any) -> str:
    return "@text" if isinstance(value, str) else "@list"


# Tags begin with @, so that they can be told from fields in the path of an error.
_Image = Annotated[ImagePart, Tag("@image_url")]
_Video = Annotated[VideoPart, Tag("@video_url")]
_Audio = Annotated[AudioPart, Tag("@audio_url")]
_Input = Annotated[InputAudioPart, Tag("@input_audio")]
_MEDIA_TYPES = "image_url, video_url, audio_url or input_audio"
AnyMediaPart = Annotated[
    _Image | _Video | _Audio | _Input,
    Discriminator(
        _kind_of_part,
        custom_error_type="part_type",
        custom_error_message=f"must be a part whose type is {_MEDIA_TYPES}",
    ),
]
AnyPart = Annotated[
    Annotated[TextPart, Tag("@text")] | _Image | _Video | _Audio | _Input,
    Discriminator(
        _kind_of_part,
        custom_error_type="part_type",
        custom_error_message=f"must be a part whose type is text, {_MEDIA_TYPES}",
    ),
]
Content = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[list[AnyPart], Field(max_length=_MOST, fail_fast=True), Tag("@list")],
    Discriminator(_text_or_list),
]
# Bounded: the engine looks for each of them in the text at every token.
_StopText = Annotated[str, Field(max_length=1024)]
Stop = Annotated[
    Annotated[_StopText, Tag("@text")]
    | Annotated[list[_StopText], Field(max_length=64), Tag("@list")],
    Discriminator(_text_or_list),
]


class Message(WireModel):
    """One message of a conversation."""

    empty: ClassVar[frozenset[str]] = frozenset(
        {"refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id"}
    )
    """Keys of an answer that a client sends back whole; here nothing is in them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in cls.empty or v not in (None, [])}


class StreamOptions(WireModel):
    """How a stream ends."""

    include_usage: bool | None = None


class ChatCompletionRequest(WireModel):
    """Body of POST /v1/chat/completions."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            *("user", "metadata", "store", "service_tier", "safety_identifier"),
            *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
        }
    )
    """Keys that clients send as a matter of course and that change no answer here."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "n": (1,),
        "best_of": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "logit_bias": ({},),
        "min_p": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "use_beam_search": (False,),
    }
    """Keys that are taken with a value that asks for nothing; others are refused by name."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=_MOST, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Stop | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for key, value in data.items():
            if key in cls.neutral:
                allowed = cls.neutral[key]
                if value is not None and not any(json_equal(value, one) for one in allowed):
                    values = ", ".join(["null", *map(json.dumps, allowed)])
                    raise _conflict(key, f"{key} can only be {values} here")
            elif key not in cls.ignored:
                kept[key] = value
        return kept

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise _conflict("max_tokens", "max_tokens and max_completion_tokens differ; give one")
        if self.stream_options is not None and not self.stream:
            raise _conflict("stream_options", "stream_options needs stream: true")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens to generate; None: as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    def sampling_params(self) -> SamplingParams:
        """Sampling parameters; what is left out is as OpenAI has it, so that tokens are drawn.

        Raises:
            ApiError: They do not fit together.
        """
        given = {
            "max_tokens": self.wanted_tokens or MAX_INT,
            "min_tokens": self.min_tokens,
            "temperature": 1.0 if self.temperature is None else float(self.temperature),
            "top_p": None if self.top_p is None else float(self.top_p),
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": self.stop or None,
            "ignore_eos": bool(self.ignore_eos),
            "skip_special_tokens": self.skip_special_tokens is not False,
        }
        try:
            return SamplingParams.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            raise bad_request(first["msg"], ".".join(map(str, first["loc"])) or None) from error

    @property
    def num_chars(self) -> int:
        """Characters of text in it: all that a chat template could write out."""
        return sum(len(text) for text in self._texts())

    def _texts(self) -> Iterator[str]:
        for message in self.messages:
            if isinstance(message.content, str):
                yield message.content
            else:
                yield from (part.text for part in message.content if isinstance(part, TextPart))
        left: list[Any] = [self.chat_template_kwargs]
        while left:
            value = left.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict):
                left += [*value, *value.values()]
            elif isinstance(value, list):
                left += value

    def media_parts(self) -> list[MediaPart]:
        """Pictures, videos and clips, in order."""
        return [
            part.media()
            for message in self.messages
            if not isinstance(message.content, str)
            for part in message.content
            if not isinstance(part, TextPart)
        ]

    def prompt(self, media: list[tuple[str, Any]]) -> dict[str, Any]:
        """The engine's form of it.

        Args:
            media: Modality and decoded content of each of :meth:`media_parts`.
        """
        remaining = iter(media)
        messages = []
        for message in self.messages:
            content: Any = message.content
            if not isinstance(content, str):
                content = [
                    {"type": "text", "text": part.text}
                    if isinstance(part, TextPart)
                    else _engine_part(*next(remaining))
                    for part in content
                ]
            role = "system" if message.role == "developer" else message.role
            messages.append({"role": role, "content": content})
        prompt: dict[str, Any] = {"messages": messages}
        if self.add_generation_prompt is not None:
            prompt["add_generation_prompt"] = self.add_generation_prompt
        if self.chat_template_kwargs is not None:
            prompt["chat_template_kwargs"] = self.chat_template_kwargs
        return prompt


class EmbeddingsRequest(WireModel):
    """Body of POST /v1/embeddings: features of media, one entry an item."""

    model: str
    input: Annotated[list[AnyMediaPart], Field(min_length=1, max_length=_MOST, fail_fast=True)] = (
        Field(description="Pictures, videos and clips, as parts of a chat message.")
    )
    encoding_format: Literal["float", "base64", "safetensors"] = Field(
        "float",
        description="Numbers, base64 of little-endian float32, or a body of safetensors.",
    )
    user: str | None = None


class ErrorDetails(WireModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(WireModel):
    """Body of every answer other than success."""

    error: ErrorDetails


def _conflict(key: str, text: str) -> PydanticCustomError:
    """What is wrong with a key that is no error of its value alone."""
    return PydanticCustomError("conflict", "{text}", {"text": text, "key": key})


def _engine_part(modality: str, content: Any) -> dict[str, Any]:
    return {"type": modality, modality: content}
