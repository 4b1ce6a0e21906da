"""Formulas as MathML: no script, no network, and screen readers can read them aloud.

latex2mathml translates at build time. Browsers render MathML poorly without a mathematical font, so the
glyphs that the pages use are extracted from STIX Two Math (OFL, shipped with ziamath) into a small web font.
"""

from __future__ import annotations

import html
import re
import unicodedata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

FONT = "stix-two-math.woff"
SCRIPT = re.compile(r'<mi mathvariant="script">([A-Z])</mi>')
# Fonts draw primes at their height already: as superscripts they would fly away.
PRIME = re.compile(r"<msup>((?:(?!<msup>).)*?)<mi>(&#x0203[2-4];)</mi></msup>")
DOT = "<mo>&#x002D9;</mo></mover>"
FORMULA = re.compile(r"<math .*?</math>", re.S)


def mathml(latex: str, display: bool) -> str:
    """The formula as a <math> element, with its source as annotation for copying."""
    found = SCRIPT.sub(_script, convert(latex, display="block" if display else "inline"))
    found = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">\2</mo></mrow>', found)
    found = re.sub(rf"<mover>((?:(?!<mover>).)*?){re.escape(DOT)}", rf'<mover accent="true">\1{DOT}', found)
    found = found.replace("<mo>&#x0005E;</mo></mover>", "<mo>&#x002C6;</mo></mover>")
    return found.replace("<math ", f'<math alttext="{html.escape(latex, quote=True)}" ', 1)


def _script(found: re.Match[str]) -> str:
    """Replace a script letter by its own character: browsers no longer support the attribute."""
    # Eight of them entered Unicode earlier than the others, under a shorter name.
    older = "" if found[1] in "BEFHILMR" else "MATHEMATICAL "
    return f"<mi>{unicodedata.lookup(f'{older}SCRIPT CAPITAL {found[1]}')}</mi>"


def inline(translator: Any, node: nodes.math) -> None:
    """A formula inside a line of text."""
    translator.body.append(mathml(node.astext(), display=False))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """A displayed formula, which can be scrolled on a narrow screen."""
    translator.body.append(
        f'<div class="math-block" tabindex="0">{mathml(node.astext(), display=True)}</div>'
    )
    raise nodes.SkipNode


def write_font(app: Sphinx, error: Exception | None) -> None:
    """Reduce the font to the glyphs that the formulas of the built pages need."""
    if error or app.builder.format != "html":
        return
    from fontTools import subset

    used = set("√")  # drawn by browsers, though no formula contains it as a character
    for page in Path(app.outdir).rglob("*.html"):
        for formula in FORMULA.findall(page.read_text(encoding="utf-8")):
            used.update(html.unescape(re.sub(r"<[^>]*>", "", formula)))

    options = subset.Options(flavor="woff", layout_features=["*"], notdef_outline=True)
    (package,) = find_spec("ziamath").submodule_search_locations
    font = subset.load_font(str(Path(package) / "fonts" / "STIXTwoMath-Regular.ttf"), options)
    cutter = subset.Subsetter(options)
    # Single letters of a formula are drawn in mathematical italics, which have their own code points.
    italics = (
        {chr(c) for c in range(0x1D434, 0x1D468)} | {chr(c) for c in range(0x1D6E4, 0x1D71C)} | {"\u210e"}
    )
    basic = {chr(c) for c in range(32, 127)}
    cutter.populate(unicodes=[ord(c) for c in used | italics | basic])
    cutter.subset(font)
    subset.save_font(font, str(Path(app.outdir) / "_static" / FONT), options)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.connect("build-finished", write_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
