"""Paths, and the boot files of a guest: Debian's kernel, an initramfs and a disk of tools, made once.

The initramfs holds busybox, the few modules a guest needs and `init.sh`; it stays small because an emulated machine
unpacks it slowly. The tools (fio, e2fsprogs and their libraries, about 90 MB) are on a read-only disk of their own.
Everything is made from packages that `tools/install` brought and is made anew when any of its sources changes.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
CACHE = pathlib.Path(os.environ.get("LAMINA_CACHE", TARGET / "rig")).resolve()
TOOLS_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# The programs for the guest beyond busybox, in /tools/bin (by that path where busybox has a lesser one of its own).
GUEST_TOOLS = ["fio", "mkfs.ext4", "e2fsck", "blkdiscard"]
# In the order of need; what these depend on is found. crc32c_generic first: busybox knows no soft dependencies.
GUEST_MODULES = ["crc32c_generic", "virtio_pci", "virtio_blk", "virtio_console", "ext4"]


def example(name, package="lamina-layers"):
    """The program that is built from `examples/` of a crate, in release."""
    path = TARGET / "release/examples" / name
    if not path.exists():
        raise FileNotFoundError(f"no {path}: run cargo build --release -p {package} --example {name}")
    return path


def kernel():
    """The path of the kernel that `tools/install demo` unpacked, and its version."""
    found = sorted((CACHE / "kernel").glob("boot/vmlinuz-*"))
    if not found:
        raise FileNotFoundError(f"no guest kernel under {CACHE}/kernel: run tools/install demo")
    return found[-1], found[-1].name.removeprefix("vmlinuz-")


def _call(*argv, **more):
    env = dict(os.environ, PATH=TOOLS_PATH)
    return subprocess.run([str(a) for a in argv], check=True, capture_output=True, env=env, timeout=300, **more)


def _libraries(binary):
    """The shared libraries a binary needs, loader included."""
    text = _call("ldd", binary).stdout.decode()
    return sorted(set(re.findall(r"(/\S+) \(0x", text)))


def _stamp(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _made(name, stamp, make, lock="lock"):
    """The file `name` in the cache, made by `make(path)` unless the one there has this stamp."""
    path = CACHE / name
    note = CACHE / f"{name}.stamp"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Tests run side by side, and the first of them makes it.
    with open(CACHE / lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if path.exists() and note.exists() and note.read_text() == stamp:
            return path
        fresh = CACHE / f"{name}.new"
        make(fresh)
        fresh.rename(path)
        note.write_text(stamp)
        return path


def _modules(version, names):
    """These modules with all they depend on, in loading order."""
    base = CACHE / "kernel"
    if not (base / "lib").exists() and (base / "usr/lib").exists():
        base = base / "usr"
    if not (base / f"lib/modules/{version}/modules.dep.bin").exists():
        _call("depmod", "-b", base, version)
    order = []
    for name in names:
        lines = _call("modprobe", "-d", base, "-S", version, "--show-depends", name).stdout.decode()
        for line in lines.splitlines():
            if line.startswith("insmod "):
                path = line.split()[1]
                if path not in order:
                    order.append(path)
    return order


def _flavour(name, more):
    """The name of a file with more in it than most guests need."""
    return f"{_stamp(*more)}-{name}" if more else name


def initramfs(modules=()):
    """The initramfs of the guest, as an uncompressed cpio archive; with further modules."""
    modules = [*GUEST_MODULES, *modules]
    _image, version = kernel()
    init = pathlib.Path(__file__).with_name("init.sh").read_bytes()
    busybox = pathlib.Path(shutil.which("busybox", path=TOOLS_PATH) or "/bin/busybox")
    stamp = _stamp(version, init, busybox.stat().st_mtime_ns, " ".join(modules))

    def make(path):
        tree = CACHE / "initramfs.tree"
        shutil.rmtree(tree, ignore_errors=True)
        for folder in ("bin", "modules", "proc", "sys", "dev", "tmp", "mnt", "tools"):
            (tree / folder).mkdir(parents=True)
        shutil.copy(busybox, tree / "bin/busybox")
        (tree / "init").write_bytes(init)
        (tree / "init").chmod(0o755)
        names = []
        for module in _modules(version, modules):
            name = pathlib.Path(module).name
            if name.endswith(".xz"):
                name = name.removesuffix(".xz")
                (tree / "modules" / name).write_bytes(_call("xz", "-dc", module).stdout)
            else:
                shutil.copy(module, tree / "modules" / name)
            names.append(name)
        (tree / "modules/order").write_text("\n".join(names) + "\n")
        listing = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*")))
        path.write_bytes(_call("busybox", "cpio", "-o", "-H", "newc", cwd=tree, input=listing.encode()).stdout)
        shutil.rmtree(tree)

    return _made(_flavour("initramfs.cpio", modules[len(GUEST_MODULES):]), stamp, make)


def tools_disk(tools=()):
    """The read-only disk with the guest's tools, and further ones by name or path: an ext4 image made without being
    root."""
    wanted = [*GUEST_TOOLS, *tools]
    binaries = [shutil.which(tool, path=TOOLS_PATH) for tool in wanted]
    if None in binaries:
        raise FileNotFoundError(f"{wanted[binaries.index(None)]} is missing: run tools/install bench")
    stamp = _stamp(*[f"{b} {os.stat(b).st_mtime_ns}" for b in binaries])

    def make(path):
        tree = CACHE / "tools.tree"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "bin").mkdir(parents=True)
        (tree / "lib").mkdir()
        libraries = set()
        for binary in binaries:
            shutil.copy(binary, tree / "bin" / pathlib.Path(binary).name)
            libraries.update(_libraries(binary))
        for library in libraries:
            shutil.copy(library, tree / "lib" / pathlib.Path(library).name)
        size_kib = sum(f.stat().st_size for f in tree.rglob("*") if f.is_file()) // 1024
        # A quarter more than the files, for the file system itself.
        _call("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-d", tree, path, f"{size_kib * 5 // 4 + 8192}k")
        shutil.rmtree(tree)

    return _made(_flavour("tools.img", tools), stamp, make)


def package():
    """The Debian package of the built program (`make deb`)."""
    program = TARGET / "release/lamina"
    sources = [ROOT / "tools/package", ROOT / "crates/lamina/Cargo.toml", *sorted((ROOT / "packaging/debian").iterdir())]
    stamp = _stamp(program, program.stat().st_mtime_ns, *[source.read_bytes() for source in sources])

    def make(path):
        done = subprocess.run([ROOT / "tools/package", "--output", path], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise AssertionError(f"tools/package: exit {done.returncode}\n{done.stdout}{done.stderr}")

    # What guests boot from is made meanwhile.
    return _made("lamina.deb", stamp, make, lock="package.lock")
