"""A virtual server with four sockets: boots, runs commands, is rebooted, leaves nothing behind.

The disk is written to in a file that has no name; the process dies with the test that started it.
"""

import base64
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SOCKETS = 4
MEMORY_MIB = int(os.environ.get("IOD_VM_NODE_MIB", "512"))
"""Of each NUMA node."""
SPARE_BYTES = 1 << 30
"""Of the second disk, /dev/vda; it is empty. As swap it is filled faster than it is written."""
ACCELERATION = os.environ.get("IOD_VM_ACCEL", "tcg,thread=multi,tb-size=256")
"""Where /dev/kvm is that of a virtual machine, a stock kernel may hang in it: not by default."""
PROCESSOR = "max,cx16=off"
"""QEMU 7.2 emulates cmpxchg16b without a lock wrongly: it spoils the flags, and Linux 6.12, which
uses it in its allocator, panics sooner or later. Without cx16 it does not use it."""
BOOT_WITHIN_S = 180.0
KERNEL_WORDS = (
    "root=/dev/nvme0n1 rw rootfstype=ext4 console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off "
    "nokaslr random.trust_cpu=on audit=0 selinux=0 apparmor=0 nowatchdog tsc=nowatchdog "
    "systemd.show_status=0 psi=1"
)


class Ended(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    err: str


class Failed(AssertionError):
    """A command did not end with 0, or the machine does not answer."""


class Machine:
    """One virtual server, from its first boot to ``close``; a context manager."""

    def __init__(self, image):
        self._place = Path(tempfile.mkdtemp(prefix="iod-vm-"))
        self.console = self._place / "console"
        self._line = None
        self.boot_id = ""
        self.boot_s = 0.0
        """From power on to the agent's first word."""
        try:
            (self._place / "spare").touch()
            os.truncate(self._place / "spare", SPARE_BYTES)
            with (
                _listen(self._place / "agent") as agent,
                _listen(self._place / "monitor") as monitor,
            ):
                command = qemu_command(image, self._place)
                self._began_s = time.monotonic()
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
                self._agent = self._await(agent)
                self._monitor = self._await(monitor)
            self._line = self._agent.makefile("rb")
            self._greet_monitor()
            self._await_boot()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- commands --------------------------------------------------------------------------------

    def run(self, *argv, user="root", stdin=b"", limit_s=120.0, check=True):
        """Run one command and wait for its end.

        Raises:
            Failed: it did not end with 0 (unless ``check`` is False).
        """
        ended = self._order(argv, user, stdin, limit_s)
        if check and ended.code != 0:
            raise Failed(
                f"{user}: {shlex.join(map(str, argv))}: {ended.code}\n{ended.out}{ended.err}"
            )
        return ended

    def program(self, text, *argv, user="root", stdin=b"", limit_s=120.0):
        """Run the text of a Python program with these arguments, at once: nothing has to begin."""
        return self._order(argv, user, stdin, limit_s, program=text)

    def _order(self, argv, user, stdin, limit_s, **more):
        self._agent.settimeout(limit_s + 60)
        data = base64.b64encode(stdin).decode()
        order = {"argv": list(map(str, argv)), "user": user, "input": data, "limit_s": limit_s}
        self._agent.sendall(json.dumps(order | more).encode() + b"\n")
        answer = self._hear()
        if "code" not in answer:
            raise Failed(f"{user}: {shlex.join(map(str, argv))}: the agent died and began anew")
        out, err = (
            base64.b64decode(answer[name]).decode(errors="replace") for name in ("out", "err")
        )
        return Ended(answer["code"], out, err)

    def sh(self, script, **options):
        """What a shell script prints, without the last newline; options as for ``run``."""
        return self.run("bash", "-ec", script, **options).out.rstrip("\n")

    def put(self, path, data, *, mode="0644"):
        """Write a file, and the folders above it."""
        self.run("install", "-D", "-m", mode, "/dev/stdin", path, stdin=data)

    def until(self, script, *, what, limit_s=60.0, user="root"):
        """Wait inside until the script is true."""
        loop = (
            f"while ((SECONDS < {int(limit_s)})); do ( {script} ) && exit; sleep 0.2; done; exit 1"
        )
        ended = self.run("bash", "-c", loop, user=user, limit_s=limit_s + 60, check=False)
        if ended.code != 0:
            raise Failed(f"{what} did not happen within {limit_s:g} s:\n{ended.out}{ended.err}")

    # -- life --------------------------------------------------------------------------------------

    def reboot(self):
        """In order: systemd stops everything first."""
        before = self.boot_id
        self._began_s = time.monotonic()
        self.run("systemctl", "reboot")
        self._await_boot(after=before)

    def cut_power(self):
        """What had not reached the disk is gone."""
        before = self.boot_id
        self._began_s = time.monotonic()
        self._monitor.sendall(b'{"execute": "system_reset"}\n')
        self._await_boot(after=before)

    def close(self):
        """End it, and remove all that it had."""
        process = getattr(self, "_process", None)
        if process is not None:
            process.kill()
            process.wait()
        for each in (self._line, getattr(self, "_agent", None), getattr(self, "_monitor", None)):
            if each is not None:
                each.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _await(self, listener):
        listener.settimeout(30)
        connection, _ = listener.accept()
        return connection

    def _greet_monitor(self):
        self._monitor.sendall(b'{"execute": "qmp_capabilities"}\n')

    def _await_boot(self, after=""):
        """Hear the agent's first word of another boot; answers to older orders are passed over."""
        self._agent.settimeout(BOOT_WITHIN_S)
        hello = {}
        while hello.get("boot_id", after) == after:
            hello = self._hear()
        self.boot_id = hello["boot_id"]
        self.boot_s = time.monotonic() - self._began_s
        self.run("systemctl", "is-system-running", "--wait", check=False)

    def _hear(self):
        try:
            line = self._line.readline()
        except TimeoutError:
            line = b""
        if not line.endswith(b"\n"):
            with contextlib.suppress(OSError):
                tail = self.console.read_text(errors="replace")[-2000:]
                raise Failed(f"the virtual machine does not answer; its console:\n{tail}")
            raise Failed("the virtual machine does not answer")
        return json.loads(line)


def _listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def qemu_command(image, place):
    """Four sockets of one core, each with its own memory node; no network."""
    nodes = []
    for node in range(SOCKETS):
        nodes += ["-object", f"memory-backend-ram,id=m{node},size={MEMORY_MIB}M"]
        nodes += ["-numa", f"node,nodeid={node},memdev=m{node},cpus={node}"]
    pairs = [(a, b) for a in range(SOCKETS) for b in range(SOCKETS) if a != b]
    for one, other in pairs:
        nodes += ["-numa", f"dist,src={one},dst={other},val=20"]
    return [
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults"),
        *("-machine", "q35", "-accel", ACCELERATION, "-cpu", PROCESSOR),
        *("-smp", f"{SOCKETS},sockets={SOCKETS},cores=1,threads=1"),
        *("-m", str(SOCKETS * MEMORY_MIB), *nodes),
        *("-kernel", str(image.kernel), "-append", KERNEL_WORDS),
        *("-drive", f"file={image.disk},format=raw,snapshot=on,cache=unsafe,if=none,id=root"),
        *("-device", "nvme,drive=root,serial=root"),
        *("-drive", f"file={place}/spare,format=raw,cache=unsafe,if=none,id=spare"),
        *("-device", "virtio-blk-pci,drive=spare,serial=spare"),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={place}/agent"),
        *("-device", "virtserialport,chardev=agent,name=iod.agent"),
        *("-chardev", f"socket,id=qmp,path={place}/monitor", "-mon", "chardev=qmp,mode=control"),
        *("-device", "virtio-rng-pci", "-nic", "none", "-vga", "none", "-display", "none"),
        *("-serial", f"file:{place}/console"),
    ]
