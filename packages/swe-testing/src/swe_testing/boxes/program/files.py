"""Read, write, list and delete files."""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any

from .answers import PIECE, Answers
from .spaces import Refused

PAGE = 500


class Files(Answers):
    """The routes of files."""

    def files(self, operation: str) -> None:
        if "path" not in self.query:
            raise Refused(400, "missing path")
        shown = self.query["path"]
        path = self.space.path(shown)
        operations = {
            **{("GET", name): getattr(self, f"file_{name}") for name in ("read", "stat", "list")},
            ("PUT", "write"): self.file_write,
            ("DELETE", "delete"): self.file_delete,
            ("POST", "mkdir"): self.file_mkdir,
        }
        if (self.command, operation) not in operations:
            raise Refused(404, "not found")
        try:
            operations[self.command, operation](path, shown)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Refused(404, f"no such file or directory: {shown}") from error
        except OSError as error:
            raise Refused(400, f"{error.strerror}: {shown}") from error

    def number(self, name: str) -> int | None:
        value = self.query.get(name)
        if value is None:
            return None
        if not value.isdigit():
            raise Refused(400, f"{name} must be a number")
        return int(value)

    def file_read(self, path: str, shown: str) -> None:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = self.number("offset") or 0
            length = self.number("length")
            left = max(0, size - offset) if length is None else min(length, max(0, size - offset))
            file.seek(offset)
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(left))
            self.end_headers()
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    break
                self.wfile.write(piece)
                left -= len(piece)

    def file_write(self, path: str, shown: str) -> None:
        offset, size = self.number("offset"), self.number("truncate_to")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if offset is None else 0)
        with open(os.open(path, flags, 0o644), "wb") as file:
            file.seek(offset or 0)
            file.write(self.body)
            if size is not None:
                file.truncate(size)
            if "mode" in self.query:
                os.fchmod(file.fileno(), int(self.query["mode"], 8))
        self.json({"path": shown, "size": len(self.body)})

    def entry(self, path: str, shown: str) -> dict[str, Any]:
        facts = os.lstat(path)
        kind = "dir" if stat.S_ISDIR(facts.st_mode) else "symlink" if stat.S_ISLNK(facts.st_mode) else "file"
        return {
            "name": os.path.basename(shown.rstrip("/")),
            "path": shown,
            "type": kind,
            "size": facts.st_size,
            "mtime_ms": int(facts.st_mtime * 1000),
            "mode": f"{stat.S_IMODE(facts.st_mode):o}",
        }

    def file_stat(self, path: str, shown: str) -> None:
        self.json(self.entry(path, shown))

    def file_list(self, path: str, shown: str) -> None:
        names = sorted(name for name in os.listdir(path) if name > self.query.get("after", ""))
        page = names[:PAGE]
        entries = [self.entry(os.path.join(path, name), os.path.join(shown, name)) for name in page]
        self.json({"entries": entries, "next": page[-1] if len(names) > PAGE else None})

    def file_delete(self, path: str, shown: str) -> None:
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
        elif self.query.get("recursive") == "1":
            shutil.rmtree(path)
        else:
            os.rmdir(path)
        self.json({"deleted": True})

    def file_mkdir(self, path: str, shown: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.json({"path": shown})
