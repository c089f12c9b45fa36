"""The code that runs inside a measuring process."""
