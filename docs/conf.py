"""Settings of the documentation site: `make docs` builds it with Sphinx, and fails at any warning."""

import sys
from importlib.metadata import version as read_version
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
import accessibility
import reference

project = "embodied-rl"
author = "the embodied-rl developers"
release = read_version(project)
html_title = f"embodied-rl {release}"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = html_show_copyright = html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["example_plugin", "figures", "costs", "_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
# Docstrings name code by single backquotes.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True}
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Write the generated pages before Sphinx lists its sources; mend its pages at the end."""
    app.connect("config-inited", lambda app, config: reference.write_pages(Path(app.srcdir) / "reference"))
    app.connect("build-finished", lambda app, error: error or accessibility.mend_pages(Path(app.outdir)))
