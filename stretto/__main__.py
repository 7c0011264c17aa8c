"""`python -m stretto`: the command line."""

from stretto.cli.main import app

app()
