"""The wall-clock driver: engine, executors, admission, drain. It shares every rule with the simulator."""
