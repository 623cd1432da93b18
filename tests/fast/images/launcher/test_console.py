"""The serial log has whole lines, and a prompt is shown too."""

import os

from launcher.console import pump


def test_pieces_become_lines_and_a_prompt_is_not_kept_back():
    guest, source = os.pipe()
    guest, source = source, guest
    shown, target = os.pipe()
    output = os.fdopen(source, "rb", buffering=0)
    thread = pump(output, target)
    for piece in (b"hel", b"lo\nwor", b"ld\nlogin: "):
        os.write(guest, piece)
    content = b""
    while not content.endswith(b"login: "):
        content += os.read(shown, 100)
    os.write(guest, b"end")
    os.close(guest)
    thread.join(60)
    output.close()
    os.close(target)
    while piece := os.read(shown, 100):
        content += piece
    os.close(shown)
    assert content == b"hello\nworld\nlogin: end"
