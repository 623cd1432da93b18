# The executable `neo` of the tests; the lines before, which name the Python and SOCKET, are its own.
import os
import signal
import socket
import sys


def main() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)  # type: ignore[name-defined]  # noqa: F821
        variables = [f"{name}={value}" for name, value in os.environ.items()]
        parts = [os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:], *variables]
        message = b"\0".join(map(os.fsencode, parts))
        socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(message)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        answer = connection.recv(1)
    code = answer[0] if answer else 70
    if code > 128:
        signal.signal(code - 128, signal.SIG_DFL)
        os.kill(os.getpid(), code - 128)
    return code


sys.exit(main())
