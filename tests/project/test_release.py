"""A release is named once in the code; the changelog, the citation and the badges agree with it."""

import re

import pytest

import localw2
from badges import draw_badges, read_facts
from check_release import ROOT, list_faults

FILES = ("src/localw2/__init__.py", "CHANGELOG.md", "CITATION.cff")


@pytest.fixture
def checkout(tmp_path):
    """The files that name the release, to be changed."""
    for name in (*FILES, "pyproject.toml", *map(str, draw_badges(ROOT))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def test_version_changelog_and_citation_agree():
    assert list_faults(ROOT) == list_faults(ROOT, f"v{localw2.__version__}") == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_forgotten_is_named(checkout, name):
    path = checkout / name
    path.write_text(path.read_text().replace(localw2.__version__, "99.0.0"))
    assert any(name in fault for fault in list_faults(checkout))


def test_another_date_or_tag_is_a_fault(checkout):
    path = checkout / "CITATION.cff"
    path.write_text(path.read_text().replace("date-released: 2", "date-released: 1"))
    (fault,) = list_faults(checkout)
    assert "CHANGELOG.md says 2" in fault
    (fault,) = list_faults(ROOT, "v99.0.0")
    assert "v99.0.0" in fault


def test_badges_say_what_the_metadata_say(checkout):
    facts = read_facts(ROOT)
    assert facts["version"] == localw2.__version__
    for (name, value), path in zip(facts.items(), draw_badges(ROOT), strict=True):
        assert f"<title>{name}: {value}</title>" in (ROOT / path).read_text()
        assert str(path) in (ROOT / "README.md").read_text()
    assert sorted((ROOT / "docs/_static/badges").iterdir()) == sorted(
        ROOT / path for path in draw_badges(ROOT)
    )
    path = checkout / "pyproject.toml"
    path.write_text(re.sub(r'^license = ".+"$', 'license = "BSD-3-Clause"', path.read_text(), flags=re.M))
    (fault,) = list_faults(checkout)
    assert "licence.svg" in fault
