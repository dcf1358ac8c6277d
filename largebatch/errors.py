"""What a user can get wrong, each told in one line: the field or file, the numbers, the remedy."""


class UserError(Exception):
    """A mistake that the user can mend; printed without a traceback, exit code 2."""


class ConfigError(UserError):
    """A configuration key, value or combination that cannot be run."""


class DataError(UserError):
    """A data set that is missing, unreadable or not what the configuration says."""


class CheckpointError(UserError):
    """A checkpoint that is missing, unreadable or of another run."""
