"""The command line: one thin file a command. numpy and Numba load inside the commands, so that help comes at once."""
