"""What trains: the recipe and its switches, the training program, and the scripts that come out of it."""
