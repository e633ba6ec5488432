"""The virtual server's disk: Debian packages, a venv with this project's dependencies, two users.

Built once and kept outside the tree, keyed by all that goes into it. Needs root and the packages
``NEEDED``. Run as a program it builds, or finds, the image and tells how long that took; 3 is its
status where the packages cannot be had.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("IOD_VM_CACHE", Path.home() / ".cache" / "iodaemon-vm"))
SUITE = os.environ.get("IOD_VM_SUITE", "bookworm")
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
NEEDED = ("mmdebstrap", "e2fsprogs", "qemu-system-x86", "seabios", "gcc", "libc6-dev")
"""Debian packages on the machine that builds and boots it."""

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "libpam-systemd", "util-linux", "procps", "kmod"),
    *("python3", "python3-venv", "gcc", "libc6-dev"),  # README.md's, there is no network
    *("sysstat", "numactl", "fio", "lvm2", "mdadm"),
    "linux-image-cloud-amd64",
)
USERS = {"ann": 1001, "bob": 1002}
UNUSED_S = 86400
"""An image for which nobody asked so long goes when another is built."""
DISK_BYTES = 3 * 2**30
"""Of which about 0.6 GiB are there; the file is sparse."""

UNWANTED_UNITS = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("e2scrub_reap.service", "fstrim.timer", "logrotate.timer", "systemd-pstore.service"),
    *("systemd-timesyncd.service", "systemd-hwdb-update.service", "systemd-binfmt.service"),
    *("systemd-networkd-wait-online.service", "getty@tty1.service", "serial-getty@ttyS0.service"),
    *("sysstat.service", "sysstat-collect.timer", "sysstat-summary.timer"),
    *("mdadm.service", "mdmonitor.service", "mdmonitor-oneshot.timer", "mdcheck_start.timer"),
    *("mdcheck_continue.timer", "lvm2-monitor.service"),
)
"""What nobody looks at in a server that lives for minutes, and costs seconds of its boot."""

AGENT_UNIT = """\
[Unit]
Description=Runs what the test asks for
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/python3 -S /usr/local/sbin/vm-agent
Restart=always
RestartSec=1
KillMode=process
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
"""


class Image(NamedTuple):
    """A kernel and the disk it boots from; neither is ever written to."""

    kernel: Path
    disk: Path


class Unreachable(RuntimeError):
    """Neither Debian's packages nor Python's can be had here."""


def find_or_build():
    """The image of this recipe, and whether it had to be built; old ones of others go."""
    folder = CACHE / f"{SUITE}-{recipe_key()}"
    image = Image(folder / "vmlinuz", folder / "disk.ext4")
    if image.disk.exists():
        os.utime(folder)
        return image, False
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as place:
        build(Path(place))
        shutil.rmtree(Path(place) / "tree")
        shutil.rmtree(Path(place) / "wheels")
        for old in CACHE.glob(f"{SUITE}-*"):
            if time.time() - old.stat().st_mtime > UNUSED_S:
                shutil.rmtree(old)
        os.rename(place, folder)
        Path(place).mkdir()  # what the context is to remove
    return image, True


def recipe_key():
    """Names the recipe: this file, the agent, the versions of what is installed."""
    digest = hashlib.sha256()
    for path in (Path(__file__), HERE / "agent.py", ROOT / "constraints.txt"):
        digest.update(path.read_bytes())
    digest.update(repr(dependencies()).encode())
    return digest.hexdigest()[:16]


def dependencies():
    """What the wheel requires."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def build(place):
    """``place/vmlinuz`` and ``place/disk.ext4``."""
    if missing := [name for name in ("mmdebstrap", "mke2fs") if shutil.which(name) is None]:
        sys.exit(f"{', '.join(missing)}: not found; apt-get install {' '.join(NEEDED)}")
    wheels, tree = place / "wheels", place / "tree"
    fetch_wheels(wheels)
    unpack_debian(tree)
    furnish(tree)
    install_wheels(tree, wheels)
    [kernel] = tree.glob("boot/vmlinuz-*")
    shutil.copy(kernel, place / "vmlinuz")
    disk = place / "disk.ext4"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-d", tree, disk)


def unpack_debian(tree):
    """What it mounts is mounted for itself alone, so that nothing outlives one that is killed."""
    mirror = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", quiet=True
    ).split()
    download(
        *("unshare", "--mount", "--propagation", "private"),
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
        "--aptopt=Apt::Install-Recommends false",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "locale", "doc")),
        *(f"--include={','.join(PACKAGES)}", SUITE, tree),
        next((each for each in mirror if "security" not in each), "http://deb.debian.org/debian/"),
    )


def furnish(tree):
    """Names, users, the agent, and no more services than needed."""
    (tree / "etc/hostname").write_text("vmnode\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost vmnode\n")
    (tree / "etc/fstab").write_text("/dev/nvme0n1 / ext4 rw,noatime 0 1\n")
    for path in tree.glob("boot/initrd.img-*"):
        path.unlink()  # NVMe and ext4 are in this kernel: it needs none
    units = tree / "etc/systemd/system"
    for unit in UNWANTED_UNITS:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    shutil.copy(HERE / "agent.py", tree / "usr/local/sbin/vm-agent")
    (units / "vm-agent.service").write_text(AGENT_UNIT)
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "vm-agent.service").symlink_to("../vm-agent.service")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    for name, uid in USERS.items():
        run("useradd", "--root", tree, "-m", "-u", str(uid), "-U", "-s", "/bin/bash", name)


def fetch_wheels(wheels, *wanted):
    """The dependencies, or what else is wanted, as the guest's Python takes them."""
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    download(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON_OF[SUITE]),
        *(word for name in platforms for word in ("--platform", name)),
        *("--constraint", ROOT / "constraints.txt", "--dest", wheels),
        *(wanted or dependencies()),
    )


def install_wheels(tree, wheels):
    """A venv that only lacks the project itself."""
    inside = tree / "root/wheels"
    shutil.copytree(wheels, inside)
    run("chroot", tree, "python3", "-m", "venv", "/opt/iodaemon")
    run(
        *("chroot", tree, "env", "-i", "PATH=/usr/bin:/bin", "HOME=/root"),
        *("/opt/iodaemon/bin/python", "-m", "pip", "install", "--quiet", "--no-index"),
        *("--disable-pip-version-check", "--find-links", "/root/wheels", *dependencies()),
    )
    shutil.rmtree(inside)


def download(*command):
    """As ``run``, of what asks other machines."""
    try:
        run(*command)
    except RuntimeError as error:
        raise Unreachable(*error.args) from None


def run(*command, quiet=False):
    """Its output; ends with what it said where it fails."""
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd="/"
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    if ended.stdout and not quiet:
        print(ended.stdout, end="")
    return ended.stdout


if __name__ == "__main__":
    began_s = time.monotonic()
    try:
        print(find_or_build()[0].disk, f"{time.monotonic() - began_s:.1f} s")
    except Unreachable as error:
        print(*error.args, file=sys.stderr)
        sys.exit(3)
