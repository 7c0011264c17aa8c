"""The command line: one thin file a command. Nothing here decides anything; numpy and Numba load inside the commands."""
