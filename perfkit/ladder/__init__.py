"""What is changed, and in which order: the optimizations with their cards, stages, presets."""
