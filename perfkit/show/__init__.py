"""Data in; table, figure, sentence out. Nothing here measures or trains."""
