"""Draw the explorer's page into a picture, by a browser without a window.

    python examples/explorer_screenshot.py [--out docs/explorer.png]

Needs Chromium, playwright and the extra "explore". Every part is seeded: the same versions give the same
picture.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from pathlib import Path

import numpy as np

from localw2 import LocalW2Regressor
from localw2.apps.explorer import create_app
from localw2.apps.explorer.serving import configured, listen

INPUTS = ["temperature [°C]", "curing time [days]", "water [%]"]


def main() -> None:
    """Fit, serve, look, save."""
    out = picture_path(__doc__, "docs/explorer.png")
    photograph(*fitted(), out)
    print(f"Picture: {out}")


def picture_path(description: str | None, default: str) -> Path:
    """Where the command line wants the picture."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path(default), help="the picture")
    out: Path = parser.parse_args().out
    return out


def fitted() -> tuple[LocalW2Regressor, np.ndarray, np.ndarray]:
    """A model, and rows that it has not seen."""
    x, y = rows(1200)
    return LocalW2Regressor(max_epochs=200, random_state=0).fit(x[:800], y[:800]), x[800:], y[800:]


def find_chromium() -> str:
    """The browser that is installed."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    return chromium


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up rows: a strength that grows with time, of which some is lost when it is warm."""
    rng = np.random.default_rng(0)
    x = rng.uniform([5, 1, 30], [35, 60, 60], size=(n, 3)).round(1)
    warm, time_, water = (x[:, 0] - 5) / 30, np.log(x[:, 1]) / np.log(60), (x[:, 2] - 30) / 30
    lost = 6 * warm * rng.exponential(size=n)
    return x, 14 + 22 * time_ - 9 * water - lost + (1 + time_) * rng.normal(size=n)


def photograph(model: LocalW2Regressor, x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Serve the model, set the inputs, and save what the page shows."""
    import uvicorn
    from playwright.sync_api import sync_playwright

    app = create_app(model, x, y, feature_names=INPUTS, target_names=["strength [MPa]"])
    server = uvicorn.Server(configured(app))
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
        page.check("#carried")
        page.check("#zoom")
        page.select_option("#swept", "0")
        page.wait_for_function("() => document.body.dataset.drawn === '[28,28,42]'")
        page.wait_for_function("() => document.getElementById('density').data[0].name.endsWith('carried')")
        page.wait_for_timeout(2500)  # the sweep follows the sliders
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.screenshot(path=str(path))
        browser.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
