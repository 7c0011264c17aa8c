"""Virtual time: arrivals, traces, the simulated driver of the dispatcher, and what is measured from its outcomes."""
