"""Keeps secrets and prompts out of what we pass on: error messages, stderr tails, recordings.

`known` decides which values of a run are secret, `letters` makes all spellings of a text comparable, `secrets` finds
those values in a text, `prompts` finds text that repeats a prompt, and `scrubber` removes both from the lines of a
recording.
"""

from .known import Secret as Secret
from .known import has_secrets as has_secrets
from .known import secrets_of_run as secrets_of_run
from .scrubber import Scrubber as Scrubber
from .scrubber import Sieve as Sieve
from .secrets import MASK as MASK
from .secrets import Redactor as Redactor
