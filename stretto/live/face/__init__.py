"""Between front ends, the scheduler and workers: what they say where they are not objects of one process."""
