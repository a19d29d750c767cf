"""How `make docs` builds the site: the books Use, Run and Study. The book Inside (ARCHITECTURE.md, CONTRIBUTING.md,
docs/decisions/, docs/results.md) is read in the repository.

The root of the repository is Sphinx's source folder, so that a link between pages is the same on the site and on a git
host. What is linked and no page, such as a cluster file, is offered for download.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from walras import __version__

project = "Walras"
author = "The authors of Walras"
release = version = __version__

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "CHANGELOG.md"]
# Named so that they are not walked through: a virtual environment has tens of thousands of files.
exclude_patterns = [".*", "build", "dist", "site", "tests", "walras.egg-info", "docs/decisions", "docs/results.md"]

#: Links to a heading use the name that git hosts give it.
myst_heading_anchors = 4
#: A block that names no language is a terminal or a formula.
highlight_language = "none"
#: A language that Pygments has no colours for (csv) is shown without.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"Walras {release}"
#: The address of the site itself leads to its first page.
html_extra_path = ["site"]
html_show_sourcelink = False
html_copy_source = False
