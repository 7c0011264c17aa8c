"""Jellyfish (Nigade et al., RTSS 2022): which variant each worker runs and which client it serves, over a network."""
