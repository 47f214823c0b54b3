"""Hierarchy files written by programs."""

import json

from .process import run
from .serve import lamina_binary


def value(of):
    """A value as TOML has it."""
    if isinstance(of, dict):
        return "{ " + ", ".join(f"{key} = {value(item)}" for key, item in of.items()) + " }"
    if isinstance(of, (list, tuple)):
        return "[" + ", ".join(map(value, of)) + "]"
    # Strings, numbers and booleans look as in JSON.
    return json.dumps(of)


def device(name, kind, over=None, /, **keys):
    """A device. `over` is a name or a list of names; a key's `_` stands for `-`."""
    lines = [f"[device.{name}]", f'type = "{kind}"']
    if over:
        lines.append(f"over = {value(over)}")
    lines += [f"{key.replace('_', '-')} = {value(of)}" for key, of in keys.items()]
    return "\n".join(lines) + "\n\n"


def export(name, over, sock):
    """An export on the Unix socket `sock`."""
    return f'[export.{name}]\ndevice = "{over}"\nnbd = "unix:{sock}"\n'


def exported(name, *devices, top, keeps=True):
    """A hierarchy called `name` whose device `top` is exported as `vm1` on the socket `name`.sock; with `keeps` one
    that remembers, and has to be created."""
    head = f'[hierarchy]\nname = "{name}"\n\n' if keeps else ""
    return head + "".join(devices) + export("vm1", top, f"{name}.sock")


def written(rig, name, text):
    """The file of a hierarchy, which is created if it is one that remembers."""
    path = rig.write(f"{name}.toml", text)
    if "[hierarchy]" in text:
        run(lamina_binary(), "create", path, cwd=rig.dir, seconds=300)
    return path
