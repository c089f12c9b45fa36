"""A board for a workshop: predictions beside results, from every learner's machine."""
