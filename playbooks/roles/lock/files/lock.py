#!/usr/bin/env python3
"""The lock of a host: one operator works on it at a time. Standard library only.

lock.py take FILE OWNER WHAT HOST   exit code 1 and a line when it is somebody else's
lock.py seize FILE OWNER WHAT HOST  take it over from whoever has it
lock.py look FILE OWNER WHAT HOST   as take does, and change nothing
lock.py release FILE OWNER          nothing, when it is somebody else's
"""

import json
import os
import sys
import time

WORDS = (
    "{owner} works on {host} since {since} ({what}); ask them, or take it over with -e narwhal_take_lock=true "
    "when you know that they are gone"
)
NOBODY = {"owner": None, "since": "unknown", "what": "unknown"}


def take(verb, path, owner, what, host):
    """Take the lock, where nobody else has it."""
    os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    mine = f"{path}.{os.getpid()}"
    with open(mine, "w") as file:
        file.write(json.dumps({"owner": owner, "since": since, "what": what}) + "\n")
    try:
        if verb == "seize":
            os.replace(mine, path)
        else:
            os.link(mine, path)  # two who come at once: one of them fails here
    except FileExistsError:
        refuse(path, owner, host)
    finally:
        if os.path.exists(mine):
            os.remove(mine)


def refuse(path, owner, host):
    """End with a line, unless the lock is the owner's already or nobody's any more."""
    found = held(path)
    if found is not None and found["owner"] != owner:
        sys.exit(WORDS.format(**found, host=host))


def held(path):
    """Who has the lock; None: nobody."""
    try:
        with open(path) as file:
            return NOBODY | json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:  # a disk that was full
        return NOBODY


def main(verb, path, owner, *words):
    """What is asked for."""
    if verb == "look":
        refuse(path, owner, words[1])
    elif verb != "release":
        take(verb, path, owner, *words)
    elif (held(path) or NOBODY)["owner"] == owner:
        os.remove(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
