"""Tools that several additions use. This folder adds nothing by itself, and imports no addition."""
