"""Settings: measured conditions, enough to simulate them. Imports core, planners, planning and sim only."""
