"""Why a script could not be profiled. All of them are about the script: exit code 2."""

from walras.errors import UserError


class ProfileError(UserError):
    """The script cannot be profiled as it is."""


class NeverStepped(ProfileError):
    """It ended, or its time ran out, before a torch optimizer stepped."""


class ScriptFailed(ProfileError):
    """A rank failed."""


class LossNotFinite(ProfileError):
    """Its parameters are no numbers any more."""


class TooFewUpdates(ProfileError):
    """It ended, or its time ran out, before it had made as many updates as were to be timed."""


class NoSpeed(ProfileError):
    """Updates took no measurable time: a rate of zero or of infinity says nothing."""
