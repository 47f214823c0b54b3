"""File systems of this machine's kernel on an NBD export: nbdfuse, a loop device, a mount. Needs root."""

import contextlib

from .process import run, wait_until


def _is_left(fuse, folder):
    """On a busy machine others look at a new block device for seconds, and the file below it is in use for as long."""
    run("fusermount3", "-u", folder, check=False)
    return not fuse.running()


@contextlib.contextmanager
def attached(rig, uri, name="fuse", direct=False):
    """A loop device on an export, as long as the block lasts; through the folder `name`. With `direct` it has many
    requests under way at a time, past the page cache of the file below it, and logical blocks of 4096 bytes."""
    folder = rig.path(name)
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        fuse = rig.start("nbdfuse", folder / "disk", uri, name=f"nbdfuse-{name}")
        stack.callback(wait_until, "nbdfuse to end", 60, lambda: _is_left(fuse, folder), every=0.2)
        wait_until("nbdfuse's file", 10, (folder / "disk").exists)
        how = ["--direct-io=on", "--sector-size", 4096] if direct else []
        loop = run("losetup", "--find", "--show", *how, folder / "disk").stdout.strip()
        stack.callback(run, "losetup", "--detach", loop, check=False)
        yield loop


@contextlib.contextmanager
def served_file(rig, folder, image):
    """The file `disk` in a folder, with the bytes of an image. Whoever has it open gets errors when the process that this
    gives is killed, as from a device that is gone."""
    run("fusermount3", "-u", "-z", rig.path(folder), check=False)
    rig.path(folder).mkdir(exist_ok=True)
    disk = rig.path(folder) / "disk"
    fuse = rig.start("nbdfuse", disk, "--command", "nbdkit", "-s", "file", rig.path(image), name=f"nbdfuse-{folder}")
    try:
        wait_until("nbdfuse's file", 10, disk.exists)
        yield fuse
    finally:
        run("fusermount3", "-u", "-z", rig.path(folder), check=False)
        fuse.kill()


@contextlib.contextmanager
def mounted(rig, loop, name="mnt"):
    """The file system on a block device, mounted as long as the block lasts."""
    folder = rig.path(name)
    folder.mkdir(exist_ok=True)
    run("mount", loop, folder)
    try:
        yield folder
    finally:
        if run("umount", folder, check=False, seconds=120).returncode != 0:
            run("umount", "--lazy", folder)
