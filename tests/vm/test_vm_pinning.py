"""Real sockets and memory nodes: where jobs run, and where their memory is."""

import json

GATE = "/tmp/gate-of-all"
PROGRAM = """
import json, os, re
data = bytearray(48 << 20)
for i in range(0, len(data), 4096): data[i] = 1
maps = [line for line in open("/proc/self/numa_maps") if "anon=" in line]
largest = max(maps, key=lambda line: int(re.search(r"anon=(\\d+)", line)[1]))
pages = {int(n): int(c) for n, c in re.findall(r" N(\\d+)=(\\d+)", largest)}
policy = re.search(r"[a-z]+( \\(many\\))?:\\S*|default", largest)[0]
ran_on = int(open("/proc/self/stat").read().rsplit(")")[1].split()[36])
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), "pages": pages,
                  "policy": policy, "ran_on": ran_on}))
"""


def test_each_job_is_on_the_cpu_and_the_memory_of_its_socket(service):
    service.machine.put("/usr/local/lib/where.py", PROGRAM.encode())
    script = f"python3 -I -S /usr/local/lib/where.py; while [ ! -e {GATE} ]; do sleep 0.2; done"
    jobs = [service.submit(script, user=user) for user in ("ann", "bob", "ann", "bob")]
    service.machine.sh(f"touch {GATE}")
    shown = [service.await_state(job, "COMPLETED", limit_s=200) for job in jobs]

    assert {0, 1, 2, 3} == {each["socket"] for each in shown}
    for job, each in zip(jobs, shown, strict=True):
        said = json.loads(service.output(job, user=each["user"]))
        socket = each["socket"]
        assert [socket] == said["cpus"]
        assert socket == said["ran_on"]
        assert said["policy"] in (f"prefer (many):{socket}", f"prefer:{socket}")
        assert said["pages"].get(str(socket), 0) > 0.95 * sum(said["pages"].values())
