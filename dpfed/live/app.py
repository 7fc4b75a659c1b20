"""The local web page of runs. It is read-only, requires the token, and is updated whenever a run's files change."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpfed.live.access import Access
from dpfed.live.figures import exposition, health
from dpfed.live.rendering import Pages, script, style
from dpfed.live.retrieval import Retrieval, reads_text
from dpfed.live.scan import Scan, Seen

_AGAIN, _QUIET = 1.0, 15.0  # seconds between two looks, and of silence until a comment keeps the connection open
_READERS = 32  # pages that are live at the same time
_SHARED = 0.5  # seconds for which the content of a page is reused for its other readers
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(scan: Scan, access: Access, retrieval: Retrieval) -> ASGIApp:
    """Returns the page as an ASGI application.

    Args:
        scan: Scanner that finds and reads the runs.
        access: Port and token.
        retrieval: Search by text.
    """
    views = _Views(scan, retrieval)
    routes = [
        Route("/", views.home),
        Route("/search", views.search),
        Route("/runs/{name:path}", views.run),
        Route("/events", views.events),
        Route("/metrics", views.metrics),
        Route("/healthz", views.health),
        Route("/live.css", lambda request: Response(style(), media_type="text/css")),
        Route("/live.js", lambda request: Response(script(), media_type="text/javascript")),
    ]
    return _Guard(Starlette(routes=routes), access)


class _Views:
    """The request handlers of the page."""

    def __init__(self, scan: Scan, retrieval: Retrieval) -> None:
        self._scan, self._retrieval = scan, retrieval
        self._pages = Pages(scan.root.name, scan.single is None)
        self._readers = 0
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, Markup]] = {}  # by page: time and content

    def home(self, request: Request) -> Response:
        """Shows the list of runs, or the run itself if the watched folder is one run."""
        if self._scan.single is not None:
            return self._run(self._scan.single)
        return HTMLResponse(self._pages.page("dpfed", _events("runs"), self._runs()))

    def run(self, request: Request) -> Response:
        """Shows one run."""
        return self._run(request.path_params["name"])

    def search(self, request: Request) -> Response:
        """Shows one run, and the pictures nearest to a text."""
        return self._run(request.query_params.get("run", ""), request.query_params.get("text", ""))

    async def events(self, request: Request) -> Response:
        """Sends the content of a page whenever it changes (server-sent events)."""
        view, names = request.query_params.get("view"), request.query_params.getlist("run")
        known: dict[str | None, Callable[[], Markup]] = {"runs": self._runs, "run": lambda: self._one(names[0])}
        if view not in known or (view != "runs" and not names):
            return PlainTextResponse("no such view", 404)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._readers >= _READERS:
            return PlainTextResponse("too many pages are open", 503)
        self._readers += 1
        stream = self._stream(partial(self._once, _events(view or "", names), known[view]), request)
        return _Events(stream, self._left)

    def _left(self) -> None:
        self._readers -= 1

    async def _stream(self, made: Callable[[], Markup], request: Request) -> AsyncIterator[str]:
        sent, silent = "", 0.0
        while not await request.is_disconnected():
            now = str(await run_in_threadpool(made))
            if now != sent:
                sent, silent = now, 0.0
                yield f"data: {json.dumps(now)}\n\n"
            elif silent >= _QUIET:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(_AGAIN)
            silent += _AGAIN

    def _once(self, page: str, made: Callable[[], Markup]) -> Markup:
        """Returns the content of a page. All readers who ask within half a second get the same content, which is made once.

        Args:
            page: Address of the page's content.
            made: Function that makes the content.
        """
        with self._lock:
            at, shown = self._made.get(page, (-math.inf, Markup()))
            if time.monotonic() - at >= _SHARED:
                if len(self._made) > _READERS:
                    self._made.clear()
                shown = made()
                self._made[page] = time.monotonic(), shown
            return shown

    def metrics(self, request: Request) -> Response:
        """Returns the figures in Prometheus's text format."""
        return Response(exposition(self._seen(request)), media_type="text/plain; version=1.0.0; charset=utf-8")

    def health(self, request: Request) -> Response:
        """Answers with 200 if all runs (or all runs that the request names) are running or finished, and otherwise with 503."""
        well, states = health(self._seen(request))
        return JSONResponse({"well": well, "runs": states}, 200 if well else 503)

    def _seen(self, request: Request) -> list[Seen]:
        """Returns the runs that a monitor asks for: the runs that it names, or all. A run that is missing counts as damaged."""
        names = request.query_params.getlist("run")
        if not names:
            return self._scan.all()
        return [self._scan.one(name) or Seen(name, None, "there is no such run", "damaged") for name in dict.fromkeys(names)]

    def _run(self, name: str, text: str | None = None) -> Response:
        seen = self._scan.one(name)
        if seen is None:
            sentence = f"There is no run {name} here." if name else "No run was named."
            return HTMLResponse(self._pages.refusal(sentence), 404)
        beside = None
        if seen.run_state is not None and seen.run_state.model:
            result = self._retrieval.find(self._scan.folders()[name], text) if text is not None else None
            if text is not None or reads_text(self._scan.folders()[name]):
                answers, trouble, searched = (result.pictures, result.trouble, result.searched) if result else ((), "", 0)
                beside = self._pages.search(name, text or "", answers, trouble, searched)
        return HTMLResponse(self._pages.page(name, _events("run", [name]), self._one(name), beside))

    def _runs(self) -> Markup:
        return self._pages.runs(self._scan.all(), self._scan.left_out)

    def _one(self, name: str) -> Markup:
        seen = self._scan.one(name)
        return Markup("<p>The run is gone.</p>") if seen is None else self._pages.run(seen)


class _Events(StreamingResponse):
    """A response of server-sent events, which calls a function when its reader has closed the connection."""

    def __init__(self, stream: AsyncIterator[str], left: Callable[[], None]) -> None:
        super().__init__(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()


class _Guard:
    """Middleware that requires the token, and adds the security headers to every response.

    A token in an address is moved to a cookie by a redirect: otherwise it would stay in the browser's history.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        answer = self._refusal(request) or self._entrance(request) or self._app
        await answer(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if not self._access.knows(request.headers.get("host", "")):
            return PlainTextResponse("this page is served as 127.0.0.1 or localhost only", 421)
        given = request.query_params.get("token")
        if not self._access.allows(given, request.headers.get("cookie", ""), request.headers.get("authorization", "")):
            return PlainTextResponse("this page needs its token: open the address that `dpfed serve` printed\n", 401)
        return PlainTextResponse("this page is read-only\n", 405) if request.method not in ("GET", "HEAD") else None

    def _entrance(self, request: Request) -> Response | None:
        if "token" not in request.query_params:
            return None
        rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
        answer = RedirectResponse("/" + request.url.path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict")
        return answer


def _events(view: str, names: list[str] | None = None) -> str:
    return "/events?" + urlencode([("view", view), *(("run", name) for name in names or ())])
