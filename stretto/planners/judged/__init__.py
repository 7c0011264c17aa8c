"""Judged plans (ours): at every load what the judge found best there, or near it, under the conditions measured."""
