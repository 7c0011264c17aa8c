"""Learning policies for routing: the world that they are tried in, PPO, and the run of a training. Extra: rl."""
