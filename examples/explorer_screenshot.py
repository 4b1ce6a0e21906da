"""Take a screenshot of the explorer in a headless browser.

    python examples/explorer_screenshot.py [--out docs/explorer.png]

Needs Chromium, playwright and the extra "explore". Everything is seeded, so the same versions give
the same picture.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from localw2 import LocalW2Regressor
from localw2.apps.explorer import create_app
from localw2.apps.explorer.server import listen, make_config


def main() -> None:
    """Fit, serve, and save the screenshot."""
    out = read_path(__doc__, "docs/explorer.png")
    photograph(*fit_model(), out)
    print(f"Picture: {out}")


def read_path(description: str | None, default: str) -> Path:
    """Read from the command line where to save the picture."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path(default), help="where to save the picture")
    out: Path = parser.parse_args().out
    return out


def fit_model() -> tuple[LocalW2Regressor, pd.DataFrame, pd.Series]:
    """A fitted model, and rows that it has not seen."""
    x, y = simulate_rows(1200)
    return LocalW2Regressor(random_state=0).fit(x[:800], y[:800]), x[800:], y[800:]


def find_chromium() -> str:
    """Find the installed browser."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    return chromium


def simulate_rows(n: int) -> tuple[pd.DataFrame, pd.Series]:
    """Simulate rows: a strength that grows with time, part of which is lost at high temperature.

    How much is lost depends on the cement; the water was not always measured.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform([5, 1, 30], [35, 60, 60], size=(n, 3)).round(1)
    x[:, 1] = x[:, 1].round()
    cement = rng.choice(["Portland", "slag", "fly ash"], n, p=[0.5, 0.3, 0.2])
    warm, time_, water = (x[:, 0] - 5) / 30, np.log(x[:, 1]) / np.log(60), (x[:, 2] - 30) / 30
    lost = np.where(cement == "slag", 2, 6) * warm * rng.exponential(size=n)
    y = 14 + 22 * time_ - 9 * water - lost - 4 * (cement == "fly ash") + (1 + time_) * rng.normal(size=n)
    x[rng.random(n) < 0.1, 2] = np.nan
    frame = pd.DataFrame(x, columns=["temperature [°C]", "curing time [days]", "water [%]"])
    return frame.assign(cement=cement), pd.Series(y, name="strength [MPa]")


def photograph(model: LocalW2Regressor, x: pd.DataFrame, y: pd.Series, path: Path) -> None:
    """Serve the model, set the inputs, and save a screenshot of the page."""
    import uvicorn
    from playwright.sync_api import sync_playwright

    app = create_app(model, x, y)
    server = uvicorn.Server(make_config(app))
    with listen("127.0.0.1", 0) as listener, sync_playwright() as playwright:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1160, "height": 940}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        page.wait_for_selector("#bands .main-svg")
        for j, value in enumerate(("28", "28", "42")):
            page.fill(f"#number-{j}", value)
        page.select_option("#choice-3", label="fly ash")
        page.check("#shifted")
        page.check("#zoom")
        page.select_option("#swept", "0")
        page.wait_for_function("() => document.body.dataset.drawn === '[28,28,42,\"fly ash\"]'")
        page.wait_for_function("() => document.getElementById('density').data[0].name.endsWith('shifted')")
        page.wait_for_timeout(2500)  # the sweep follows the sliders
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.screenshot(path=str(path))
        browser.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
