"""Tools that several additions use. It is no addition itself: it adds nothing, and imports none of them."""
