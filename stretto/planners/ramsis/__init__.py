"""RAMSIS (Mendoza et al., EuroSys 2024): which variant runs which batch, from a Markov decision process per worker.

One module per idea: `task` and `options` say what is solved, `laws` and `streams` how queries reach a worker, `states`
and `transitions` and `leftover` are sections 4.2 to 4.4, `solve` knows nothing of queues, `policy` puts them together
with the guarantee of section 5.1, `library` and `store` have the set of loads, `planner` follows them online.
"""
