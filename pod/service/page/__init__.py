"""The page of the service: files that are given as they are, to whoever asks. They hold nothing and ask for a token.

It needs no build step and no other host: its policy allows its own scripts and styles alone, requests to this service alone, and
no markup made of text.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

SHARED = ("common.css", "dom.js", "charts.js")
"""What the page of `pod inspect` is made of as well."""

OWN = (
    "app.css", "icon.svg", "api.js", "scroller.js", "story.js", "entries.js", "forms.js", "state.js", "figures.js", "recall.js",
    "list.js", "pod.js", "app.js",
)  # fmt: skip

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class _File(NamedTuple):
    body: bytes
    kind: str
    tag: str


@cache
def _file(package: str, name: str) -> _File:
    body = files(package).joinpath(name).read_bytes()
    return _File(body, _KINDS[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:24]}"')


def routes() -> list[Route]:
    """Where the page is given: `/`, and its parts below `/page/`."""
    return [Route("/", _index, methods=["GET"]), Route("/page/{name}", _part, methods=["GET"])]


async def _index(request: Request) -> Response:
    return _given(request, _file("pod.service.page", "index.html"))


async def _part(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in {*SHARED, *OWN}:
        raise HTTPException(404)
    return _given(request, _file("pod.page" if name in SHARED else "pod.service.page", name))


def _given(request: Request, file: _File) -> Response:
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache", "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(None, 304, headers)
    return Response(file.body, media_type=file.kind, headers=headers)
