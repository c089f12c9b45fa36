"""The studies, one question each: which stage helps, which of two recipes is faster. All measure alike."""
