"""A stand-in for the HTTP API of the Hugging Face Hub. It answers the requests that upload and load a model."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server that keeps repositories of files in memory.

    Attributes:
        repositories: {"owner/name": {path: bytes}}.
        private: the names of the private repositories.
        requests: (method, path) of each request so far.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub in a thread of this process while the block runs."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body, path = self._read()
        match path:
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", "validate-yaml"]:
                self._answer({"errors": [], "warnings": []})
            case ["api", "models", _, _, "preupload", _]:
                # A client sends the content of a "regular" file in its request for the commit, and not by Git LFS.
                paths = [file["path"] for file in json.loads(body)["files"]]
                mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                self._answer({"files": [{"path": path, **mode} for path in paths]})
            case ["api", "models", owner, name, "commit", "main"]:
                self._commit(f"{owner}/{name}", body)
            case _:
                self._refuse()

    def do_GET(self) -> None:
        _, path = self._read()
        match path:
            case ["api", "models", owner, name, *rest] if not rest or rest[0] == "revision":
                repository = self.server.repositories[f"{owner}/{name}"]
                files = [{"rfilename": file} for file in sorted(repository)]
                is_private = f"{owner}/{name}" in self.server.private
                found = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": files, "tags": [], "private": is_private}
                self._answer(found)
            case ["api", "models", owner, name, "tree", _, *folder]:
                if folder:
                    return self._refuse("EntryNotFound")
                files = self.server.repositories[f"{owner}/{name}"].items()
                self._answer([{"type": "file", "path": file, "size": len(data), "oid": "0"} for file, data in files])
            case [owner, name, "resolve", _, *file]:
                repository = self.server.repositories[f"{owner}/{name}"]
                if "/".join(file) not in repository:
                    return self._refuse("EntryNotFound")
                self._send(200, repository["/".join(file)], {"X-Repo-Commit": COMMIT})
            case _:
                self._refuse()
        return None

    do_HEAD = do_GET

    def _read(self) -> tuple[bytes, list[str]]:
        """Record the request, and return its body and the parts of its path."""
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0)), path.strip("/").split("/")

    def _create(self, wanted: dict) -> None:
        name = f"{wanted['organization'] or 'me'}/{wanted['name']}"
        is_new = name not in self.server.repositories
        self.server.repositories.setdefault(name, {})
        if is_new and (wanted.get("visibility") == "private" or wanted.get("private")):
            self.server.private.add(name)
        self._answer({"url": f"{self.server.url}/{name}", "name": name}, status=200 if is_new else 409)

    def _commit(self, name: str, body: bytes) -> None:
        repository = self.server.repositories[name]
        for line in body.splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}:
                    repository[path] = base64.b64decode(content)
        address = f"{self.server.url}/{name}/commit/{COMMIT}"
        self._answer({"commitUrl": address, "commitOid": COMMIT, "pullRequestUrl": None})

    def _answer(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, reason: str = "") -> None:
        self._send(404, b"{}", {"X-Error-Code": reason} if reason else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"ETag": f'"{hashlib.sha256(body).hexdigest()}"'} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
