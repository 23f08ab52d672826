"""Requests of commands to a running `shoal up`, over the socket in its state folder."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from shoal_operator.local.api import get_key, load_objects
from shoal_operator.local.processes import is_same
from shoal_operator.local.state_folder import StateFolder, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.local.api import Key
    from shoal_operator.model.names import Manifest


def is_running(state: StateFolder) -> bool:
    """Return whether a `shoal up` of a state folder runs."""
    own = read_json(state.up)
    return bool(own) and is_same(own["pid"], own["start"])


def ask(state: StateFolder, request: Mapping[str, Any]) -> Any:
    """Return the answer of a running `shoal up`. Raises `OSError`, and `ValueError` if it ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        # The path of the socket may be longer than the system allows.
        folder = os.open(state.root, os.O_RDONLY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{state.socket.name}")
        finally:
            os.close(folder)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile() as answers:
            return json.loads(answers.readline())


def read_objects(state: StateFolder) -> dict[Key, Manifest]:
    """Return the objects of a running `shoal up`, which a full disk may keep from its files; else
    those in the files."""
    if is_running(state):
        try:
            listed = ask(state, {"verb": "list"})["objects"]
        except (OSError, ValueError):
            pass  # It is starting or stopping.
        else:
            return {get_key(manifest): manifest for manifest in listed}
    return load_objects(state.objects)
