"""What systemd does with a unit, as far as ours asks for it: the user, the variables and the protections of its files."""

from __future__ import annotations

import re

# What is done here, and what changes nothing for a service that only runs.
_DONE = {"User", "WorkingDirectory", "EnvironmentFile", "Environment", "CacheDirectory", "ExecStart"}
_DONE |= {"NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome", "ReadWritePaths"}
_NOT_NEEDED = {"Restart", "RestartSec", "RestartPreventExitStatus", "KillMode", "TimeoutStopSec"}


def service_of(unit: str) -> dict[str, list[str]]:
    """The section [Service], each key with its values."""
    section = re.search(r"^\[Service\]\n(.*?)(?=^\[|\Z)", unit, re.MULTILINE | re.DOTALL)
    assert section
    found: dict[str, list[str]] = {}
    for line in section[1].splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    assert set(found) <= _DONE | _NOT_NEEDED, "a key that this does not know"
    return found


def environment(service: dict[str, list[str]]) -> dict[str, str]:
    """Its variables, without those of the file."""
    return dict(line.split("=", 1) for line in service.get("Environment", []))


def protections(service: dict[str, list[str]]) -> str:
    """Lines of shell by which a machine's root makes everything read-only but what the service may write."""
    (user,) = service["User"]
    caches = [f"/var/cache/{name}" for name in service.get("CacheDirectory", [])]
    lines = [f"mkdir -p {cache}; chown {user}:{user} {cache}" for cache in caches]
    lines += [f"mount --bind {path} {path}" for path in [*service.get("ReadWritePaths", []), *caches]]
    if service.get("PrivateTmp") == ["yes"]:
        lines += ["mount -t tmpfs -o mode=1777 private /tmp", "mount -t tmpfs -o mode=1777 private /var/tmp"]
    if service.get("ProtectSystem") == ["strict"]:
        lines += ["mount -o remount,bind,ro /", "mount -o remount,bind,ro /srv"]
    if service.get("ProtectHome") == ["read-only"]:
        lines += ["mount -o remount,bind,ro /home"]
    return "\n".join([*lines, ""])
