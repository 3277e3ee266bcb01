"""Profiles: TOML files that state a device's limits and choices, and their strict loader."""

from profiles.errors import ProfileError, StemshareError
from profiles.profile import Profile, load_profile, problem_with, profile_names

__all__ = [
    "Profile",
    "ProfileError",
    "StemshareError",
    "load_profile",
    "problem_with",
    "profile_names",
]
