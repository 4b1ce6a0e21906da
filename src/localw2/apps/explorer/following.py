"""An explorer that follows the file of its model: it waits for the first one, and takes every new one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from localw2.apps.explorer.app import build, build_waiting
from localw2.apps.explorer.guard import App, Receive, Scope, Send

EVERY = 1.0  # seconds between looks at the file


@final
class Following:
    """The application of whatever model a file holds now; before there is one, the curves of its fit.

    ``load`` reads it: the arguments ``model``, ``X``, ``y``, ``feature_names`` and ``target_names`` of
    ``create_app``.
    """

    def __init__(
        self,
        path: str,
        load: Callable[[], Mapping[str, Any]],
        token: str | None,
        allowed_hosts: Sequence[str],
        history: Any,
    ) -> None:
        self._path, self._load = path, load
        self._access = {"token": token, "allowed_hosts": allowed_hosts, "history": history}
        self._known: tuple[int, ...] | None = None
        self._version, self._problem, self._ended = 0, "", threading.Event()
        self._app: App = build_waiting(**self._access, problem=self._told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the present application does, which guards itself."""
        await self._app(scope, receive, send)

    def take(self) -> None:
        """Show the model that the file holds now; raises where it cannot be."""
        known = self._status()
        app = build(**self._load(), **self._access, version=self._version + 1, problem=self._told)
        self._known, self._problem = known, ""
        self._app, self._version = app, self._version + 1

    def look(self) -> None:
        """Take the model if the file is a new one; if that fails the page tells why, and all goes on."""
        try:
            status = self._status()
        except OSError:  # not there yet
            return
        if status == self._known:
            return
        try:
            self.take()
        except FileNotFoundError as error:  # the rows to show beside it may yet come
            self._problem = str(error)
        except Exception as error:
            self._problem, self._known = str(error), status

    def watch(self) -> None:
        """Look again and again, until ``end``."""
        while not self._ended.wait(EVERY):
            self.look()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _told(self) -> str:
        return self._problem

    def _status(self) -> tuple[int, ...]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
