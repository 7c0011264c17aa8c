"""One variant on each worker, placed by an integer program, and a shared queue for each application (ours)."""
