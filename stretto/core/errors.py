"""The one exception family a user meets: a sentence that says what is wrong and what to do."""


class StrettoError(ValueError):
    """Bad input from a person: a plan, a profile, a scenario, a trace. The message is meant to be read."""


class PlanError(StrettoError):
    """A plan that the dispatcher must not follow."""


class ProfileError(StrettoError):
    """A latency profile that cannot be believed."""
