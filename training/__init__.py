"""Trains the models of stretto/zoo; see README.md. Not part of the installed package."""
