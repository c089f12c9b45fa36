"""One question each, all on one engine: which stage helps, which of two is faster, what each is worth."""
