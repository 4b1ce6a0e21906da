"""The built pages in a real browser, from a phone to a desktop: nothing overflows, every picture is there."""

import os
import shutil
from pathlib import Path

import pytest

BUILT = Path(__file__).parents[2] / "build" / "docs"
NEEDED = os.environ.get("LOCALW2_REQUIRE_BROWSER") == "1"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.docs

# Elements that reach beyond the right edge of the text, unless they, or what contains them, can be scrolled.
# The links beside headings do not count: they appear only under the mouse.
OVERFLOWING = """() => {
  const text = document.querySelector('article');
  const edge = text.getBoundingClientRect().right + 1;
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const inScroller = e => e !== text && (scrolls(e) || inScroller(e.parentElement));
  return [...text.querySelectorAll('*')]
    .filter(e => e.getBoundingClientRect().width && e.getBoundingClientRect().right > edge)
    .filter(e => !inScroller(e) && !e.matches('.headerlink'))
    .map(e => `${e.tagName}: ${e.textContent.slice(0, 40)}`);
}"""
BROKEN = "() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"


@pytest.fixture(scope="module")
def browser():
    if not NEEDED:  # where a browser is required, a missing one is an error
        pytest.importorskip("playwright")
        if CHROMIUM is None:
            pytest.skip("no Chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_nothing_overflows_and_every_picture_loads(browser):
    page = browser.new_page()
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    pages = [p for p in sorted(BUILT.rglob("*.html")) if not {"_modules", "_static"} & set(p.parts)]
    assert len(pages) > 40
    for path in pages:
        if path.name in ("genindex.html", "py-modindex.html", "search.html"):
            continue
        page.goto(path.as_uri())
        wrong += [f"{path.relative_to(BUILT)}: {url}" for url in page.evaluate(BROKEN)]
        for width in (360, 768, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            found = page.evaluate(OVERFLOWING)
            if found or page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wrong.append(f"{path.relative_to(BUILT)} at {width}: {found[:3]}")
    page.close()
    assert not wrong, "\n".join(wrong)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_the_search_finds_a_page(browser):
    page = browser.new_page()
    page.goto((BUILT / "search.html").as_uri() + "?q=debiasing")
    page.wait_for_selector("#search-results li a", timeout=30_000)
    assert "debiasing" in page.inner_text("#search-results").lower()
    page.close()
