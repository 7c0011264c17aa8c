"""Which models live in which sub-cluster (Symphony section 4.7 and appendix A)."""
