"""One queue for all workers: the selection problem as a semi-Markov decision process over the whole pool (ours)."""
