"""Tokens, their scopes, and the refusal of requests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

USER = "tester"
USER_ID = "5f0c51d1e4a7b10001000001"
ORGANISATION = "testers"
SCOPES = frozenset(
    {"job.read", "job.write", "repo.content.read", "repo.write", "user.webhooks.read", "space.write"}
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the one user.

    Args:
        value: The secret.
        scopes: The permissions; all of `SCOPES` is a token of the role "write".
    """

    value: str
    scopes: frozenset[str] = SCOPES


class Refused(Exception):
    """An error of the API, in the JSON and headers of the real one.

    Args:
        status: The HTTP status.
        message: The sentence in the body and in `X-Error-Message`.
        code: `X-Error-Code`, by which clients choose an exception, for example "RepoNotFound".
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code

    def response(self) -> web.Response:
        """Return the HTTP response."""
        headers = {"X-Error-Message": self.message}
        if self.code is not None:
            headers["X-Error-Code"] = self.code
        return web.json_response({"error": self.message}, status=self.status, headers=headers)


class Accounts:
    """The valid tokens of the user `tester`, a member of the organisation `testers`."""

    def __init__(self) -> None:
        self._tokens: list[Token] = []

    @property
    def namespaces(self) -> tuple[str, str]:
        """Return the user and the user's organisations."""
        return USER, ORGANISATION

    def add(self, scopes: Iterable[str] = SCOPES) -> str:
        """Return a new valid token."""
        token = Token(f"hf_{secrets.token_hex(17)}", frozenset(scopes))
        self._tokens.append(token)
        return token.value

    def revoke(self, value: str) -> None:
        """Make a token invalid."""
        self._tokens = [token for token in self._tokens if token.value != value]

    def require(self, request: web.Request, scope: str | None = None) -> Token:
        """Return the token of a request.

        Raises:
            Refused: 401 without a valid token, 403 where the token lacks `scope`.
        """
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not value:
            raise Refused(401, "Invalid username or password.")
        for token in self._tokens:
            if hmac.compare_digest(token.value.encode(), value.encode()):
                break
        else:
            raise Refused(401, "Invalid credentials in Authorization header")
        if scope is not None and scope not in token.scopes:
            raise Refused(
                403, f"This token does not have the required permissions: the scope {scope!r} is missing"
            )
        return token

    def require_namespace(self, name: str) -> None:
        """Refuse other namespaces than the user's and its organisations' with 403."""
        if name not in self.namespaces:
            raise Refused(403, f"You don't have the required permissions in the namespace {name!r}")

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the route `whoami`."""
        return [web.get("/api/whoami-v2", self._whoami, name="whoami")]

    async def _whoami(self, request: web.Request) -> web.Response:
        token = self.require(request)
        if token.scopes == SCOPES:
            access: dict[str, object] = {"displayName": "test", "role": "write"}
        else:
            scoped = [
                {
                    "entity": {"_id": USER_ID, "type": "user", "name": USER},
                    "permissions": sorted(token.scopes),
                }
            ]
            access = {
                "displayName": "test",
                "role": "fineGrained",
                "fineGrained": {"canReadGatedRepos": False, "global": [], "scoped": scoped},
            }
        return web.json_response(
            {
                "type": "user",
                "id": USER_ID,
                "name": USER,
                "fullname": "Tester",
                "email": f"{USER}@example.invalid",
                "emailVerified": True,
                "canPay": True,
                "isPro": True,
                "orgs": [
                    {"type": "org", "id": f"{USER_ID[:-1]}2", "name": ORGANISATION, "roleInOrg": "admin"}
                ],
                "auth": {"type": "access_token", "accessToken": access},
            }
        )
