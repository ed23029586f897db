"""Checks of what Hugging Face Sandboxes need."""

from __future__ import annotations

from swe_core.api.checks import Check, Finding
from swe_core.errors import SandboxError


def account() -> Finding:
    """Check that the service accepts the token."""
    from swe_sandbox_hf.client import Client

    try:
        client = Client()
    except SandboxError as error:
        return Finding.missing(str(error))
    try:
        user = client.api.whoami()
    except Exception as error:  # the client raises errors of several libraries
        return Finding.missing(str(client.explained(error, "use the Hugging Face token")))
    role = (user.get("auth", {}).get("accessToken") or {}).get("role", "unknown")
    pays = "" if user.get("canPay") else "; the account has no way to pay, which Jobs need"
    return Finding("ok", f"a token of {user['name']!r}, role {role!r}{pays}")


def internet() -> Finding:
    """Name the setting by which a run accepts internet access. It does not depend on this machine."""
    return Finding(
        "info", "sandboxes always have internet access: a run needs sandbox.hf.internet = true to accept it"
    )


CHECKS = (
    Check("Hugging Face token", "--sandbox hf", account),
    Check("internet", "--sandbox hf", internet),
)
