# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The routes, and what stands around them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from .. import __version__
from ..engine.errors import EngineClosedError, RequestError
from ..media import MediaError
from .body import BodyRoute
from .chat import ChatAnswer
from .errors import ApiError, bad_request, shutting_down
from .features import FeaturesAnswer
from .middleware import request_id
from .middleware.admission import AdmissionMiddleware
from .middleware.api_key import ApiKeyMiddleware
from .middleware.body_limit import BodyLimitMiddleware
from .middleware.head_limit import HeadLimitMiddleware
from .middleware.outcome import OutcomeMiddleware
from .middleware.upload_timeout import UploadTimeoutMiddleware
from .protocol import ChatCompletionRequest, EmbeddingsRequest, ErrorBody
from .state import ServerState

ENGINE_PATHS = ("/v1/chat/completions", "/v1/embeddings")
METRIC_PATHS = ("/metrics", "/prometheus/metrics")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def make_app(server: ServerState) -> FastAPI:
    """The application.

    Args:
        server: What its routes share.
    """
    app = FastAPI(
        title="tensorrt_llm_ext",
        version=__version__,
        docs_url=None,  # pages of these load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses={
            "4XX": {"model": ErrorBody, "description": "Something about the request."},
            "5XX": {"model": ErrorBody, "description": "Something about the server."},
        },
    )
    app.router.route_class = BodyRoute
    _add_routes(app, server)
    _add_error_bodies(app)
    options = server.options
    # The last one added is the outermost.
    app.add_middleware(UploadTimeoutMiddleware, seconds=options.upload_timeout)
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=options.max_body_bytes,
        max_total_bytes=options.max_total_body_bytes,
        count=server.metrics.body_bytes.set,
    )
    app.add_middleware(
        AdmissionMiddleware,
        paths=ENGINE_PATHS,
        max_waiting=options.max_queue_size,
        num_running=lambda: server.thread.num_running,
        draining=lambda: server.draining,
        count=server.metrics.set_unanswered,
    )
    if options.api_key is not None:
        open_paths = ("/health", *(() if options.metrics_require_key else METRIC_PATHS))
        key = options.api_key.get_secret_value()
        app.add_middleware(ApiKeyMiddleware, key=key, open_paths=open_paths)
    app.add_middleware(OutcomeMiddleware, paths=ENGINE_PATHS, count=server.metrics.count_request)
    app.add_middleware(HeadLimitMiddleware, max_bytes=options.max_header_bytes)
    app.add_middleware(request_id.RequestIdMiddleware)
    return app


def _add_routes(app: FastAPI, server: ServerState) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        server.check_model(body.model)
        if server.encoder_only:
            raise bad_request("this server has encoders alone; use POST /v1/embeddings")
        return ChatAnswer(server, request, body)

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        server.check_model(body.model)
        return FeaturesAnswer(server, request, body)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [server.model_card]}

    @app.get("/health")
    async def health() -> Response:
        why = server.unhealthy()
        if why is not None:
            raise ApiError(503, why, code="unhealthy")
        return Response()

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    async def metrics() -> Response:
        return PlainTextResponse(server.metrics.render(), headers={"Content-Type": _TEXT})

    for path in METRIC_PATHS:
        app.get(path)(metrics)


def _add_error_bodies(app: FastAPI) -> None:
    """Every error in OpenAI's form."""

    @app.exception_handler(HTTPException)
    async def known(_: Request, error: HTTPException) -> Response:
        if not isinstance(error, ApiError):
            error = ApiError(error.status_code, str(error.detail), headers=error.headers)
        return error.response()

    @app.exception_handler(RequestError)
    async def unusable(_: Request, error: RequestError) -> Response:
        status = error.status if isinstance(error, MediaError) else 400
        return ApiError(status, str(error), code="invalid_value").response()

    @app.exception_handler(EngineClosedError)
    async def closed(_: Request, error: EngineClosedError) -> Response:
        return shutting_down().response()

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return _explain(error).response()

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # Outside of all middleware, so it has to bring the id itself.
        name = request.state.request_id
        text = f"the server made a mistake; quote request id {name}"
        headers = {request_id.HEADER: name}
        return ApiError(500, text, code="internal_error", headers=headers).response()


def _explain(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, by name; its value is not repeated."""
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"][1:] if not str(part).startswith("@")]
    kind, path = first["type"], ".".join(loc)
    if kind == "conflict":
        return bad_request(first["msg"], first["ctx"]["key"])
    if kind == "too_many_keys":
        return bad_request(f"{path or 'the body'}: {first['msg']}", path or None)
    if not loc:
        return bad_request("the body must be a JSON object, sent as application/json")
    if kind == "extra_forbidden":
        return bad_request(f"unknown key {path!r:.200}", path, "unknown_key")
    return bad_request(f"{path}: {first['msg']}", path)
