"""Certificates, passwords, access rules, systemd units and packs of a fleet."""
