"""Draw the first page of a report into a picture, by a browser without a window.

    python examples/report_screenshot.py [--out docs/report.png]

Needs Chromium, playwright and the extra "plot". The rows are those of ``explorer_screenshot.py``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from explorer_screenshot import INPUTS, rows

from localw2 import LocalW2Regressor
from localw2.report import write_report


def main() -> None:
    """Fit, write the report, look, save."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs/report.png"), help="the picture")
    options = parser.parse_args()
    x, y = rows(1200)
    model = LocalW2Regressor(max_epochs=200, random_state=0).fit(x[:800], y[:800])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        write_report(page, model, x[800:], y[800:], feature_names=INPUTS, target_names=["strength [MPa]"])
        photograph(page, options.out)
    print(f"Picture: {options.out}")


def photograph(page: Path, path: Path) -> None:
    """Save what the top of the page shows."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 980, "height": 1180}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.screenshot(path=str(path))
        browser.close()


if __name__ == "__main__":
    main()
