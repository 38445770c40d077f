"""Sphinx configuration of the documentation site; `make docs` builds it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(ROOT)]

import pynccl  # noqa: E402

warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated", FutureWarning)

project = "pynccl"
copyright = "the pynccl authors"
version = release = pynccl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.extlinks",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "api",  # the reference: signatures, docstrings, links
    "commands",  # the reference of the commands
    "metadata",  # descriptions of pages
    "repository",  # pages and links that leave docs/
]
exclude_patterns = ["_ext", "_build"]
extlinks = {"torch": ("https://docs.pytorch.org/docs/stable/distributed.html#%s", "%s")}

html_theme = "furo"
html_title = f"pynccl {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# The anchors of headings are those of GitHub: pages have the same links there.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_use_ivar = False
napoleon_use_rtype = False
napoleon_custom_sections = [
    ("Every function raises", "Raises"),
    ("Environment", "params_style"),
]
# Of a block with prompts, the commands are copied, without their output.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
linkcheck_timeout = 20
linkcheck_retries = 2
