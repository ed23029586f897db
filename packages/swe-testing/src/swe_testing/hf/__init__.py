"""LocalHF: a Hugging Face on loopback for tests, whose sandboxes and jobs really execute.

    async with LocalHF() as hf:
        environment = {**os.environ, **hf.environment()}  # for a subprocess
        ...  # a real `huggingface_hub` client with HF_ENDPOINT=hf.origin and HF_TOKEN=hf.token

The fixture `local_hf` of `swe_testing.hf.fixtures` points an imported `huggingface_hub` to it.
`python -m swe_testing.hf` serves until its stdin ends.
"""

from swe_testing.hf.accounts import Accounts, Refused, Token
from swe_testing.hf.faults import Faults
from swe_testing.hf.hub import Hub
from swe_testing.hf.jobs import Jobs
from swe_testing.hf.server import LocalHF
from swe_testing.hf.spaces import Spaces

__all__ = ["Accounts", "Faults", "Hub", "Jobs", "LocalHF", "Refused", "Spaces", "Token"]
