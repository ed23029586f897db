"""Runs inside a sandbox: `client.py METHOD PORT PATH` asks 127.0.0.1 once and prints the answer's body.

On stdin: a line of JSON with the headers, then the body to send. Any status but 200 is an exit code of 1,
with the status on stderr. It stands alone: nothing but the standard library of Python >= 3.6.
"""
# ruff: noqa: UP031 (what is new was not there in 3.6)

import http.client
import json
import os
import sys

CHUNK = 65536

method, port, path = sys.argv[1:]
headers = json.loads(sys.stdin.buffer.readline().decode())
body = sys.stdin.buffer.read()
with open(os.devnull) as null:
    os.dup2(null.fileno(), 0)  # where it is a file, others could read it through /proc
connection = http.client.HTTPConnection("127.0.0.1", int(port))
try:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit("status %d" % answer.status)
    while True:
        data = answer.read1(CHUNK)
        if not data:
            break
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
except (OSError, http.client.HTTPException) as error:
    sys.exit("%s %s" % (type(error).__name__, error))
