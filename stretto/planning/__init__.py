"""The one way from telemetry to the plan in force, for both drivers: readings, completion, the session. No clock."""
