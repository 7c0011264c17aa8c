"""What several planners share: one form of each idea. Planners import from here, never from each other."""
