"""In the virtual server: one request to the daemon, by whoever runs this.

Arguments: METHOD TARGET. Standard input: the body. Prints the body of the answer; its status is the
exit code: 0 below 400, else 4 or 5.
"""

import socket
import sys


def main():
    body = sys.stdin.buffer.read()
    line = socket.socket(socket.AF_UNIX)
    line.connect("/run/iodaemon/iod.sock")
    head = f"{sys.argv[1]} {sys.argv[2]} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    line.sendall(head.encode() + body)
    answer = b""
    while data := line.recv(65536):
        answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    sys.stdout.buffer.write(body)
    code = int(head.split()[1]) // 100
    return 0 if code < 4 else code


if __name__ == "__main__":
    sys.exit(main())
