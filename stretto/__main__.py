"""`python -m stretto`: the command line."""

from stretto.cli.main import app

if __name__ == "__main__":  # a process that the server starts reads this file too
    app()
