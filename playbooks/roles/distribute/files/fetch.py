#!/usr/bin/env python3
"""Fetches files that share.py gives, in slices: printed as one JSON object. Standard library only.

fetch.py ORDER [--slice-s 20]   a JSON file: host, port, token, folder, files (path, size and SHA-256 of each)

A file is fetched beside the model, below `.cache/narwhal`, which no digest counts; it takes its place once its SHA-256
is right. After `--slice-s` seconds the rest is left to the next call, which goes on at the byte where this one stopped.
"""

import argparse
import hashlib
import http.client
import json
import os
import shutil
import sys
import time
import urllib.parse

CHUNK_BYTES = 4 << 20
TIMEOUT_S = 60
GB = 1e9


class CopyError(Exception):
    """What cannot be copied, in one line."""


def fetch(order, slice_s):
    """One slice of the work: whether it was the last, and how far it is."""
    end = time.monotonic() + slice_s
    folder = order["folder"]
    parts = os.path.join(folder, ".cache", "narwhal")
    os.makedirs(parts, exist_ok=True)
    token = order["token"]
    wanted = [entry for entry in order["files"] if not os.path.exists(mark(parts, entry, token))]
    check_room(folder, parts, wanted)
    connection = http.client.HTTPConnection(order["host"], order["port"], timeout=TIMEOUT_S)
    for entry in wanted:
        if not fetch_file(connection, token, folder, parts, entry, end):
            return {"complete": False, "progress": progress(order, parts)}
    shutil.rmtree(parts)
    if not os.listdir(os.path.dirname(parts)):
        os.rmdir(os.path.dirname(parts))
    return {"complete": True, "progress": "copied"}


def part(parts, entry):
    """Where a file is until all of it is here."""
    path, _, sha256 = entry
    return os.path.join(parts, hashlib.sha256(f"{path}\0{sha256}".encode()).hexdigest() + ".part")


def mark(parts, entry, token):
    """Says that a slice of this very run has put the file in its place."""
    return f"{part(parts, entry)}.{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def have(parts, entry, token):
    """Bytes of a file that are here."""
    if os.path.exists(mark(parts, entry, token)):
        return entry[1]
    try:
        return os.path.getsize(part(parts, entry))
    except OSError:
        return 0


def progress(order, parts):
    """How far it is, in words."""
    here = sum(have(parts, entry, order["token"]) for entry in order["files"])
    return f"copied {here / GB:.1f} of {sum(size for _, size, _ in order['files']) / GB:.1f} GB"


def check_room(folder, parts, wanted):
    """Refuse before anything is copied that will not fit."""
    needed = sum(entry[1] - have(parts, entry, "") for entry in wanted)
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if needed > free:
        raise CopyError(
            f"{needed / GB:.1f} GB are to be copied to {folder}, and {free / GB:.1f} GB are free; make room"
        )


def fetch_file(connection, token, folder, parts, entry, end):
    """Fetch what is missing of a file; whether it is in its place."""
    path, size, sha256 = entry
    if os.path.isabs(path) or ".." in path.split("/"):
        raise CopyError(f"{path} lies outside of the model")
    begun = part(parts, entry)
    digest = hashlib.sha256()
    with open(begun, "a+b") as file:
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
        if not receive(connection, token, path, file, size, digest, end):
            return False
    if digest.hexdigest() != sha256:
        os.unlink(begun)
        raise CopyError(
            f"{path} arrived with another SHA-256; it may be written to where it comes from, run this again"
        )
    place = os.path.join(folder, path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.chmod(begun, 0o644)
    os.replace(begun, place)
    with open(mark(parts, entry, token), "w"):
        return True


def receive(connection, token, path, file, size, digest, end):
    """Append a file's missing bytes; whether all are here before `end`."""
    first = file.tell()
    if first >= size:
        return True
    headers = {"Authorization": f"Bearer {token}", "Range": f"bytes={first}-"}
    connection.request("GET", "/" + urllib.parse.quote(path), headers=headers)
    answer = connection.getresponse()
    if answer.status != 206:
        raise CopyError(f"{path} is refused with {answer.status}; run this again")
    while first < size:
        if time.monotonic() > end:
            connection.close()
            return False
        chunk = answer.read(CHUNK_BYTES)
        if not chunk:
            raise CopyError(f"{path} ends after {first} of {size} bytes; it may be written to where it comes from")
        file.write(chunk)
        digest.update(chunk)
        first += len(chunk)
    answer.read()
    return True


def main(arguments):
    """Print how far it is after this slice; what stops it is the `problem`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("order")
    parser.add_argument("--slice-s", type=float, default=20.0)
    options = parser.parse_args(arguments)
    with open(options.order) as file:
        order = json.load(file)
    try:
        answer = fetch(order, options.slice_s)
    except (OSError, http.client.HTTPException) as error:
        answer = {"complete": True, "problem": f"the copy broke off: {error or type(error).__name__}; run this again"}
    except CopyError as problem:
        answer = {"complete": True, "problem": str(problem)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
