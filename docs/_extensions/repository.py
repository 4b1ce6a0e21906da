"""Links to the repository, and to edit a page there, as soon as pyproject.toml says where it is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

BRANCH = "main"


def read_url(pyproject: Path) -> str | None:
    """The URL of the repository under ``[project.urls]``, or None."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    url = project.get("urls", {}).get("Repository")
    return None if url is None else str(url).rstrip("/").removesuffix(".git")


def link(url: str | None, options: dict[str, Any]) -> dict[str, str]:
    """Add an icon and "Edit this page" to the options of the theme; the result is ``html_context``."""
    if url is None:
        return {}
    hosts = {"github.com": "github", "gitlab.com": "gitlab", "bitbucket.org": "bitbucket"}
    host = next((name for place, name in hosts.items() if f"//{place}/" in url), None)
    icon = "fa-solid fa-code-branch" if host is None else f"fa-brands fa-{host}"
    options["icon_links"] = [{"name": "Repository", "url": url, "icon": icon}]
    options["navbar_end"].append("navbar-icon-links")
    options["use_edit_page_button"] = True
    options["secondary_sidebar_items"]["**"].append("edit-this-page")
    edit = {"gitlab": f"-/edit/{BRANCH}", "bitbucket": f"src/{BRANCH}"}.get(host or "", f"edit/{BRANCH}")
    return {"edit_page_url_template": f"{url}/{edit}/docs/{{{{ file_name }}}}"}


def leave_out(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Pages of the gallery are written by the build: there is no file in docs/ to edit."""
    if page.startswith("gallery/"):
        context["theme_use_edit_page_button"] = False


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the exception."""
    app.connect("html-page-context", leave_out)
    return {"parallel_read_safe": True}
