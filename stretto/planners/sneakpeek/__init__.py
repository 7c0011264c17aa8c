"""SneakPeek (Wolfrath et al., SoCC 2025): which variant answers each query of a window, in which batch and order.

One module per idea: `catalogue` and `window` are what is to be scheduled, in plain arrays; `groups` forms and orders
groups (sections 5.1.1, 5.2, 5.3.2); `timeline` says what a schedule is worth and makes the locally optimal one (5.1.2);
`search`, with `bounds`, finds the best one (algorithm 1); `schedule` puts these together;
`planner` reads a View and writes a Plan. Compiled code is in `timeline`, `bounds`, `search` and `groups`.
"""
