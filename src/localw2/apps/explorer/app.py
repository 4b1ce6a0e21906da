"""The explorer's web application: the page, and the API behind it."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from typing import Any, final

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from threadpoolctl import threadpool_limits

import localw2
from localw2.apps.explorer import schemas
from localw2.apps.explorer.answers import Answers, NoAnswer
from localw2.apps.explorer.curves import Curves
from localw2.apps.explorer.guard import Guard

MOST_BYTES = 1 << 20  # of a request: 500 rows of a hundred numbers
MOST_WAITING = 500  # requests, before further ones are told to come back later
CHECK_EVERY = 1.0  # seconds between two looks at the file of a model
# Every file that can be requested: the package and the file that it comes from, and its type.
FILES = {
    "/": ("localw2.apps.explorer", "static/index.html", "text/html; charset=utf-8"),
    "/explorer.js": ("localw2.apps.explorer", "static/explorer.js", "text/javascript; charset=utf-8"),
    "/explorer.css": ("localw2.apps.explorer", "static/explorer.css", "text/css; charset=utf-8"),
    "/plotly.min.js": ("plotly", "package_data/plotly.min.js", "text/javascript; charset=utf-8"),
}
REFUSALS = {
    400: "The Host header is not allowed, or the body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another origin.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    429: "Too many requests are waiting.",
}


def build(
    answers: Answers | None,
    history: Any,
    token: str | None,
    hosts: Sequence[str],
    version: int = 1,
    problem: Callable[[], str] = lambda: "",
) -> FastAPI:
    """The application; without answers it only shows the training curves of the model to come.

    It tells its page the ``version`` of the model, and the ``problem`` with a newer one.
    """
    _check_access(token, hosts)
    curves = Curves(history, () if answers is None else answers.history)
    app = FastAPI(
        title="localw2 explorer",
        version=localw2.__version__,
        description="The conditional distribution of y at any x, from a fitted model.",
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"model": schemas.Refused, "description": text} for status, text in REFUSALS.items()
        },
    )
    _add_files(app)
    app.add_api_route(
        "/api/history",
        lambda: _json(curves.read() | {"version": version, "problem": problem()}),
        response_model=schemas.Curve,
        summary="Training curves",
    )
    if answers is not None:
        _add_questions(app, answers)
        listing = _list_questions(app.openapi())
        app.add_api_route(
            "/programs", lambda: Response(listing, media_type="text/html"), include_in_schema=False
        )
    _add_errors(app)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MOST_BYTES)
    app.add_middleware(Guard, hosts=tuple(hosts), token=token)
    return app


@final
class Follower:
    """The application for whatever model a file holds now; before there is one, its training curves.

    ``load`` reads the file and returns the arguments of ``Answers`` by name.
    """

    def __init__(
        self,
        path: str,
        load: Callable[[], Mapping[str, Any]],
        token: str | None,
        hosts: Sequence[str],
        history: Any,
    ) -> None:
        self._path, self._load, self._access = path, load, (history, token, hosts)
        self._known: tuple[int, ...] | None = None
        self._version, self._problem, self._stopped = 0, "", threading.Event()
        self._app: ASGIApp = self._build(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the present application does, which guards itself."""
        await self._app(scope, receive, send)

    def take(self) -> None:
        """Show the model that the file holds now; raises if that is impossible."""
        known = self._status()
        answers = Answers(**self._load())
        self._version += 1
        self._app = self._build(answers)
        self._known, self._problem = known, ""

    def look(self) -> None:
        """Take the model if the file is new; if that fails, the page says why and keeps the old model."""
        try:
            status = self._status()
        except OSError:  # not there yet
            return
        if status == self._known:
            return
        try:
            self.take()
        except FileNotFoundError as error:  # the rows to show with it may still come
            self._problem = str(error)
        except Exception as error:
            self._problem, self._known = str(error), status

    def watch(self) -> None:
        """Look again and again, until ``stop``."""
        while not self._stopped.wait(CHECK_EVERY):
            self.look()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _build(self, answers: Answers | None) -> FastAPI:
        return build(answers, *self._access, self._version, lambda: self._problem)

    def _status(self) -> tuple[int, ...]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@final
class Workers:
    """Threads that compute answers, one per core; a limited number of questions wait for them."""

    def __init__(self) -> None:
        # A worker stays on its core: more threads inside it would only wait for each other.
        self._pool = ThreadPoolExecutor(
            os.cpu_count() or 1, "explorer", lambda: threadpool_limits(1, "openmp")
        )
        # The test takes seconds, and there is one at a time: it must not take a worker from the rest.
        self._aside = ThreadPoolExecutor(1, "explorer-test")
        self._waiting = 0

    async def run(self, question: Callable[[], Any], aside: bool) -> Any:
        """The answer, or a 429 if too many questions are waiting."""
        if self._waiting >= MOST_WAITING:
            raise HTTPException(429, "too many requests are waiting; try again later", {"retry-after": "1"})
        self._waiting += 1
        try:
            return await asyncio.wrap_future((self._aside if aside else self._pool).submit(question))
        finally:
            self._waiting -= 1


@cache
def find_workers() -> Workers:
    """The threads of this process, which all applications share: a new model brings no new ones."""
    return Workers()


def _check_access(token: Any, hosts: Any) -> None:
    if token is not None and not (
        isinstance(token, str)
        and 8 <= len(token) <= 200
        and all(c.isascii() and (c.isalnum() or c in "-_") for c in token)
    ):
        raise ValueError(
            "token must be 8 to 200 letters, digits, - or _, since it becomes part of a URL and a cookie; "
            "secrets.token_urlsafe() makes one."
        )
    named = not isinstance(hosts, str) and all(isinstance(host, str) and host for host in hosts)
    if not named or not hosts or any("*" in host for host in hosts):
        raise ValueError(
            f"allowed_hosts={hosts!r} must be a list of host names without wildcards, such as "
            "['localhost', '127.0.0.1']."
        )


def _add_files(app: FastAPI) -> None:
    """The page's own files, read once: no part of a request is ever used as a file name."""
    for path, (package, name, kind) in FILES.items():
        app.add_api_route(path, _make_file_endpoint(_read_file(package, name), kind), include_in_schema=False)


@cache
def _read_file(package: str, name: str) -> bytes:
    """A file of a package, once for all applications: FastAPI keeps the endpoints of those that are gone."""
    return files(package).joinpath(name).read_bytes()


def _make_file_endpoint(content: bytes, kind: str) -> Callable[[Request], Response]:
    etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"etag": etag, "cache-control": "no-cache"}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return answer


def _add_questions(app: FastAPI, answers: Answers) -> None:
    workers, about = find_workers(), answers.describe()
    example = [each["start"] for each in about["inputs"]]
    n_outputs = len(answers.targets)
    types = schemas.make_schemas(
        answers.inputs.each,
        example,
        answers.largest_input,
        answers.is_vector,
        n_outputs,
        mixed=answers.mixed is not None,
    )

    def post(path: str, asked: Any, given: Any, answer: Callable[[Any], Any], summary: str) -> None:
        async def endpoint(request: Any) -> Response:
            try:
                return _json(await workers.run(lambda: answer(request), aside=path == "/api/test"))
            except (ValueError, ArithmeticError) as error:  # of a model whose numbers are out of all bounds
                raise NoAnswer(str(error) or type(error).__name__) from error

        endpoint.__annotations__ = {"request": asked}  # known only now: it depends on the model
        name = path.rpartition("/")[2]
        app.add_api_route(
            path, endpoint, methods=["POST"], response_model=given, summary=summary, operation_id=name
        )

    def sample(r: Any) -> Any:
        if len(r.x) * r.n_samples > schemas.MOST_DRAWS:
            raise NoAnswer(
                f"{len(r.x)} rows x {r.n_samples} samples exceed the limit of {schemas.MOST_DRAWS} draws "
                "per request."
            )
        return answers.sample(answers.read(r.x), r.n_samples, r.random_state)

    post("/sample", types.sample, types.drawn, sample, "Draws of y at rows x: (n_samples, rows[, outputs])")
    post(
        "/quantiles",
        types.quantiles,
        types.levels,
        lambda r: answers.quantiles(answers.read(r.x), np.array(r.q)),
        "Quantiles of y at rows x: (levels, rows[, outputs])",
    )
    post(
        "/api/distribution",
        types.distribution,
        schemas.Distribution,
        lambda r: answers.distribution(answers.read([r.x])[0], r.k, r.shifted),
        "The distribution of y at one input, and the observed rows near it",
    )
    if answers.mixed is not None:
        post(
            "/probabilities",
            types.probabilities,
            schemas.Probabilities,
            lambda r: answers.probabilities(answers.read(r.x)),
            "Probabilities of the classes at rows x, by output: (rows, classes)",
        )
    if n_outputs > 1:
        post(
            "/api/joint",
            types.joint,
            schemas.Joint,
            lambda r: answers.joint(answers.read([r.x])[0], r.outputs, r.k, r.shifted),
            "Draws of two outputs at one input, and the observed rows near it",
        )
    post(
        "/api/sweep",
        types.sweep,
        schemas.Sweep,
        lambda r: answers.sweep(answers.read([r.x])[0], r.input),
        "Mean and quantiles of y along one input",
    )
    post(
        "/api/test",
        types.test,
        schemas.Tested,
        lambda _: answers.test(),
        "The conditional test on the observed rows",
    )
    app.add_api_route(
        "/api/model",
        lambda: _json(about),
        response_model=schemas.About,
        summary="Names and ranges of inputs and outputs",
    )


def _json(answer: Any) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    """Errors in words. What was sent is not repeated: it may contain what JSON cannot."""

    async def explain_invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        reasons = [
            {"loc": [_plain(part) for part in each["loc"]], "msg": _plain(each["msg"]), "type": each["type"]}
            for each in error.errors()[:20]
        ]
        return JSONResponse({"detail": reasons}, 422)

    async def explain_no_answer(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": [{"loc": ["body"], "msg": str(error), "type": "no_answer"}]}, 422)

    app.add_exception_handler(RequestValidationError, explain_invalid)
    app.add_exception_handler(NoAnswer, explain_no_answer)


def _plain(part: Any) -> Any:
    return part if isinstance(part, int) else str(part)[:200].encode("utf-8", "replace").decode()


def _list_questions(schema: dict[str, Any]) -> str:
    """A page for programmers: every request with its fields and a call to copy."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {path}</code></h2><p>{html.escape(about['summary'])}</p>"
            )
            body = about.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                fields = schema["components"]["schemas"][name].get("properties", {})
                example = {key: field["examples"][0] for key, field in fields.items() if "examples" in field}
                call = f"curl -H 'content-type: application/json' -d '{json.dumps(example)}' ADDRESS{path}"
                listed = ", ".join(f"<code>{html.escape(key)}</code>" for key in fields) or "none"
                parts.append(f"<p>Fields: {listed}</p><pre>{html.escape(call)}</pre>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>localw2 explorer: API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/explorer.css"></head><body><main class="programs">'
        "<h1>API</h1>"
        '<p>The schema is <a href="/openapi.json">openapi.json</a>. If the explorer has a token, add '
        "<code>-H 'authorization: Bearer TOKEN'</code>. <a href=\"/\">Back to the explorer</a></p>"
        + "".join(parts)
        + "</main></body></html>"
    )
