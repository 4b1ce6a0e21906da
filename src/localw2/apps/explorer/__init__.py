"""A page to explore a fitted model: move the inputs, watch the distribution of the output change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localw2.apps.explorer.guard import LOOPBACK

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    token: str | None = None,
    allowed_hosts: Sequence[str] = LOOPBACK,
    history: Any = None,
) -> FastAPI:
    """The explorer as an ASGI application, for any server; ``serve`` runs it.

    ``model`` is a fitted ``LocalW2Regressor`` or ``RandomCoefficientRegressor``; ``X`` (N, p) and ``y`` (N,)
    or (N, d) are observed rows to show beside it, best rows that it was not trained on. Only requests whose
    Host header is in ``allowed_hosts`` are answered and, with a ``token``, only those that carry it.
    ``history`` is the file that a fit under way writes (its ``history=``), to be followed live; while there
    is none, the curves are those of ``model``.

    >>> import numpy as np
    >>> from localw2 import RandomCoefficientRegressor
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = RandomCoefficientRegressor(method="ml").fit(x, x[:, 0] * np.linspace(1, 2, 50))
    >>> sorted(create_app(model).openapi()["paths"])
    ['/api/distribution', '/api/history', '/api/model', '/api/sweep', '/api/test', '/quantiles', '/sample']
    """
    try:
        from localw2.apps.explorer.app import build
    except ImportError as error:
        raise ImportError(_missing(error)) from None
    return build(model, X, y, feature_names, target_names, token, allowed_hosts, history)


def serve(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    history: Any = None,
    open_browser: bool = True,
) -> None:
    """Run the explorer until Ctrl-C, and show it in the browser: see ``create_app``.

    Only this machine can reach it, unless ``host`` is another of its addresses ("0.0.0.0" for all); then a
    token is required, and made if none is given: it is part of the printed address. ``port=0`` takes a free
    one.
    """
    try:
        from localw2.apps.explorer.app import build
        from localw2.apps.explorer.serving import hosts_of, needed_token, run
    except ImportError as error:
        raise ImportError(_missing(error)) from None
    token = needed_token(host, token)
    app = build(model, X, y, feature_names, target_names, token, hosts_of(host), history)
    run(app, host, port, token, open_browser, _tell)


def serve_file(
    path: str,
    load: Callable[[], Mapping[str, Any]],
    *,
    wait: bool = False,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    history: Any = None,
    open_browser: bool = True,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Run the explorer of the model in a file until Ctrl-C, and show every new one that is written there.

    ``load`` reads it, and returns the arguments of ``create_app`` by name: ``model``, ``X``, ``y``,
    ``feature_names`` and ``target_names``. With ``wait`` there need be no model yet: until there is, the page
    shows the curves of the fit that writes the file ``history``. ``tell`` is told the address.
    """
    try:
        from localw2.apps.explorer.following import Following
        from localw2.apps.explorer.serving import hosts_of, needed_token, run
    except ImportError as error:
        raise ImportError(_missing(error)) from None
    token = needed_token(host, token)
    app = Following(path, load, token, hosts_of(host), history)
    if wait:
        app.look()
    else:
        app.take()
    threading.Thread(target=app.watch, name="explorer-file", daemon=True).start()
    try:
        run(app, host, port, token, open_browser, tell or _tell)
    finally:
        app.end()


def _tell(url: str) -> None:
    print(f"Explorer: {url}\nCtrl-C ends it.", flush=True)


def _missing(error: ImportError) -> str:
    return f"the explorer needs {error.name or error}: pip install 'localw2[explore]'"
