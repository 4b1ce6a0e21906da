"""How fast the explorer answers over HTTP on this machine, and whether it copes with many clients.

    python benchmarks/explorer.py [--requests 200] [--clients 50] [--seconds 30] [--rows 800] [--epochs 20]

The model has the slowest base that ``base="auto"`` can choose (boosting, 300 trees in each of 10 folds).
Prints the median and the 95 % quantile of ``POST /sample`` (1000 draws at one input, never the same twice)
with the ratio to the same call in Python, the errors under load and, if Chromium and playwright are
installed, the time from a moved slider to the redrawn chart. As in use, the server is a process of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import shutil
import threading
import time
from typing import Any

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor

from localw2 import LocalW2Regressor, Network
from localw2.apps.explorer import create_app
from localw2.apps.explorer.server import listen, make_config

DRAWS = 1000


def fit_model(n_rows: int, n_epochs: int) -> tuple[LocalW2Regressor, Any, Any]:
    """The model, and rows that it has not seen."""
    x, y = make_friedman1(2 * n_rows, n_features=8, noise=1.0, random_state=0)
    base = HistGradientBoostingRegressor(
        learning_rate=0.15, max_iter=300, max_leaf_nodes=15, min_samples_leaf=5, random_state=0
    )
    model = LocalW2Regressor(law=Network(epochs=n_epochs), base=base, random_state=0).fit(
        x[:n_rows], y[:n_rows]
    )
    return model, x[n_rows:], y[n_rows:]


def serve(n_rows: int, n_epochs: int, channel: Any) -> None:
    """Fit and serve; send the port and the time of a call in Python through the channel."""
    import uvicorn

    model, x, y = fit_model(n_rows, n_epochs)
    times = [_seconds(lambda row=row: model.sample(row[None], DRAWS, random_state=0)) for row in x[:30]]
    app = create_app(model, x, y)
    with listen("127.0.0.1", 0) as listener:
        channel.send((listener.getsockname()[1], float(np.median(times))))
        uvicorn.Server(make_config(app)).run(sockets=[listener])


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Client:
    """A connection that stays open and asks for draws at random inputs."""

    def __init__(self, port: int, seed: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.rng = np.random.default_rng(seed)

    def ask(self) -> tuple[float, bool]:
        """Seconds, and whether the answer was right."""
        body = json.dumps({"x": [self.rng.uniform(size=8).tolist()], "n_samples": DRAWS, "random_state": 0})
        start = time.perf_counter()
        try:
            self.connection.request("POST", "/sample", body, {"content-type": "application/json"})
            response = self.connection.getresponse()
            content = response.read()
            taken = time.perf_counter() - start
            return taken, response.status == 200 and len(json.loads(content)["y"]) == DRAWS
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return time.perf_counter() - start, False


def put_under_load(port: int, n_clients: int, seconds: float) -> tuple[Any, int]:
    """The times of all requests of clients that ask without a pause, and the number of failures."""
    times: list[float] = []
    errors = [0]
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def work(seed: int) -> None:
        client = Client(port, seed)
        while time.monotonic() < end:
            taken, right = client.ask()
            with lock:
                times.append(taken)
                errors[0] += not right

    threads = [threading.Thread(target=work, args=(1000 + seed,)) for seed in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(times), errors[0]


def time_redraws(port: int, n_moves: int = 40) -> Any:
    """Milliseconds from an arrow key on a slider to the redrawn chart, or None without a browser."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#density .main-svg")
        for move in range(n_moves):
            page.focus(f"#slider-{move % 8}")
            page.evaluate("delete document.body.dataset.redraw")
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => document.body.dataset.redraw !== undefined")
            times.append(float(page.evaluate("document.body.dataset.redraw")))
            page.wait_for_timeout(400)  # until the sweep is done, too
        browser.close()
    return np.array(times)


def print_result(name: str, milliseconds: Any, more: str = "") -> None:
    """One line: median and 95 % quantile."""
    median, late = np.quantile(milliseconds, [0.5, 0.95])
    print(f"{name:44}{median:9.1f} ms median{late:9.1f} ms p95{more}", flush=True)


def main() -> None:
    """Serve, measure, print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--requests", type=int, default=200, help="requests of a single client, one after the other"
    )
    parser.add_argument("--clients", type=int, default=50, help="clients at the same time")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they send requests")
    parser.add_argument("--rows", type=int, default=800, help="rows to fit")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(options.rows, options.epochs, there), daemon=True)
    server.start()
    port, python = here.recv()
    try:
        client = Client(port, 0)
        for _ in range(5):
            client.ask()
        found = [client.ask() for _ in range(options.requests)]
        times = 1e3 * np.array([taken for taken, _ in found])
        ratio = np.median(times) / (1e3 * python)
        failed = sum(not right for _, right in found)
        print_result(
            f"/sample, {DRAWS} draws, one client",
            times,
            f"   {ratio:.2f} x model.sample in Python, {failed} errors",
        )
        moved = time_redraws(port)
        if moved is None:
            print("slider to redraw: not measured, since Chromium or playwright is missing")
        else:
            print_result("slider to redraw", moved)
        times, errors = put_under_load(port, options.clients, options.seconds)
        more = f"   {len(times)} requests in {options.seconds:g} s, {errors} errors"
        print_result(f"/sample, {options.clients} clients at once", 1e3 * times, more)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
