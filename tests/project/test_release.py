"""A release is named once in the code, and the changelog and the citation agree with it."""

import pytest

import localw2
from check_release import ROOT, list_faults

FILES = ("src/localw2/__init__.py", "CHANGELOG.md", "CITATION.cff")


@pytest.fixture
def checkout(tmp_path):
    """The files that name the release, to be changed."""
    for name in FILES:
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
