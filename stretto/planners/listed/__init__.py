"""The planners by family, each with its options: what the registry puts together."""
