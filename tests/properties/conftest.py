"""Statements of mathematics, tried on some hundred examples each."""

from hypothesis import settings

from tests.properties.profile import PROPERTIES

settings.register_profile("properties", PROPERTIES)
settings.load_profile("properties")
