"""The hierarchy files of the demo: that of examples/figure11.toml on small disks, and its later states."""

# The disk of one virtual machine. Trying a passphrase takes less memory than usual (kdf-memory): it is a demo.
FIGURE = """\
[hierarchy]
name = "vm1"

[device]
left-disk    = { type = "file", path = "left.img", size = "256MiB" }
right-disk   = { type = "file", path = "right.img", size = "256MiB" }

left-secret  = { type = "crypt", over = "left-disk", key-file = "vm1.key", kdf-memory = "32MiB" }
right-secret = { type = "crypt", over = "right-disk", key-file = "vm1.key", kdf-memory = "32MiB" }

left-parts   = { type = "partition", over = "left-secret", partitions = [{ name = "data", size = "224MiB" }] }
right-parts  = { type = "partition", over = "right-secret", partitions = [{ name = "data", size = "224MiB" }] }
left         = { type = "view", over = "left-parts", name = "data" }
right        = { type = "view", over = "right-parts", name = "data" }

striped      = { type = "stripe", over = ["left", "right"] }
vm1          = { type = "snapshot", over = "striped" }

[export.vm1]
device = "vm1"
vhost-user = "vm1.sock"
nbd = "unix:nbd.sock"
"""

# Of each disk a copy: that of the left one is on another host, and there is a spare for it.
MIRRORS = """
left-mirror  = { type = "mirror", over = ["left-disk", "left-far", "left-spare"], spares = 1, leg-timeout = "1s", limit = "32MiB" }
left-far     = { type = "nbd", address = "unix:far.sock", timeout = "1s", reconnect = "500ms" }
left-spare   = { type = "file", path = "spare.img", size = "260MiB" }
right-mirror = { type = "mirror", over = ["right-disk", "right-copy"], limit = "32MiB" }
right-copy   = { type = "file", path = "right-copy.img", size = "260MiB" }
"""
MIRRORED = (
    FIGURE.replace('over = "left-disk"', 'over = "left-mirror"').replace('over = "right-disk"', 'over = "right-mirror"')
    .replace("\nleft-secret", f"{MIRRORS}\nleft-secret", 1)
)

# The disk of another host.
FAR = """\
[device.disk]
type = "file"
path = "far.img"
size = "260MiB"

[export.disk]
device = "disk"
nbd = "unix:far.sock"
"""

# A daemon whose only device is the export of the first one: an NBD client that reconnects.
FRONT = """\
[device.remote]
type = "nbd"
address = "unix:nbd.sock"
export = "vm1"

[export.front]
device = "remote"
nbd = "unix:front.sock"
"""
