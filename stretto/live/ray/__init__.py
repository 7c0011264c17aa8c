"""The roles of a cluster as actors of Ray: it places them and keeps them alive, and carries no query."""
