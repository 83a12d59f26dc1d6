"""The web app over a results folder, address by address.

Only GET and HEAD; n is the index of a slide, m that of a model, both as /api/results lists them; no
address holds a path. Whatever is wrong with a request or a file is answered 4xx with
``{"error": sentence}``; too many tiles asked for at once 503 with Retry-After.

::

    GET /                             the page; /assets/… and what else its build made
    GET /api/results                  title, classes: [name],
                                      models: [{name, hash, members}],
                                      colours: [[r, g, b]] x 256, the lowest score first,
                                      slides: [{slide_id, label|null, size: [w, h]|null, mpp|null,
                                        zoomable: bool, why_not: sentence|null,
                                        thumbnail: bool, truth: bool,
                                        answers: [{model: m, probabilities: [p], spread: [s]|null,
                                          predicted: name of a class, scored: bool}]}]
    GET /api/slides/n                 size: [w, h]|null, mpp|null, tile: 256, levels: count,
                                      zoomable, why_not, bounds: [x, y]|null
                                      opens the slide: zoomable here is the last word; levels is 0
                                      where it is false
    GET /api/slides/n/tiles/level/x_y.jpg
                                      Deep Zoom: tiles of 256 pixels without overlap; level 0 is one
                                      pixel, levels - 1 the slide in full; 404 beyond the border
    GET /api/slides/n/thumbnail       JPEG or PNG; 404 where there is none
    GET /api/slides/n/truth           GeoJSON, as it lies in the folder: level-0 pixels, counted
                                      from bounds where a slide has them, as QuPath counts
    GET /api/slides/n/scores/m        patch_size, x: [left], y: [top], all in level-0 pixels,
                                      scores: [s], class_scores: {name: [s]}|null,
                                      score_class: name of the class scores are about, null where
                                      one score serves all or that is not known,
                                      low, high: of scores, null where there are none;
                                      404 where scored is false
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

_NUMBER = re.compile(r"[0-9]{1,9}")  # not \d: other scripts have digits too
_TILE = re.compile(r"([0-9]{1,9})_([0-9]{1,9})\.jpg")
_NOT_FOUND_MESSAGE = "there is nothing at this address"


class ResponseDocument(NamedTuple):
    """What an address answers with."""

    body: bytes
    media_type: str
    gzipped: bool = False


def create_app(
    content: ResultsApi,
    hosts: AllowedHosts,
    *,
    token: str | None = None,
    queue: WorkQueue | None = None,
    document_queue: WorkQueue | None = None,
    static: Path = STATIC,
) -> ASGIApp:
    """The app, behind its gate.

    Args:
        content: what there is to see; closed when the server ends.
        hosts: names of the server.
        token: that a browser must bring; None where only this machine can ask.
        queue: where slides and files are read.
        document_queue: where outlines and scores are made; another, as each may take seconds.
        static: the page's build.
    """
    work = queue or WorkQueue()
    document_work = document_queue or WorkQueue(DOCUMENTS_AT_ONCE)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        work.stop()
        document_work.stop()  # first: a thread that is interrupted would begin the next
        content.interrupt()
        work.close()
        document_work.close()
        content.close()

    app = Starlette(
        routes=[*_page_routes(static), *_content_routes(content, work, document_work)],
        exception_handlers={HTTPException: _handle_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return AccessMiddleware(app, hosts, token)


def _page_routes(static: Path) -> list[Route]:
    def route(address: str, document: ResponseDocument) -> Route:
        async def answer(request: Request) -> Response:
            return _make_response(request, document)

        return Route(address, answer)

    return [
        route(address, ResponseDocument(*file)) for address, file in read_page_files(static).items()
    ]


def _content_routes(content: ResultsApi, work: WorkQueue, document_work: WorkQueue) -> list[Route]:
    asked: dict[str, Callable[[Request], ResponseDocument]] = {
        "/api/results": lambda _: _make_json_document(content.get_results()),
        "/api/slides/{n}": lambda r: _make_json_document(
            pack_json(content.get_slide(_parse_number(r, "n")))
        ),
        "/api/slides/{n}/tiles/{level}/{tile}": lambda r: _make_tile_document(content, r),
        "/api/slides/{n}/thumbnail": lambda r: ResponseDocument(
            *content.get_thumbnail(_parse_number(r, "n"))
        ),
    }
    documents: dict[str, Callable[[Request], ResponseDocument]] = {
        "/api/slides/{n}/truth": lambda r: _make_json_document(
            content.get_truth(_parse_number(r, "n"))
        ),
        "/api/slides/{n}/scores/{m}": lambda r: _make_json_document(
            content.get_scores(_parse_number(r, "n"), _parse_number(r, "m"))
        ),
    }
    return [
        *(Route(address, _make_endpoint(make, work)) for address, make in asked.items()),
        *(
            Route(address, _make_endpoint(make, document_work))
            for address, make in documents.items()
        ),
    ]


def _make_endpoint(
    make: Callable[[Request], ResponseDocument], work: WorkQueue
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that makes its answer in a thread and turns what is wrong into a sentence."""

    async def answer(request: Request) -> Response:
        try:
            # hashing takes a thread too, for a thumbnail may have megabytes
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
            return make_error_response(503, "too much is asked for at once", {"Retry-After": "1"})
        except ClientGoneError:
            return Response(status_code=499)  # nobody reads it

    return answer


def _make_tile_document(content: ResultsApi, request: Request) -> ResponseDocument:
    place = _TILE.fullmatch(request.path_params["tile"])
    if place is None:
        raise NotFoundError("a tile is called x_y.jpg, by its column and row")
    number, level = _parse_number(request, "n"), _parse_number(request, "level")
    return ResponseDocument(
        content.get_tile(number, level, int(place[1]), int(place[2])), "image/jpeg"
    )


def _parse_number(request: Request, name: str) -> int:
    text = request.path_params[name]
    if _NUMBER.fullmatch(text) is None:
        raise NotFoundError(_NOT_FOUND_MESSAGE)
    return int(text)


def _make_json_document(body: bytes) -> ResponseDocument:
    return ResponseDocument(body, "application/json", gzipped=True)


def _make_response(request: Request, document: ResponseDocument) -> Response:
    """A browser asks each time whether what it has is still right: numbers change their meaning."""
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
    """Another one whenever the document is."""
    if document.gzipped:  # which ends with the CRC and the length of what is packed
        return f'"{document.body[-8:].hex()}-{len(document.body):x}"'
    return f'"{hashlib.blake2b(document.body, digest_size=16).hexdigest()}"'


async def _handle_http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return make_error_response(status, _NOT_FOUND_MESSAGE)
