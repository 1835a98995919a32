#!/usr/bin/env python3
"""What a host is: printed as one JSON object. Standard library only, Python 3.8 or newer, no root, changes nothing.

facts.py [--python NAME] [--path FOLDER]...   the fleet's Python; folders whose disk matters
"""

import argparse
import ctypes
import json
import os
import platform
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import time

TIMEOUT_S = 60
GPU_QUERY = "index,name,uuid,memory.total,driver_version"
LISTENING = "0A"
STA_UNSYNC = 0x40
ASK_PYTHON = """
import json, sys
try:
    import ensurepip, venv
    ready = True
except ImportError:
    ready = False
print(json.dumps({"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "venv": ready}))
"""


def facts(python, paths):
    """Everything."""
    gpus, problem = find_gpus()
    return {
        "hostname": socket.gethostname(),
        "os": os_release(read("/etc/os-release")),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "boot_id": read("/proc/sys/kernel/random/boot_id").strip(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "systemd": first_number(said("systemctl", "--version")),
        "python": ask_python(python),
        "gpus": gpus,
        "gpu_problem": problem,
        "interfaces": interfaces(said("ip", "-json", "address") or "[]", speed_mbps),
        "listening": listening(read("/proc/net/tcp"), read("/proc/net/tcp6")),
        "disks": {path: disk(path) for path in paths},
        "limits": {name: list(resource.getrlimit(number)) for name, number in LIMITS.items()},
        "clock": clock(),
        "tools": {name: shutil.which(name) for name in ("podman", "docker", "iperf3", "ib_write_bw", "nft")},
    }


LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}


# --- the system


def os_release(text):
    """Id, version and name of the distribution."""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {key: value.strip().strip("\"'") for key, value in pairs.items()}
    return {"id": values.get("ID"), "version": values.get("VERSION_ID"), "name": values.get("PRETTY_NAME")}


def ask_python(name):
    """What a Python says of itself; null when there is none of that name."""
    answer = said(name, "-c", ASK_PYTHON)
    return json.loads(answer) if answer else None


def disk(path):
    """Free and total bytes of the disk that a folder is on, or will be on: its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return {"free_bytes": found.f_bavail * found.f_frsize, "total_bytes": found.f_blocks * found.f_frsize}


class Timex(ctypes.Structure):
    """The head of the kernel's struct timex, with room for the rest of it."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def clock():
    """The time, and whether somebody keeps the kernel's clock (NTP, PTP), with the largest error that they admit."""
    found = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found))
    kept = state >= 0 and not found.status & STA_UNSYNC
    return {"unix_s": time.time(), "kept": kept, "max_error_s": found.maxerror / 1e6 if kept else None}


# --- GPUs


def find_gpus():
    """The GPUs of this host, and why they could not be read; neither when no driver's tool is there."""
    if shutil.which("nvidia-smi"):
        argv = ["nvidia-smi", "--query-gpu=" + GPU_QUERY, "--format=csv,noheader,nounits"]
        return tell_gpus(argv, nvidia_gpus)
    if shutil.which("rocminfo"):
        driver = read("/sys/module/amdgpu/version").strip() or platform.release()
        return tell_gpus(["rocminfo"], lambda text: amd_gpus(text, driver))
    return [], None


def tell_gpus(argv, parse):
    """GPUs as a tool tells them."""
    try:
        done = run(argv)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{argv[0]}: {error}"
    if done.returncode:
        words = (done.stdout.strip() or done.stderr.strip() or "it said nothing").splitlines()
        return [], f"{argv[0]}: {words[-1]}"
    try:
        return parse(done.stdout), None
    except ValueError as error:
        return [], f"{argv[0]}: {error}"


def nvidia_gpus(text):
    """GPUs of nvidia-smi's list, one a line, in order of GPU_QUERY. A product's name may hold a comma."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 5:
            raise ValueError(f"cannot read the line {line!r}")
        index, *name, uuid, memory, driver = cells
        gpu = {"index": int(index), "product": ", ".join(name), "uuid": uuid, "driver": driver}
        found.append(dict(gpu, memory_mib=int(memory) if memory.isdigit() else None))
    return found


def amd_gpus(text, driver):
    """GPUs of rocminfo's agents, in its order."""
    found = []
    for agent in re.split(r"^\*+ *\nAgent \d+ *\n\*+ *$", text, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^  ([A-Z][\w ]*?): +(\S.*?) *$", agent, flags=re.MULTILINE))
        if fields.get("Device Type") != "GPU":
            continue
        pools = re.findall(r"Segment: +GLOBAL.*\n +Size: +(\d+)\(", agent)
        memory = max(map(int, pools)) // 1024 if pools else None
        product = fields.get("Marketing Name") or fields.get("Name")
        gpu = {"index": len(found), "product": product, "uuid": fields.get("Uuid"), "driver": driver}
        found.append(dict(gpu, memory_mib=memory))
    return found


# --- the network


def interfaces(text, speed):
    """Interfaces of `ip -json address`."""
    return [
        {
            "name": link["ifname"],
            "up": "UP" in link.get("flags", []),
            "mtu": link.get("mtu"),
            "speed_mbps": speed(link["ifname"]),
            "addresses": [entry["local"] for entry in link.get("addr_info", []) if "local" in entry],
        }
        for link in json.loads(text)
        if "ifname" in link
    ]


def speed_mbps(name):
    """Speed of a link as its driver tells it; null: it does not."""
    text = read(f"/sys/class/net/{name}/speed").strip()
    return int(text) if text.isdigit() else None


def listening(*tables):
    """Listening TCP sockets, from /proc/net/tcp and tcp6: address, port, owner."""
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    found = {(address(row[1]), port(row[1]), int(row[7])) for row in rows if row[3] == LISTENING}
    return [{"address": a, "port": p, "uid": uid, "user": user(uid)} for a, p, uid in sorted(found, key=repr)]


def port(text):
    """The port of `0100007F:1F40`."""
    return int(text.rpartition(":")[2], 16)


def address(text):
    """The address of `0100007F:1F40`: words of 32 bits, each in the host's own order."""
    digits = text.rpartition(":")[0]
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    data = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def user(uid):
    """Name of a user; null when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


# --- means


def read(path):
    """Text of a file; empty when it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def run(argv):
    """A program's end, in plain English."""
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )


def said(*argv):
    """What a program prints; empty when it is missing or fails."""
    try:
        done = run(argv)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def first_number(text):
    """The first number in a text."""
    found = re.search(r"\d+", text)
    return int(found.group()) if found else None


def main(arguments):
    """Print the facts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default="python3")
    parser.add_argument("--path", action="append", default=[])
    options = parser.parse_args(arguments)
    print(json.dumps(facts(options.python, options.path)))


if __name__ == "__main__":
    main(sys.argv[1:])
