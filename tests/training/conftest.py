"""Fixtures of trainings."""

import jax
import pytest

from tests.training import worlds


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def built_once():
    with worlds.built_once():
        yield
