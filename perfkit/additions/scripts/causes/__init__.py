"""Causes by subject: a module recognises them; the table next to it has sentences, edits and limits."""
