"""Decoding methods, a file or a folder for each, and those of other packages.

A method of one's own starts with `from ppdbench.methods import Proposer, option, strategy`.
"""

from ppdbench.decoding.decoder import Proposer as Proposer
from ppdbench.errors import ConfigError
from ppdbench.methods import autoregressive as autoregressive
from ppdbench.methods import draft_verify as draft_verify
from ppdbench.methods import eagle as eagle
from ppdbench.methods import early_exit as early_exit
from ppdbench.methods import hidden_transfer as hidden_transfer
from ppdbench.methods import jacobi as jacobi
from ppdbench.methods import layerskip as layerskip
from ppdbench.methods import lookahead as lookahead
from ppdbench.methods import medusa as medusa
from ppdbench.methods import ppd as ppd
from ppdbench.methods import prompt_lookup as prompt_lookup
from ppdbench.methods import prompt_tokens as prompt_tokens
from ppdbench.methods import rest as rest
from ppdbench.methods import speculative as speculative
from ppdbench.methods import transformers_generate as transformers_generate
from ppdbench.methods.base import METHODS as METHODS
from ppdbench.methods.base import Method
from ppdbench.methods.base import option as option
from ppdbench.methods.base import strategy as strategy
from ppdbench.methods.plugins import load_plugins

BROKEN_PLUGINS = load_plugins()


def method(name: str) -> Method:
    """The method called `name`, or why there is none."""
    if name not in METHODS and name in BROKEN_PLUGINS:
        raise ConfigError(f"the plugin {name!r} cannot be loaded: {BROKEN_PLUGINS[name]}")
    return METHODS.get(name)
