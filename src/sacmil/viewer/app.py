"""The web app over a results folder, and its API.

Only GET and HEAD are allowed. In a URL, n is the index of a slide and m that of a model, as listed
by /api/results; no URL contains a file path. An invalid request or file returns 4xx with
``{"error": message}``; too many requests at once return 503 with Retry-After.

::

    GET /                             the page; /assets/… and the other files of its build
    GET /api/results                  title, classes: [name],
                                      models: [{name, hash, members}],
                                      colors: [[r, g, b]] x 256, the lowest score first,
                                      slides: [{slide_id, label|null, size: [w, h]|null, mpp|null,
                                        zoomable: bool, reason: message|null,
                                        thumbnail: bool, truth: bool,
                                        predictions: [{model: m, probabilities: [p],
                                          spread: [s]|null, predicted: name of a class,
                                          has_scores: bool}]}]
    GET /api/slides/n                 size: [w, h]|null, mpp|null, tile: 256, levels: count,
                                      zoomable, reason, bounds: [x, y]|null
                                      This opens the slide, so zoomable is final here; levels is 0
                                      if it is false
    GET /api/slides/n/tiles/level/x_y.jpg
                                      Deep Zoom: tiles of 256 pixels without overlap; level 0 is one
                                      pixel, levels - 1 the slide in full; 404 beyond the border
    GET /api/slides/n/thumbnail       JPEG or PNG; 404 if there is none
    GET /api/slides/n/truth           GeoJSON, as in the folder: level-0 pixels, counted from
                                      bounds if the slide has them, as in QuPath
    GET /api/slides/n/scores/m        patch_size, x: [left], y: [top], all in level-0 pixels,
                                      scores: [s], class_scores: {name: [s]}|null,
                                      score_class: name of the class scores are for, null if one
                                      score serves all or the class is unknown,
                                      low, high: of scores, null if there are none;
                                      404 if has_scores is false
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sacmil.errors import SacMILError
from sacmil.viewer.allowed_hosts import AllowedHosts
from sacmil.viewer.content import DOCUMENTS_AT_ONCE, NotFoundError, ResultsApi
from sacmil.viewer.documents import pack_json
from sacmil.viewer.error_responses import make_error_response
from sacmil.viewer.middleware import AccessMiddleware
from sacmil.viewer.page import STATIC, read_page_files
from sacmil.viewer.unpacked_response import UnpackedResponse
from sacmil.viewer.work_queue import ClientGoneError, QueueFullError, WorkQueue

_NUMBER_PATTERN = re.compile(r"[0-9]{1,9}")  # not \d: other scripts have digits too
_TILE_PATTERN = re.compile(r"([0-9]{1,9})_([0-9]{1,9})\.jpg")
_NOT_FOUND_MESSAGE = "there is nothing at this URL"


class ResponseDocument(NamedTuple):
    """The body of a response."""

    body: bytes
    media_type: str
    gzipped: bool = False


def create_app(
    api: ResultsApi,
    hosts: AllowedHosts,
    *,
    token: str | None = None,
    queue: WorkQueue | None = None,
    document_queue: WorkQueue | None = None,
    static: Path = STATIC,
) -> ASGIApp:
    """Return the app with its access middleware.

    Args:
        api: the results to show; closed when the server stops.
        hosts: names of the server.
        token: that a browser must send; None if only this machine can connect.
        queue: runs the reading of slides and files.
        document_queue: runs the making of outlines and scores. It is separate because each may
            take seconds.
        static: folder of the built page.
    """
    work = queue or WorkQueue()
    document_work = document_queue or WorkQueue(DOCUMENTS_AT_ONCE)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        work.stop()
        document_work.stop()  # first: an interrupted thread would start the next work
        api.interrupt()
        work.close()
        document_work.close()
        api.close()

    app = Starlette(
        routes=[*_make_page_routes(static), *_make_api_routes(api, work, document_work)],
        exception_handlers={HTTPException: _handle_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return AccessMiddleware(app, hosts, token)


def _make_page_routes(static: Path) -> list[Route]:
    def route(path: str, document: ResponseDocument) -> Route:
        async def respond(request: Request) -> Response:
            return _make_response(request, document)

        return Route(path, respond)

    return [route(path, ResponseDocument(*file)) for path, file in read_page_files(static).items()]


def _make_api_routes(api: ResultsApi, work: WorkQueue, document_work: WorkQueue) -> list[Route]:
    quick: dict[str, Callable[[Request], ResponseDocument]] = {
        "/api/results": lambda _: _make_json_document(api.get_results()),
        "/api/slides/{n}": lambda r: _make_json_document(
            pack_json(api.get_slide(_parse_number(r, "n")))
        ),
        "/api/slides/{n}/tiles/{level}/{tile}": lambda r: _make_tile_document(api, r),
        "/api/slides/{n}/thumbnail": lambda r: ResponseDocument(
            *api.get_thumbnail(_parse_number(r, "n"))
        ),
    }
    documents: dict[str, Callable[[Request], ResponseDocument]] = {
        "/api/slides/{n}/truth": lambda r: _make_json_document(
            api.get_truth(_parse_number(r, "n"))
        ),
        "/api/slides/{n}/scores/{m}": lambda r: _make_json_document(
            api.get_scores(_parse_number(r, "n"), _parse_number(r, "m"))
        ),
    }
    return [
        *(Route(path, _make_endpoint(make, work)) for path, make in quick.items()),
        *(Route(path, _make_endpoint(make, document_work)) for path, make in documents.items()),
    ]


def _make_endpoint(
    make: Callable[[Request], ResponseDocument], work: WorkQueue
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that makes its response in a thread and turns errors into messages."""

    async def respond(request: Request) -> Response:
        try:
            # hashing is done in the thread too: a thumbnail may have megabytes
            return await work.run(
                lambda: _make_response(request, make(request)), request.is_disconnected
            )
        except NotFoundError as error:
            return make_error_response(404, str(error))
        except SacMILError as error:
            return make_error_response(422, str(error))
        except OSError as error:
            return make_error_response(422, f"a file cannot be read ({error.strerror})")
        except QueueFullError:
            return make_error_response(503, "too many requests at once", {"Retry-After": "1"})
        except ClientGoneError:
            return Response(status_code=499)  # nobody reads it

    return respond


def _make_tile_document(api: ResultsApi, request: Request) -> ResponseDocument:
    position = _TILE_PATTERN.fullmatch(request.path_params["tile"])
    if position is None:
        raise NotFoundError("the name of a tile must be x_y.jpg, with its column and row")
    number, level = _parse_number(request, "n"), _parse_number(request, "level")
    return ResponseDocument(
        api.get_tile(number, level, int(position[1]), int(position[2])), "image/jpeg"
    )


def _parse_number(request: Request, name: str) -> int:
    text = request.path_params[name]
    if _NUMBER_PATTERN.fullmatch(text) is None:
        raise NotFoundError(_NOT_FOUND_MESSAGE)
    return int(text)


def _make_json_document(body: bytes) -> ResponseDocument:
    return ResponseDocument(body, "application/json", gzipped=True)


def _make_response(request: Request, document: ResponseDocument) -> Response:
    """Return a response that browsers revalidate each time: numbers may change their meaning."""
    tag = _make_etag(document)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if document.gzipped and "gzip" not in request.headers.get("accept-encoding", ""):
        return UnpackedResponse(document.body, headers, document.media_type)
    if document.gzipped:
        headers["Content-Encoding"] = "gzip"
    return Response(document.body, headers=headers, media_type=document.media_type)


def _make_etag(document: ResponseDocument) -> str:
    """Return a tag that changes with the document."""
    if document.gzipped:  # gzip ends with the CRC and the length of the content
        return f'"{document.body[-8:].hex()}-{len(document.body):x}"'
    return f'"{hashlib.blake2b(document.body, digest_size=16).hexdigest()}"'


async def _handle_http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return make_error_response(status, _NOT_FOUND_MESSAGE)
