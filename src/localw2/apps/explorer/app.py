"""The explorer's application: its page, its questions, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, final

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from threadpoolctl import threadpool_limits

import localw2
import localw2.apps.explorer.schemas as schemas
from localw2.apps.explorer.answers import Answers, NoAnswer
from localw2.apps.explorer.curves import Curves
from localw2.apps.explorer.guard import Guard

MOST_WAITING = 500  # questions, before more are told to come back later
# Everything that can be had by a name: the package and file that it comes from, and its type.
FILES = {
    "/": ("localw2.apps.explorer", "static/index.html", "text/html; charset=utf-8"),
    "/explorer.js": ("localw2.apps.explorer", "static/explorer.js", "text/javascript; charset=utf-8"),
    "/explorer.css": ("localw2.apps.explorer", "static/explorer.css", "text/css; charset=utf-8"),
    "/plotly.min.js": ("plotly", "package_data/plotly.min.js", "text/javascript; charset=utf-8"),
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.Refused, "description": "Host header, or a body that is not JSON"},
    401: {"model": schemas.Refused, "description": "the token is missing"},
    403: {"model": schemas.Refused, "description": "asked by a page from elsewhere"},
    408: {"model": schemas.Refused, "description": "the body came too slowly"},
    413: {"model": schemas.Refused, "description": "the body is too large"},
    429: {"model": schemas.Refused, "description": "too many questions are waiting"},
}


@final
class Workers:
    """Threads that compute answers, one a core; questions wait for them, up to a limit."""

    def __init__(self) -> None:
        # A worker stays on its core: more threads inside would only wait for each other.
        self._pool = ThreadPoolExecutor(
            os.cpu_count() or 1, "explorer", lambda: threadpool_limits(1, "openmp")
        )
        # The test takes seconds, and there is one at a time: it must not take a worker from the rest.
        self._aside = ThreadPoolExecutor(1, "explorer-test")
        self._waiting = 0

    async def run(self, question: Callable[[], Any], aside: bool = False) -> Any:
        """The answer; raises ``Busy`` where too many wait."""
        if self._waiting >= MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            return await asyncio.wrap_future((self._aside if aside else self._pool).submit(question))
        finally:
            self._waiting -= 1


class Busy(Exception):
    """Too many questions are waiting."""


def build(
    model: Any,
    X: Any,
    y: Any,
    feature_names: Sequence[str] | None,
    target_names: Sequence[str] | None,
    token: str | None,
    allowed_hosts: Sequence[str],
    history: Any,
    version: int = 1,
    problem: Callable[[], str] = lambda: "",
) -> FastAPI:
    """The application: see ``localw2.apps.explorer.create_app``.

    It tells its page the ``version`` of the model, and the ``problem`` with a newer one.
    """
    answers = Answers(model, X, y, feature_names, target_names)
    past = getattr(getattr(model, "fit_", None), "history", ())
    app = _new_app(Curves(history, past), token, allowed_hosts, version, problem)
    _add_questions(app, answers, Workers())
    _add_errors(app)
    listing = _listing(app)
    app.add_api_route("/programs", lambda: Response(listing, media_type="text/html"), include_in_schema=False)
    return app


def build_waiting(
    token: str | None, allowed_hosts: Sequence[str], history: Any, problem: Callable[[], str]
) -> FastAPI:
    """The page without a model: the curves of the fit that will make one."""
    return _new_app(Curves(history), token, allowed_hosts, 0, problem)


def _new_app(
    curves: Curves, token: str | None, hosts: Sequence[str], version: int, problem: Callable[[], str]
) -> FastAPI:
    _check_access(token, hosts)
    app = FastAPI(
        title="localw2 explorer",
        version=localw2.__version__,
        description="The distribution of y at any x, from a fitted model.",
        docs_url=None,
        redoc_url=None,
        responses=REFUSALS,
    )
    _add_files(app)
    app.add_api_route(
        "/api/history",
        lambda: _json(curves.now() | {"version": version, "problem": problem()}),
        response_model=schemas.Curve,
        summary="The curves of training",
    )
    app.add_middleware(Guard, hosts=tuple(hosts), token=token)
    return app


def _check_access(token: Any, hosts: Any) -> None:
    if token is not None and not (
        isinstance(token, str)
        and 8 <= len(token) <= 200
        and all(c.isascii() and (c.isalnum() or c in "-_") for c in token)
    ):
        raise ValueError(
            "token must be 8 to 200 letters, digits, - or _, since it is part of an address and a cookie; "
            "secrets.token_urlsafe() makes one."
        )
    if isinstance(hosts, str) or not all(isinstance(host, str) and host for host in hosts) or not hosts:
        raise ValueError(
            f"allowed_hosts={hosts!r} must be a list of names, such as ['localhost', '127.0.0.1']."
        )


def _add_files(app: FastAPI) -> None:
    """The page's own files, read once: no name of a request ever reaches the disk."""
    for path, (package, name, kind) in FILES.items():
        content = files(package).joinpath(name).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        app.add_api_route(path, _file(content, etag, kind), include_in_schema=False)


def _file(content: bytes, etag: str, kind: str) -> Callable[[Request], Response]:
    headers = {"etag": etag, "cache-control": "no-cache"}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    # FastAPI reads types from here, and cannot look a name up that only this module's strings hold.
    answer.__annotations__ = {"request": Request}
    return answer


def _add_questions(app: FastAPI, answers: Answers, workers: Workers) -> None:
    about = answers.about()
    example = [each["start"] for each in about["inputs"]]
    types = schemas.schemas_for(len(example), example, answers.largest_input, answers.is_vector)

    def post(path: str, asked: Any, given: Any, answer: Callable[[Any], Any], words: str) -> None:
        async def endpoint(request: Any) -> Response:
            return _json(await workers.run(lambda: answer(request), aside=path == "/api/test"))

        endpoint.__annotations__ = {"request": asked}  # known only now: it depends on the model
        endpoint.__name__ = path.rpartition("/")[2]
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=given,
            summary=words,
            operation_id=endpoint.__name__,
        )

    def sample(r: Any) -> Any:
        if len(r.x) * r.n_samples > schemas.MOST_DRAWS:
            raise NoAnswer(
                f"{len(r.x)} rows x {r.n_samples} samples are more than {schemas.MOST_DRAWS} draws."
            )
        return answers.sample(_rows(r.x), r.n_samples, r.random_state)

    post("/sample", types.sample, types.drawn, sample, "Draws of y at rows x: (n_samples, rows[, outputs])")
    post(
        "/quantiles",
        types.quantiles,
        types.levels,
        lambda r: answers.quantiles(_rows(r.x), _rows(r.q)),
        "Quantiles of y at rows x: (levels, rows[, outputs])",
    )
    post(
        "/api/distribution",
        types.distribution,
        schemas.Distribution,
        lambda r: answers.distribution(_rows(r.x), r.k, r.carried),
        "The law of y at one input, and the observed rows around it",
    )
    post(
        "/api/sweep",
        types.sweep,
        schemas.Sweep,
        lambda r: answers.sweep(_rows(r.x), r.input),
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
        summary="Names and ranges of x and y",
    )


def _rows(values: list[Any]) -> Any:
    return np.array(values, dtype=np.float64)


def _json(answer: Any) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    """Errors in words. What was sent is not repeated: it may hold what JSON cannot."""

    async def unfit(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        told = [
            {"loc": [_plain(part) for part in each["loc"]], "msg": _plain(each["msg"]), "type": each["type"]}
            for each in error.errors()[:20]
        ]
        return JSONResponse({"detail": told}, 422)

    async def unanswered(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": [{"loc": ["body"], "msg": str(error), "type": "no_answer"}]}, 422)

    async def busy(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            {"detail": "too many questions are waiting; ask again later"}, 429, {"retry-after": "1"}
        )

    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(NoAnswer, unanswered)
    app.add_exception_handler(Busy, busy)


def _plain(part: Any) -> Any:
    return part if isinstance(part, int) else str(part)[:200].encode("utf-8", "replace").decode()


def _listing(app: FastAPI) -> str:
    """A page for those who write programs: every question with its fields and a call to copy."""
    schema = app.openapi()
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
                rest = {"sample": {"n_samples": 3, "random_state": 0}, "sweep": {"input": 0}}
                example |= rest.get(about["operationId"], {})
                call = f"curl -H 'content-type: application/json' -d '{json.dumps(example)}' ADDRESS{path}"
                listed = ", ".join(f"<code>{html.escape(key)}</code>" for key in fields) or "none"
                parts.append(f"<p>Fields: {listed}</p><pre>{html.escape(call)}</pre>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>localw2 for programs</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/explorer.css"></head><body><main class="programs">'
        "<h1>For programs</h1>"
        '<p>The schema: <a href="/openapi.json">openapi.json</a>. With a token, add '
        "<code>-H 'authorization: Bearer TOKEN'</code>. <a href=\"/\">Back to the page</a>.</p>"
        + "".join(parts)
        + "</main></body></html>"
    )
