"""How Sphinx builds these pages: `make docs`, with warnings as errors and without a network."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "_extensions"))

import repository  # noqa: E402

project = "localw2"
author = copyright = "the localw2 developers"
# The version is stored in one place, which is read here without importing torch.
release = re.search(r'__version__ = "(.+)"', (ROOT / "src/localw2/__init__.py").read_text())[1]
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "accessibility",
    "mathml",
    "command_line",
    "description",
    "docstrings",
    "repository",
    "repository_links",
    "stability",
    "trim_code",
]
# Both myst-nb and sphinx-gallery claim notebooks.
exclude_patterns = ["_*", "gallery/*.ipynb", "gallery/*.py", "gallery/*.json", "**/README.md"]
templates_path = ["_templates"]
nitpicky = False
suppress_warnings = ["config.cache"]

# Pages
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Executed pages. Pictures are vector graphics, which can be enlarged on a phone.
nb_execution_mode = os.environ.get("LOCALW2_DOCS_EXECUTION", "force")
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_execution_cache_path = str(ROOT / "build" / "docs-cache")
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = "Code of this picture"
nb_mime_priority_overrides = [("html", "image/svg+xml", 0)]
os.environ["IPYTHONDIR"] = str(ROOT / "build" / "ipython")
os.environ.setdefault("OMP_NUM_THREADS", "1")
profile = Path(os.environ["IPYTHONDIR"]) / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text((HERE / "_kernel" / "ipython_kernel_config.py").read_text())

# Docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# The right sidebar has room for names, not for the modules before them.
toc_object_entries_show_parents = "hide"

# Copy buttons take the code without prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d*\]: "
copybutton_prompt_is_regexp = True
copybutton_selector = ", ".join(
    f"div.highlight-{kind} pre" for kind in ("python", "ipython3", "console", "text", "Python")
)

# Gallery
sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", "gallery_style.reset"),
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,
    "min_reported_time": 1000,
    "plot_gallery": "True",
    "image_srcset": ["2x"],
}

# Looks
html_theme = "pydata_sphinx_theme"
html_title = f"localw2 {release}"
html_static_path = ["_static"]
html_css_files = ["localw2.css"]
html_js_files = [("accessibility.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_extra_path = ["../llms.txt"]
html_show_sourcelink = True
html_copy_source = True
html_sourcelink_suffix = ".txt"
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {"text": "localw2", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_align": "left",
    "navbar_end": ["version", "theme-switcher"],
    "header_links_before_dropdown": 7,
    "show_nav_level": 2,
    "navigation_with_keys": False,
    "back_to_top_button": True,
    "secondary_sidebar_items": {"**": ["page-toc", "sourcelink"], "index": []},
    "footer_start": ["copyright"],
    "footer_center": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = repository.link(repository.read_url(ROOT / "pyproject.toml"), html_theme_options)
html_sidebars = {"index": [], "changelog": [], "start": [], "faq": [], "glossary": []}

# Gallery scripts run inside Sphinx; their warnings are not those of the build.
warnings.filterwarnings("default", category=DeprecationWarning)
