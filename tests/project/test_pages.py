"""Pages lead somewhere: every local link and picture is a file of the repository."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    return {(ROOT / name).resolve() for name in listed.stdout.splitlines()}


def test_local_links_lead_to_tracked_files():
    files = tracked()
    pages = [path for path in files if path.suffix == ".md"]
    assert ROOT / "README.md" in pages
    links = [(page, page.parent / target) for page in pages for target in LINK.findall(page.read_text())]
    assert len(links) > 20
    dead = [f"{page.name}: {target}" for page, target in links if target.resolve() not in files]
    assert dead == []
