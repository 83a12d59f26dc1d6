"""The web app over a results folder, and its API.

Only GET and HEAD are allowed. In a URL, n is the index of a slide and m that of a model, as listed
by /api/results; no URL contains a file path. An invalid request or file returns 4xx with
``{"error": message}``; too many requests at once return 503 with Retry-After.

::

    GET /                             the page; /assets/… and the other files of its build
    GET /api/results                  title, models: [{name, hash, members}],
                                      task: kind of target, classes: [name] of the values,
                                      levels: [name] of which one is predicted, or empty,
                                      choices: [name] of all that predictions list,
                                      score_names: [name] of the scores by class,
                                      score_names_title: what these are, such as Classes,
                                      has_classes: whether levels have no order,
                                      are_probabilities: whether choices lie in 0 to 1,
                                      are_percentages: whether they do, and are shown in percent
                                        without being probabilities of what is predicted,
                                      diverging: whether scores by class add to a value or take
                                        from it,
                                      score_effects: {name: [text, text]|null}, what tiles do
                                        whose scores are above zero, and below,
                                      colors: [[r, g, b]] x 256, the lowest score first,
                                      diverging_colors: likewise x 257, zero in the middle,
                                      slides: [{slide_id, label|null, size: [w, h]|null, mpp|null,
                                        zoomable: bool, reason: message|null,
                                        thumbnail: bool, truth: bool,
                                        predictions: [{model: m, values: [v], spread: [s]|null,
                                          choices: [{name, value, spread|null}], the most
                                            important first,
                                          predicted: text, headline: text with numbers,
                                          curve: {x_title, y_title, x: [], y: [] in 0 to 1,
                                            members: [y], ticks: [x], text, note}|null,
                                          score_name: whose scores are shown by default,
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

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sacmil.errors import SacMILError
from sacmil.viewer.access import AccessMiddleware, AllowedHosts
from sacmil.viewer.content import DOCUMENTS_AT_ONCE, NotFoundError, ResultsApi
from sacmil.viewer.responses import (
    STATIC,
    ResponseDocument,
    detect_document,
    make_error_response,
    make_response,
    read_page_files,
)
from sacmil.viewer.workers import ClientGoneError, QueueFullError, WorkQueue

_NUMBER_PATTERN = re.compile(r"([0-9]{1,9})")  # not \d: other scripts have digits too
_TILE_PATTERN = re.compile(r"([0-9]{1,9})_([0-9]{1,9})\.jpg")
_NOT_FOUND_MESSAGE = "there is nothing at this URL"
_TILE_NAME_MESSAGE = "the name of a tile must be x_y.jpg, with its column and row"


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

    pages = [_make_page_route(*file) for file in read_page_files(static).items()]
    app = Starlette(
        routes=[*pages, *_make_api_routes(api, work, document_work)],
        exception_handlers={HTTPException: _handle_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return AccessMiddleware(app, hosts, token)


def _make_page_route(path: str, document: ResponseDocument) -> Route:
    async def respond(request: Request) -> Response:
        return make_response(request, document)

    return Route(path, respond)


def _make_api_routes(api: ResultsApi, work: WorkQueue, document_work: WorkQueue) -> list[Route]:
    endpoints: dict[str, tuple[Callable[..., bytes], WorkQueue]] = {
        "/api/results": (api.get_results, work),
        "/api/slides/{n}": (api.get_slide, work),
        "/api/slides/{n}/tiles/{level}/{tile}": (api.get_tile, work),
        "/api/slides/{n}/thumbnail": (api.get_thumbnail, work),
        "/api/slides/{n}/truth": (api.get_truth, document_work),
        "/api/slides/{n}/scores/{m}": (api.get_scores, document_work),
    }
    return [Route(path, _make_endpoint(*endpoint)) for path, endpoint in endpoints.items()]


def _make_endpoint(
    get: Callable[..., bytes], work: WorkQueue
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that makes its response in a thread and turns errors into messages."""

    async def respond(request: Request) -> Response:
        def make() -> Response:  # hashing is done in the thread too: a thumbnail may have megabytes
            return make_response(request, detect_document(get(*_parse_numbers(request))))

        try:
            return await work.run(make, request.is_disconnected)
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


def _parse_numbers(request: Request) -> list[int]:
    """Return the numbers in a URL in their order; the name of a tile has two."""
    numbers: list[int] = []
    for name, text in request.path_params.items():
        is_tile = name == "tile"
        found = (_TILE_PATTERN if is_tile else _NUMBER_PATTERN).fullmatch(text)
        if found is None:
            raise NotFoundError(_TILE_NAME_MESSAGE if is_tile else _NOT_FOUND_MESSAGE)
        numbers += map(int, found.groups())
    return numbers


async def _handle_http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return make_error_response(status, _NOT_FOUND_MESSAGE)
