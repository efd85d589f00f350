"""Methods that are made for a test."""

from tests.cli.conftest import odd as odd
