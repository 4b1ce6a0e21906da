"""Take a screenshot of the first page of a report in a headless browser.

    python examples/report_screenshot.py [--out docs/report.png]

Needs Chromium, playwright and the extra "plot". The rows are those of ``explorer_screenshot.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from explorer_screenshot import find_chromium, fit_model, read_path

from localw2 import write_report


def main() -> None:
    """Fit, write the report, and save the screenshot."""
    out = read_path(__doc__, "docs/report.png")
    model, x, y = fit_model()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        write_report(page, model, x, y)
        photograph(page, out)
    print(f"Picture: {out}")


def photograph(page: Path, path: Path) -> None:
    """Save a screenshot of the top of the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 980, "height": 1180}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.screenshot(path=str(path))
        browser.close()


if __name__ == "__main__":
    main()
