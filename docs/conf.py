"""Configuration of the documentation, built by `make docs`."""

import os
import shutil
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import architecture  # noqa: E402

project = "pymc_ngvi"
author = "the pymc_ngvi developers"
copyright = author
release = installed_version("pymc-ngvi")
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax beside the pages, which are thus readable without a network
    "numpydoc",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "conf.py"]

# Made anew at each build: the picture of the layers, and the gallery, whose programs Sphinx must
# find below this folder.
architecture.draw(HERE.parent / "pyproject.toml", HERE / "generated" / "architecture.svg")
shutil.rmtree(HERE / "gallery", ignore_errors=True)
shutil.copytree(HERE.parent / "examples" / "gallery", HERE / "gallery")

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
# Each line of PyMC runs them itself.
nb_execution_cache_path = str(HERE / "_build" / "cache-{}.{}".format(*sys.version_info))
nb_execution_excludepatterns = ["gallery/*"] if os.environ.get("GALLERY") == "off" else []
nb_execution_in_temp = True  # what a page writes is no part of the sources
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
suppress_warnings = ["myst-nb.lexer"]  # a page that is not run does not know its language

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types and shapes
autodoc_default_options = {"members": True, "show-inheritance": True}
autosummary_generate = True
numpydoc_show_class_members = False  # autodoc lists them

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
# Pages that are a section of their own have nothing to list beside them.
html_sidebars = {page: [] for page in ("index", "quickstart", "benchmarks")}
html_theme_options = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
}


def skip_foreign(app, what, name, member, skip, options):
    """Leave out what a module imports from elsewhere; autodoc would try to read its signature."""
    module = getattr(member, "__module__", None)
    return skip or (isinstance(module, str) and not module.startswith("pymc_ngvi")) or None


def setup(app):
    """Connect what is defined here."""
    app.connect("autodoc-skip-member", skip_foreign)
