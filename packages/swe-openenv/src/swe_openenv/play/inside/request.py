"""Runs inside: `request.py PORT METHOD PATH` makes one HTTP request on the loopback.

Standard input is a line with the headers as JSON, and the body. The answer's body is printed as it arrives.
Standard library of Python >= 3.6 only.
"""

import http.client
import json
import sys


def main(port: int, method: str, path: str) -> None:
    head, body = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, body, json.loads(head.decode()))
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit("status %d" % answer.status)  # noqa: UP031 (an old Python may run it)
    while True:
        chunk = answer.read1(65536)
        if not chunk:
            break
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    except (OSError, http.client.HTTPException) as error:
        sys.exit("%s %s" % (type(error).__name__, error))  # noqa: UP031 (an old Python may run it)
