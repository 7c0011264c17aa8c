"""Evidence about the class of a query before any variant has run (SneakPeek, section 4)."""
