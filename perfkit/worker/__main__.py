"""`python -m perfkit.worker` is a measuring process."""

from perfkit.worker.serve import main

main()
