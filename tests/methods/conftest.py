"""What tests of whole training runs start from, for methods that are trained."""

from tests.training.conftest import home as home
