"""The changes and their order: the optimizations with their cards, stages, presets."""
