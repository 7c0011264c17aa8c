"""Edge RL (Tan et al., TMC 2024): queries dealt to fixed instances by weights that a learned policy sets each slot."""
