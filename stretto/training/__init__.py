"""Learning policies for routing: the world that they are tried in, PPO, and the run of a training. Extra: rl."""

SYSTEMS_AT_ONCE = 1024  # simulated in one training, unless asked otherwise
