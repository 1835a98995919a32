#!/usr/bin/env python3
"""Makes a revision out of a bundle: an environment with Narwhal's wheels, REVISION last. Standard library only.

install.py BUNDLE FOLDER REVISION [engine]   run by the Python that the wheels are for

What lies in FOLDER is removed, and the bundle afterwards: with `engine` only one that brings no engine.
"""

import compileall
import configparser
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import venv
import zipfile

PROGRAM = """#!{python}
import sys
from {module} import {name}
sys.exit({function}())
"""
NOT_COMPILED = re.compile("/pygments/(lexers|styles)/")
"""A third of all that is installed, of which next to nothing is ever read."""


def install(bundle, folder, revision, wanted=""):
    """Make the environment and fill it."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    packages = os.path.join(folder, "lib", "python{}.{}".format(*sys.version_info), "site-packages")
    with tarfile.open(bundle) as archive:
        for path, content in wheels(archive):
            unpack(path, content, packages, os.path.join(folder, "bin"))
        still_wanted = wanted == "engine" and "requirements-engine.txt" in archive.getnames()
    compileall.compile_dir(packages, quiet=2, rx=NOT_COMPILED, workers=0)
    with open(os.path.join(folder, "REVISION"), "w") as file:
        file.write(revision + "\n")
    if not still_wanted:
        os.remove(bundle)


def wheels(archive):
    """Path and content of each wheel that requirements.txt names by its hash."""
    wanted = set(re.findall("--hash=(sha256:[0-9a-f]{64})", archive.extractfile("requirements.txt").read().decode()))
    for path, digest in json.load(archive.extractfile("bundle.json"))["files"].items():
        if digest in wanted and path.endswith(".whl"):
            content = archive.extractfile(path).read()
            if "sha256:" + hashlib.sha256(content).hexdigest() != digest:
                sys.exit(path + " of the bundle is not what bundle.json says; package it again")
            wanted.remove(digest)
            yield path, content
    if wanted:
        sys.exit("the bundle lacks a wheel of its requirements.txt: " + min(wanted))


def unpack(path, content, packages, programs):
    """What pip does of a wheel that has nothing but packages and programs to call."""
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        names = wheel.namelist()
        if any(name.partition("/")[0].endswith(".data") for name in names):
            sys.exit(path + " has files for elsewhere than site-packages, which only pip knows to install")
        wheel.extractall(packages)  # noqa: S202 - its digest was approved
        for name in names:
            if name.count("/") == 1 and name.endswith(".dist-info/entry_points.txt"):
                make_programs(wheel.read(name).decode(), programs)


def make_programs(text, folder):
    """Write the programs that a wheel declares."""
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str
    points.read_string(text)
    for program, target in points.items("console_scripts") if points.has_section("console_scripts") else ():
        module, _, function = target.partition("[")[0].strip().partition(":")
        path = os.path.join(folder, program)
        with open(path, "w") as file:
            python, name = os.path.join(folder, "python"), function.partition(".")[0]
            file.write(PROGRAM.format(python=python, module=module, name=name, function=function))
        os.chmod(path, 0o755)  # noqa: S103 - a program


if __name__ == "__main__":
    os.umask(0o022)
    install(*sys.argv[1:])
