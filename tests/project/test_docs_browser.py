"""The built pages in a real browser: nothing overflows, every picture is there, everybody can read them.

Accessibility is judged by axe-core: contrast, texts for pictures, the order of headings, names of links and
more.
"""

import importlib.util
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
LISTED = """(rules) => axe.run(document, rules).then(found => found.violations.map(
  each => `${each.id}: ${each.nodes.length} times, as in ${each.nodes[0].html.slice(0, 120)}`))"""
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


def list_pages():
    """All pages but those that Sphinx makes of its index and of source files."""
    pages = [p for p in sorted(BUILT.rglob("*.html")) if not {"_modules", "_static"} & set(p.parts)]
    pages = [p for p in pages if p.name not in ("genindex.html", "py-modindex.html", "search.html")]
    assert len(pages) > 40
    return pages


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_the_pages(browser, scheme):
    """All rules of axe-core; in dark mode, where only colours differ, that of contrast."""
    pytest.importorskip("axe_playwright_python")
    (folder,) = importlib.util.find_spec("axe_playwright_python").submodule_search_locations
    script = (Path(folder) / "axe.min.js").read_text(encoding="utf-8")
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    wrong = []
    for path in list_pages():
        page.goto(path.as_uri())
        page.evaluate(script)
        wrong += [f"{path.relative_to(BUILT)}: {found}" for found in page.evaluate(LISTED, rules)]
    page.close()
    assert not wrong, "\n".join(wrong)


def test_code_is_not_cut_on_a_laptop(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong = []
    for path in list_pages():
        page.goto(path.as_uri())
        cut = page.evaluate(
            "() => [...document.querySelectorAll('article pre')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 60))"
        )
        wrong += [f"{path.relative_to(BUILT)}: {text}" for text in cut]
    page.close()
    assert not wrong, "\n".join(wrong)


def test_nothing_overflows_and_every_picture_loads(browser):
    page = browser.new_page()
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    for path in list_pages():
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
