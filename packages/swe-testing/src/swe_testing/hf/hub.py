"""Hub: repositories of models, data sets and Spaces.

Every upload is "regular" and part of the commit, so the client needs neither LFS nor Xet.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import unquote

import orjson
from aiohttp import web

from swe_testing.hf.accounts import USER, Accounts, Refused
from swe_testing.hf.repos import MAIN, Commit, Kind, Repo, Space, blob_id

_REPO = "/api/{kind:models|datasets|spaces}/{owner}/{name}"
_REVISION = "{revision:[^/]+}"
_PREFIXES: Mapping[Kind, str] = {"model": "", "dataset": "datasets/", "space": "spaces/"}
_NAME = re.compile(r"[\w.-]{1,96}")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
READ, WRITE = "repo.content.read", "repo.write"


class Hub:
    """Repositories that exist as long as the server.

    A route's name is "hub." and "create", "delete", "info", "info-at", "tree", "paths", "preupload",
    "commit", "commits", "refs", "branch", "settings", "auth", "validate" or, for the files of a kind of
    repository, "resolve.model", "resolve.dataset", "resolve.space".

    Attributes:
        repos: (kind, OWNER/NAME) → repository.
        hardware: Hardware for Spaces, of `HARDWARE`.
        may_pay: Whether the account has credit; else only "cpu-basic" is available.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.repos: dict[tuple[Kind, str], Repo] = {}
        self.hardware: tuple[str, ...] = (
            "cpu-basic",
            "cpu-upgrade",
            "t4-small",
            "l4x1",
            "a10g-large",
            "a10g-largex2",
            "a100-large",
        )
        self.may_pay = True

    def repo(self, kind: Kind, repo_id: str) -> Repo:
        """Return a repository, or refuse with 404."""
        try:
            return self.repos[kind, repo_id]
        except KeyError:
            raise Refused(404, "Repository not found", "RepoNotFound") from None

    def space(self, repo_id: str) -> Space:
        """Return the state of a Space, or refuse with 404."""
        return cast(Space, self.repo("space", repo_id).space)

    def check_hardware(self, flavor: str) -> None:
        """Refuse hardware that does not exist or is not paid for with 400 or 402."""
        if flavor not in self.hardware:
            raise Refused(400, f'Invalid option: expected one of {"|".join(self.hardware)}, not "{flavor}"')
        if flavor != "cpu-basic" and not self.may_pay:
            raise Refused(402, "Payment required: add a payment method to use upgraded hardware")

    def readable(self, request: web.Request, kind: Kind) -> Repo:
        """Return the repository of a request, which may be public."""
        return self.visible(request, kind, _id(request))

    def visible(self, request: web.Request, kind: Kind, repo_id: str) -> Repo:
        """Return a repository that a request's token may read, or refuse with 401, 403 or 404."""
        repo = self.repos.get((kind, repo_id))
        if repo is not None and not repo.private:
            return repo
        if "Authorization" not in request.headers:
            raise Refused(401, "Repository not found", "RepoNotFound")  # the Hub hides private names
        self._accounts.require(request, READ)
        return self.repo(kind, repo_id)

    def writable(self, request: web.Request, kind: Kind) -> Repo:
        """Return the repository that a request wants to change."""
        self._accounts.require(request, WRITE)
        repo = self.repo(kind, _id(request))
        self._accounts.require_namespace(request.match_info["owner"])
        return repo

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        yield web.post("/api/repos/create", self._create, name="hub.create")
        yield web.delete("/api/repos/delete", self._delete, name="hub.delete")
        yield web.post("/api/validate-yaml", self._validate, name="hub.validate")
        yield web.get(_REPO, self._info, name="hub.info")
        yield web.get(f"{_REPO}/revision/{_REVISION}", self._info, name="hub.info-at")
        yield web.get(f"{_REPO}/tree/{_REVISION}{{path:(/.*)?}}", self._tree, name="hub.tree")
        yield web.post(f"{_REPO}/paths-info/{_REVISION}", self._paths, name="hub.paths")
        yield web.post(f"{_REPO}/preupload/{_REVISION}", self._preupload, name="hub.preupload")
        yield web.post(f"{_REPO}/commit/{_REVISION}", self._commit, name="hub.commit")
        yield web.get(f"{_REPO}/commits/{_REVISION}", self._commits, name="hub.commits")
        yield web.get(f"{_REPO}/refs", self._refs, name="hub.refs")
        yield web.post(f"{_REPO}/branch/{_REVISION}", self._branch, name="hub.branch")
        yield web.put(f"{_REPO}/settings", self._settings, name="hub.settings")
        yield web.get(f"{_REPO}/auth-check{{write:(/write)?}}", self._auth, name="hub.auth")
        for kind, prefix in _PREFIXES.items():
            path = f"/{prefix}{{owner}}/{{name}}/resolve/{_REVISION}/{{path:.+}}"
            yield web.get(path, self._resolve, name=f"hub.resolve.{kind}")

    async def _create(self, request: web.Request) -> web.Response:
        self._accounts.require(request, WRITE)
        asked = orjson.loads(await request.read())
        owner, name, kind = asked.get("organization") or USER, asked["name"], asked.get("type", "model")
        self._accounts.require_namespace(owner)
        if not _NAME.fullmatch(name):
            raise Refused(400, f'Invalid name "{name}"')
        url = f"{request.url.origin()}/{_PREFIXES[kind]}{owner}/{name}"
        if (kind, f"{owner}/{name}") in self.repos:
            message = f"You already created this {kind} repo"
            body = {"error": message, "url": url}
            return web.json_response(body, status=409, headers={"X-Error-Message": message})
        repo = Repo.new(
            kind, f"{owner}/{name}", asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        if kind == "space":
            hardware = asked.get("hardware", "cpu-basic")
            self.check_hardware(hardware)
            repo.space = Space(
                sdk=asked["sdk"],
                hardware=hardware,
                sleep_time=asked.get("sleepTimeSeconds"),
                secrets={one["key"]: one["value"] for one in asked.get("secrets", ())},
                variables={one["key"]: one["value"] for one in asked.get("variables", ())},
            )
        self.repos[kind, repo.id] = repo
        return web.json_response({"url": url, "name": repo.id, "id": blob_id(repo.id.encode())[:24]})

    async def _delete(self, request: web.Request) -> web.Response:
        self._accounts.require(request, WRITE)
        asked = orjson.loads(await request.read())
        owner = asked.get("organization") or USER
        repo = self.repo(asked.get("type", "model"), f"{owner}/{asked['name']}")
        self._accounts.require_namespace(owner)
        del self.repos[repo.kind, repo.id]
        return web.json_response({})

    async def _validate(self, request: web.Request) -> web.Response:
        content = orjson.loads(await request.read())["content"]
        if not re.match(r"---\r?\n(.*\r?\n)*?---\r?\n", content):
            return web.json_response(
                {"errors": [], "warnings": [{"message": "empty or missing yaml metadata"}]}
            )
        return web.json_response({"errors": [], "warnings": []})

    async def _info(self, request: web.Request) -> web.Response:
        repo = self.readable(request, _kind(request))
        commit = repo.at(request.match_info.get("revision", MAIN))
        blobs = request.query.get("blobs", "").lower() == "true"
        siblings = [
            {"rfilename": path, **({"size": len(data), "blobId": blob_id(data)} if blobs else {})}
            for path, data in commit.files.items()
        ]
        info: dict[str, Any] = {
            "_id": blob_id(repo.id.encode())[:24],
            "id": repo.id,
            "author": repo.id.partition("/")[0],
            "sha": commit.id,
            "lastModified": commit.date,
            "createdAt": repo.created_at,
            "private": repo.private,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
        }
        if repo.space is not None:
            info["sdk"] = repo.space.sdk
            info["host"] = repo.space.host
        return web.json_response(info)

    async def _tree(self, request: web.Request) -> web.Response:
        repo = self.readable(request, _kind(request))
        files = repo.at(request.match_info["revision"]).files
        folder = unquote(request.match_info["path"]).strip("/")
        inside = {path: data for path, data in files.items() if not folder or path.startswith(f"{folder}/")}
        if folder and not inside:
            raise Refused(
                404, f"{folder} does not exist on {request.match_info['revision']!r}", "EntryNotFound"
            )
        every = request.query.get("recursive", "").lower() == "true"
        depth = folder.count("/") + 1 if folder else 0
        wanted = [path for path in _with_folders(inside) if path.startswith(folder) and path != folder]
        return web.json_response(
            [_entry(path, files) for path in wanted if every or path.count("/") == depth]
        )

    async def _paths(self, request: web.Request) -> web.Response:
        repo = self.readable(request, _kind(request))
        files = repo.at(request.match_info["revision"]).files
        there = set(_with_folders(files))
        asked = cast(list[str], (await request.post()).getall("paths", []))
        return web.json_response([_entry(path, files) for path in asked if path in there])

    async def _preupload(self, request: web.Request) -> web.Response:
        files = self.writable(request, _kind(request)).at(request.match_info["revision"]).files
        answer = []
        for one in orjson.loads(await request.read())["files"]:
            entry = {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
            if one["path"] in files:
                entry["oid"] = blob_id(files[one["path"]])
            answer.append(entry)
        return web.json_response({"files": answer})

    async def _commit(self, request: web.Request) -> web.Response:
        repo = self.writable(request, _kind(request))
        branch = request.match_info["revision"]
        if branch not in repo.branches:
            raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        lines = [orjson.loads(line) for line in (await request.read()).splitlines()]
        header = lines[0]["value"]
        last = repo.branches[branch][-1]
        if header.get("parentCommit") not in (None, last.id):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = _applied(last, lines[1:])
        made = repo.commit(branch, files, header["summary"], header.get("description", ""))
        url = f"{request.url.origin()}/{_PREFIXES[repo.kind]}{repo.id}/commit/{made.id}"
        return web.json_response({"success": True, "commitOid": made.id, "commitUrl": url, "hookOutput": ""})

    async def _commits(self, request: web.Request) -> web.Response:
        repo = self.readable(request, _kind(request))
        return web.json_response(
            [
                {
                    "id": commit.id,
                    "title": commit.title,
                    "message": commit.message,
                    "authors": [{"user": USER}],
                    "date": commit.date,
                }
                for commit in repo.history(request.match_info["revision"])
            ]
        )

    async def _refs(self, request: web.Request) -> web.Response:
        repo = self.readable(request, _kind(request))
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commits[-1].id}
            for name, commits in repo.branches.items()
        ]
        return web.json_response({"branches": branches, "converts": [], "tags": []})

    async def _branch(self, request: web.Request) -> web.Response:
        repo = self.writable(request, _kind(request))
        branch = request.match_info["revision"]
        if branch in repo.branches:
            raise Refused(409, f"Reference already exists: refs/heads/{branch}")
        asked = orjson.loads(await request.read() or b"{}")
        repo.branches[branch] = repo.history(asked.get("startingPoint", MAIN))[::-1]
        return web.json_response({})

    async def _settings(self, request: web.Request) -> web.Response:
        repo = self.writable(request, _kind(request))
        asked = orjson.loads(await request.read())
        repo.private = asked.get("visibility") == "private" or bool(asked.get("private", repo.private))
        return web.json_response({"private": repo.private})

    async def _auth(self, request: web.Request) -> web.Response:
        kind = _kind(request)
        if request.match_info["write"]:
            self.writable(request, kind)
        else:
            self.readable(request, kind)
        return web.json_response({})

    async def _resolve(self, request: web.Request) -> web.Response:
        kind = cast(Kind, str(request.match_info.route.name).rpartition(".")[2])
        commit = self.readable(request, kind).at(request.match_info["revision"])
        path = request.match_info["path"]
        headers = {"X-Repo-Commit": commit.id}
        if path not in commit.files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        data = commit.files[path]
        headers |= {"ETag": f'"{blob_id(data)}"', "Accept-Ranges": "bytes"}
        asked = _RANGE.fullmatch(request.headers.get("Range", ""))
        if asked is None:
            return web.Response(body=data, headers=headers)
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if first >= len(data):
            headers["Content-Range"] = f"bytes */{len(data)}"
            return web.Response(status=416, headers=headers)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return web.Response(status=206, body=data[first : last + 1], headers=headers)


def _id(request: web.Request) -> str:
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def _kind(request: web.Request) -> Kind:
    return cast(Kind, request.match_info["kind"].removesuffix("s"))


def _with_folders(paths: Iterable[str]) -> list[str]:
    """Return `paths` and all their folders."""
    found = set(paths)
    for path in list(found):
        parts = path.split("/")[:-1]
        found.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
    return sorted(found)


def _entry(path: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    if path in files:
        return {"type": "file", "oid": blob_id(files[path]), "size": len(files[path]), "path": path}
    return {"type": "directory", "oid": blob_id(path.encode()), "size": 0, "path": path}


def _applied(last: Commit, operations: Iterable[Mapping[str, Any]]) -> Mapping[str, bytes]:
    """Return the files after the operations of a commit.

    Raises:
        Refused: An operation is impossible; then none is executed.
    """
    files = dict(last.files)
    for operation in operations:
        key, value = operation["key"], operation["value"]
        path = value["path"]
        if key == "file":
            try:
                files[path] = base64.b64decode(value["content"], validate=True)
            except binascii.Error:
                raise Refused(400, f"The content of {path!r} is not base64") from None
        elif key == "deletedFile" and path in files:
            del files[path]
        elif key == "deletedFolder" and any(one.startswith(f"{path.rstrip('/')}/") for one in files):
            files = {one: data for one, data in files.items() if not one.startswith(f"{path.rstrip('/')}/")}
        elif key in ("deletedFile", "deletedFolder"):
            raise Refused(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        else:
            raise Refused(400, f"{key!r} is not served here: every file is a regular one")
    return files
