"""What can be changed in a training: known causes, what is said of each, and how it is shown."""
