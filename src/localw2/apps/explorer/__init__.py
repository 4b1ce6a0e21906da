"""A page to explore a fitted model: move the inputs and watch the distribution of the output change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["create_app", "serve", "serve_file"]


def create_app(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    token: str | None = None,
    allowed_hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
    history: Any = None,
) -> FastAPI:
    """The explorer as an ASGI application for any server; ``serve`` runs it.

    ``model`` is a fitted ``LocalW2Regressor``, ``RandomCoefficientRegressor`` or ``LocalW2MixedRegressor``.
    ``X`` (N, p) and ``y`` (N,) or (N, d), or what else its ``fit`` takes, are observed rows to show with it,
    preferably held-out ones. Only requests with a Host header in ``allowed_hosts`` are answered and, if there
    is a ``token``, only those that carry it. ``history`` is the file that a running fit writes (its
    ``history=``), which is followed live; as long as there is no such file, the training curves of ``model``
    are shown.

    >>> import numpy as np
    >>> from localw2 import RandomCoefficientRegressor
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = RandomCoefficientRegressor(method="ml").fit(x, x[:, 0] * np.linspace(1, 2, 50))
    >>> sorted(create_app(model).openapi()["paths"])
    ['/api/distribution', '/api/history', '/api/model', '/api/sweep', '/api/test', '/quantiles', '/sample']
    """
    try:
        from localw2.apps.explorer.answers import Answers
        from localw2.apps.explorer.app import build
    except ImportError as error:
        raise ImportError(_name_extra(error)) from None
    return build(Answers(model, X, y, feature_names, target_names), history, token, allowed_hosts)


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
    """Run the explorer until Ctrl-C and open it in the browser; see ``create_app`` for the other arguments.

    Only this machine can reach it, unless ``host`` is another of its addresses ("0.0.0.0" for all of them).
    Then a token is required; it is generated if you pass none, and is part of the printed address.
    ``port=0`` takes a free port.
    """
    try:
        from localw2.apps.explorer.server import choose_token, list_hosts, run
    except ImportError as error:
        raise ImportError(_name_extra(error)) from None
    token = choose_token(host, token)
    names = {"feature_names": feature_names, "target_names": target_names}
    app = create_app(model, X, y, **names, token=token, allowed_hosts=list_hosts(host), history=history)
    run(app, host, port, token, open_browser, _print_address)


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
    """Run the explorer for the model in a file until Ctrl-C, and show every new model that is written there.

    ``load`` reads the file and returns the arguments of ``create_app`` by name: ``model``, ``X``, ``y``,
    ``feature_names`` and ``target_names``. With ``wait`` the file need not exist yet: until it does, the page
    shows the training curves from the file ``history``. ``tell`` is called with the address.
    """
    try:
        from localw2.apps.explorer.app import Follower
        from localw2.apps.explorer.server import choose_token, list_hosts, run
    except ImportError as error:
        raise ImportError(_name_extra(error)) from None
    token = choose_token(host, token)
    app = Follower(path, load, token, list_hosts(host), history)
    if wait:
        app.look()
    else:
        app.take()
    threading.Thread(target=app.watch, name="explorer-file", daemon=True).start()
    try:
        run(app, host, port, token, open_browser, tell or _print_address)
    finally:
        app.stop()


def _print_address(url: str) -> None:
    print(f"Explorer: {url}\nPress Ctrl-C to stop.", flush=True)


def _name_extra(error: ImportError) -> str:
    return f"the explorer needs {error.name or error}: pip install 'localw2[explore]'"
