"""Configuration of the documentation, built by `make docs`."""

from importlib.metadata import version as installed_version

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
    "numpydoc",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "dollarmath"]
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types and shapes
autodoc_default_options = {"members": True, "show-inheritance": True}
autosummary_generate = True
numpydoc_show_class_members = False  # autodoc lists them

html_theme = "pydata_sphinx_theme"
html_title = project
html_theme_options = {"show_prev_next": False}
