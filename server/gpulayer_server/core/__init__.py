"""The deterministic plane: events in, effects out; no clock, no socket, no file."""
