"""What can go wrong, in sentences a user can act on. Imports nothing heavy: the CLI needs it before pandas."""


class UserError(Exception):
    """A problem the user can mend; the message is one sentence that says how. The CLI prints it and exits with 2."""


class TraceError(UserError):
    """A file that cannot be read as a trace: names the file, what was found and what to do."""

    def __init__(self, path: object, found: str, remedy: str):
        super().__init__(f"{path}: {found}; {remedy}.")


class Missing(UserError):
    """A table, column or fact that this trace does not hold.

    Attributes: `what` is absent, `why` (not traced, none recorded, hidden by a mode), `remedy` (how to record it).
    """

    def __init__(self, what: str, why: str, remedy: str, path: object = None):
        super().__init__(f"{f'{path}: ' if path else ''}cannot say {what}: {why}; {remedy}.")
        self.what, self.why, self.remedy = what, why, remedy
