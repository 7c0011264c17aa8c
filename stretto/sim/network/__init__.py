"""Clients behind networks: frames over links whose bandwidth changes, in a closed loop with the dispatcher."""
