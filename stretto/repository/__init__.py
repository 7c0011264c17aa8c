"""The model repository: a folder of applications, variants and profiles written by hand. Imports core and config."""
