"""Decoding strategies, one method per file, and those of other packages."""

from ppdbench.errors import ConfigError
from ppdbench.strategies import autoregressive as autoregressive
from ppdbench.strategies import draft_verify as draft_verify
from ppdbench.strategies import eagle as eagle
from ppdbench.strategies import early_exit as early_exit
from ppdbench.strategies import hidden_transfer as hidden_transfer
from ppdbench.strategies import jacobi as jacobi
from ppdbench.strategies import layerskip as layerskip
from ppdbench.strategies import lookahead as lookahead
from ppdbench.strategies import medusa as medusa
from ppdbench.strategies import ppd as ppd
from ppdbench.strategies import prompt_lookup as prompt_lookup
from ppdbench.strategies import prompt_tokens as prompt_tokens
from ppdbench.strategies import rest as rest
from ppdbench.strategies import speculative as speculative
from ppdbench.strategies import transformers_generate as transformers_generate
from ppdbench.strategies.base import METHODS as METHODS
from ppdbench.strategies.base import Method
from ppdbench.strategies.plugins import load_plugins

BROKEN_PLUGINS = load_plugins()


def method(name: str) -> Method:
    """The method called `name`, or why there is none."""
    if name not in METHODS and name in BROKEN_PLUGINS:
        raise ConfigError(f"the plugin {name!r} cannot be loaded: {BROKEN_PLUGINS[name]}")
    return METHODS.get(name)
