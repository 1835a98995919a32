#!/usr/bin/env python3
"""Whether a revision is as its wheels were: printed as one JSON object. Standard library only, changes nothing.

installed.py FOLDER   the revision's folder, or a link to it
"""

import base64
import csv
import glob
import hashlib
import json
import os
import sys

MOST_PROBLEMS = 5


def check(folder):
    """The revision, its packages, and what differs from their records."""
    folder = os.path.realpath(folder)
    packages, problems = [], []
    for record in sorted(glob.glob(os.path.join(folder, "lib", "python3*", "site-packages", "*.dist-info", "RECORD"))):
        packages.append(os.path.basename(os.path.dirname(record))[: -len(".dist-info")])
        problems += differences(record)
    if not packages:
        problems.append("no package is installed")
    return {"folder": folder, "revision": revision(folder), "packages": packages, "problems": problems[:MOST_PROBLEMS]}


def revision(folder):
    """What the folder says that it is; null: it was never finished."""
    try:
        with open(os.path.join(folder, "REVISION")) as file:
            return file.read().strip()
    except OSError:
        return None


def differences(record):
    """Files of a wheel that are not as it brought them. What pip wrote itself has no digest in the record."""
    base = os.path.dirname(os.path.dirname(record))
    with open(record, newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 3 and row[1]]
    for path, wanted, _ in rows:
        name, _, value = wanted.partition("=")
        place = os.path.join(base, path)
        try:
            with open(place, "rb") as file:
                digest = hashlib.new(name, file.read()).digest()
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value:
            yield f"{path} was changed"


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
