"""The parent's side of measuring processes: starting, asking, cancelling, ending them."""
