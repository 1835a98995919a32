#!/usr/bin/env python3
"""One digest for a model's directory, in slices: printed as one JSON object. Standard library only, no root.

digest.py FOLDER [--slice-s 20] [--cache FILE] [--manifest]

The digest is `narwhal engine digest FOLDER`: SHA-256 over path, size and SHA-256 of each file in order of the paths,
without READMEs and tools' caches. Files are hashed in parallel and remembered in the cache by size and times, so a
second call goes on where the first one stopped. After `--slice-s` seconds no further file is begun, and `complete` is
false.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import sys
import tempfile
import time

LEFT_OUT = (".cache", ".git", "__pycache__")
CHUNK_BYTES = 8 << 20
WORKERS = min(8, os.cpu_count() or 1)
GB = 1e9


def files(folder):
    """Relative path and stat of every file that counts, in order of the paths."""
    found = []
    for place, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            if not name.upper().startswith("README"):
                path = os.path.join(place, name)
                found.append((os.path.relpath(path, folder), os.stat(path)))
    return sorted(found, key=lambda entry: entry[0])


def fail(error):
    """A folder that cannot be listed is no empty folder."""
    raise error


def life(stat):
    """What changes when a file does: the cache's word for it holds only as long as this does."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def hash_file(path):
    """SHA-256 of a file. hashlib releases the interpreter while it works, so threads do."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def hash_slice(folder, found, known, slice_s):
    """Hash what is not known yet into `known`; begin nothing after `slice_s`."""
    end = time.monotonic() + slice_s
    missing = [(path, stat) for path, stat in found if known.get(path, {}).get("life") != life(stat)]

    def work(entry):
        path, stat = entry
        if time.monotonic() < end:
            return path, {"life": life(stat), "sha256": hash_file(os.path.join(folder, path))}
        return None

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        known.update(filter(None, pool.map(work, missing)))


def tree(found, known):
    """The digest of the directory."""
    total = hashlib.sha256()
    for path, stat in found:
        total.update(f"{path}\0{stat.st_size}\0{known[path]['sha256']}\n".encode())
    return "sha256:" + total.hexdigest()


def digest(folder, cache, slice_s, manifest=False):
    """One slice of the work; `digest` is null until the last. `manifest`: path, size and SHA-256 of each file, too."""
    if not os.path.isdir(folder):
        absent = {"exists": False, "complete": True, "digest": None, "files": 0, "bytes": 0, "progress": "no directory"}
        return {**absent, "manifest": []} if manifest else absent
    found = files(folder)
    known = load(cache)
    hash_slice(folder, found, known, slice_s)
    known = {path: known[path] for path, stat in found if known.get(path, {}).get("life") == life(stat)}
    if cache:
        save(cache, known)
    total = sum(stat.st_size for _, stat in found)
    done = sum(stat.st_size for path, stat in found if path in known)
    complete = len(known) == len(found)
    answer = {
        "exists": True,
        "complete": complete,
        "digest": tree(found, known) if complete else None,
        "files": len(found),
        "bytes": total,
        "progress": f"hashed {done / GB:.1f} of {total / GB:.1f} GB",
    }
    if manifest and complete:
        answer["manifest"] = [[path, stat.st_size, known[path]["sha256"]] for path, stat in found]
    return answer


def load(cache):
    """What was hashed before; nothing when the cache is missing or no longer readable as one."""
    try:
        with open(cache) as file:
            return json.load(file)
    except (OSError, TypeError, ValueError):
        return {}


def save(cache, known):
    """Write the cache in one step."""
    os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(cache), delete=False) as file:
        json.dump(known, file)
    os.replace(file.name, cache)


def cache_of(folder):
    """Where the digests of a directory's files are remembered, below the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:16]
    return os.path.join(base, "narwhal", f"model-{name}.json")


def main(arguments):
    """Print what is known after this slice; a file that cannot be read is the `problem`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--slice-s", type=float, default=20.0)
    parser.add_argument("--cache", help="file; '' for none; default: below ~/.cache/narwhal")
    parser.add_argument("--manifest", action="store_true", help="print path, size and SHA-256 of each file, too")
    options = parser.parse_args(arguments)
    cache = cache_of(options.folder) if options.cache is None else options.cache
    try:
        answer = digest(options.folder, cache, options.slice_s, options.manifest)
    except OSError as error:
        answer = {"exists": True, "complete": True, "digest": None, "files": 0, "bytes": 0}
        answer["problem"] = f"{error.filename}: {error.strerror}"
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
