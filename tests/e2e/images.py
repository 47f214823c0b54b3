"""Images of members as text: each block of 4 KiB that is not zero, all together compressed, in lines.

`pack` made what is in `images/`; a test that opens such a file shows that what a former Lamina wrote is still read.
"""

import base64
import lzma
import struct
import textwrap

BLOCK = 4096
_HEAD = struct.Struct("<16sQ")


def pack(images):
    """The text of these files."""
    parts = []
    for image in sorted(images):
        bytes_ = image.read_bytes()
        parts.append(_HEAD.pack(image.name.encode(), len(bytes_)))
        for number in range(len(bytes_) // BLOCK):
            block = bytes_[number * BLOCK:(number + 1) * BLOCK]
            if any(block):
                parts.append(_HEAD.pack(b"", number) + block)
    text = base64.b64encode(lzma.compress(b"".join(parts), preset=9)).decode()
    return "\n".join(textwrap.wrap(text, 120)) + "\n"


def unpack(text, folder):
    """Makes the files of `pack` in `folder`."""
    parts, at, file = lzma.decompress(base64.b64decode(text)), 0, None
    while at < len(parts):
        name, number = _HEAD.unpack_from(parts, at)
        at += _HEAD.size
        if name := name.rstrip(b"\0").decode():
            if file:
                file.close()
            file = open(folder / name, "wb")
            file.truncate(number)
            continue
        file.seek(number * BLOCK)
        file.write(parts[at:at + BLOCK])
        at += BLOCK
    if file:
        file.close()
