"""Profiles: TOML files that state a device's limits and choices, and their strict loader."""

from profiles.profile import Profile, ProfileError, load_profile, profile_names

__all__ = ["Profile", "ProfileError", "load_profile", "profile_names"]
