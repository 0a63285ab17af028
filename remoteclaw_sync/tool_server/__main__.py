"""`python -m remoteclaw_sync.tool_server`: the relay, to be started by hand. CLIs start `relay.py` itself."""

import os
import sys

from .relay import main

exit_code = main()
sys.stderr.flush()
os._exit(exit_code)
