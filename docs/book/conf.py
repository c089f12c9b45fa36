"""Sphinx: pages that need no network to be built or read, also from `file://`."""

project = "perfkit"
author = copyright = "The perfkit authors"
extensions = ["myst_nb"]
exclude_patterns = ["**/.ipynb_checkpoints"]

nb_execution_mode = "off"  # `make outputs` has executed them
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # from a CDN by default; the panels need a kernel anyway
nb_merge_streams = True
nb_render_markdown_format = "commonmark"
myst_heading_anchors = 3
myst_links_external_new_tab = False
# Chapters link to files of the repository that are not in the book.
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "myst.xref_missing"]

html_theme = "furo"
html_title = "perfkit"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for file://
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
