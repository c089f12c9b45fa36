"""Turns data into tables, figures and sentences. Nothing here measures or trains."""
