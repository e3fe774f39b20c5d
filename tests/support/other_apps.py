"""Apps of other people, with routes, middleware, a lifespan and CORS of their own, which take ours in."""

from __future__ import annotations

from typing import Any

from support.waiting_graph import waiting_graph

_SHARED = '''
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send


class Stamp:
    """Middleware of the application's own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-stamp", b"theirs")]
            await send(message)

        await self.app(scope, receive, stamped if scope["type"] == "http" else send)


@asynccontextmanager
async def lifespan(app):
    app.state.opened = True
    yield
    Path("closed").touch()
'''

STARLETTE = (
    _SHARED
    + """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from midstream.server import PreemptionMiddleware


async def hello(request):
    return JSONResponse({"opened": request.app.state.opened})


app = Starlette(
    routes=[Route("/hello", hello)],
    middleware=[
        Middleware(Stamp),
        Middleware(PreemptionMiddleware),
        Middleware(GZipMiddleware, minimum_size=10),
    ],
    lifespan=lifespan,
)
"""
)

FASTAPI = (
    _SHARED
    + """
from fastapi import FastAPI, Request

from midstream.server import PreemptionMiddleware

app = FastAPI(lifespan=lifespan)
app.add_middleware(PreemptionMiddleware)
app.add_middleware(Stamp)


@app.get("/hello")
async def hello(request: Request) -> dict:
    return {"opened": request.app.state.opened}
"""
)

APPS: dict[str, tuple[str, dict[str, Any]]] = {
    "starlette": (STARLETTE, {"cors": {"allow_origins": ["https://ui.example"]}}),
    "fastapi, mounted": (
        FASTAPI,
        {"mount_prefix": "/api/v1", "cors": {"allow_origins": ["https://ui.example"]}},
    ),
}


def deployment(name: str) -> dict[str, Any]:
    """Returns the files of a deployment with this app."""
    code, http = APPS[name]
    return {**waiting_graph(http={"app": "./their_app.py:app", **http}), "their_app.py": code}
