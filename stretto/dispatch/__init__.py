"""The fast path: follows the Plan. No clock, no socket, no thread, no policy's name."""
