"""The MCP server as an agent CLI sees it: a pipe from its stdin and stdout to the host's private socket.

Started as a script with `python -I -S`, not as a module: importing the package would take longer than everything done
here. It needs only the socket's path and the token, and both are in the environment.
"""

import _thread
import os
import sys

try:
    import _socket as socket  # The basis of `socket`, which imports so much that it doubles the start time.
except ImportError:
    import socket  # type: ignore[no-redef]

SOCKET_VARIABLE = "REMOTECLAW_GATEWAY_SOCKET"
TOKEN_VARIABLE = "REMOTECLAW_GATEWAY_TOKEN"
# Set if the CLI takes JSON in a text as structured content, which must then be an object.
OBJECTS_VARIABLE = "REMOTECLAW_GATEWAY_OBJECTS"
OBJECTS_WORD = " objects"  # Sent after the token.
BLOCK = 1 << 16


def main() -> int:
    """Connect, send the token, and pass bytes on until one side is done. Returns the exit code."""
    path, token = os.environ.get(SOCKET_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if not path or not token:
        return _complain(f"{SOCKET_VARIABLE} and {TOKEN_VARIABLE} must be set; the host does that", 2)
    host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        host.connect(path)
        host.sendall((token + (OBJECTS_WORD if os.environ.get(OBJECTS_VARIABLE) else "") + "\n").encode())
    except OSError as error:
        return _complain(f"the host cannot be reached: {error.strerror}", 1)
    finished: list[bool] = []
    # One thread per direction, so that neither side can make the other wait.
    _thread.start_new_thread(_pump_stdin, (host, finished))
    try:
        while data := host.recv(BLOCK):
            _write_all(data)
    except (OSError, KeyboardInterrupt):
        return 1
    return 0 if finished else _complain("the host has closed the connection", 1)


def _pump_stdin(host: "socket.socket", finished: list[bool]) -> None:
    try:
        while data := os.read(0, BLOCK):
            host.sendall(data)
        finished.append(True)
    except OSError:
        pass  # The host is gone while the CLI is still talking: the other thread reports that.
    try:
        host.shutdown(socket.SHUT_WR)  # The host answers by closing, which ends the other direction.
    except OSError:
        pass


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _complain(message: str, exit_code: int) -> int:
    sys.stderr.write(f"remoteclaw_sync gateway: {message}\n")
    return exit_code


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)  # The other thread may be reading stdin, and an ordinary exit could wait for it.
