"""Decoding methods, a file or a folder for each, and those of other packages.

A method of one's own starts with `from ppdbench.methods import Proposer, option, strategy`.
"""

from ppdbench.decoding.decoder import Proposer as Proposer
from ppdbench.errors import ConfigError
from ppdbench.methods.base import METHODS as METHODS
from ppdbench.methods.base import Method
from ppdbench.methods.base import option as option
from ppdbench.methods.base import strategy as strategy
from ppdbench.methods.plugins import load_plugins
from ppdbench.training.plans import TRAINABLES
from ppdbench.trees.guessing import GUESSING

# Ours: where each method is registered, and the options of its training where there is one.
# The modules are imported when a method is first asked for.
OURS = {
    "greedy": ["autoregressive"],
    "draft-verify": ["draft_verify.strategy"],
    "eagle": ["eagle.strategy", "eagle.plan"],
    "early-exit": ["early_exit"],
    "hidden-transfer": ["hidden_transfer.strategy", "hidden_transfer.plan"],
    "hybrid": ["hybrid"],
    "jacobi": ["jacobi"],
    "layerskip": ["layerskip.strategy", "layerskip.plan"],
    "lookahead": ["lookahead"],
    "medusa": ["medusa.strategy", "medusa.plan"],
    "ppd": ["ppd.strategy"],
    "prompt-lookup": ["prompt_lookup"],
    "prompt-tokens": ["prompt_tokens.strategy", "prompt_tokens.plan"],
    "rest": ["rest.strategy"],
    "speculative": ["speculative"],
    "transformers:greedy": ["transformers_generate"],
    "transformers:greedy-static": ["transformers_generate"],
    "transformers:early-exit": ["transformers_generate"],
    "transformers:prompt-lookup": ["transformers_generate"],
    "transformers:assistant": ["transformers_generate"],
}
# What a comparison is of unless it is told: methods that need neither training nor other files.
USUAL = ("greedy", "layerskip", "draft-verify", "prompt-lookup", "lookahead", "jacobi")
# Those whose drafts are borrowed, one after another, where a method's show a test nothing.
LENDERS = USUAL[1:3]

for _name, (_strategy, *_plan) in OURS.items():
    METHODS.later(_name, f"{__name__}.{_strategy}")
    GUESSING.later(_name, f"{__name__}.{_strategy}")
    for _module in _plan:
        TRAINABLES.later(_name, f"{__name__}.{_module}")

BROKEN_PLUGINS = load_plugins()


def method(name: str) -> Method:
    """The method called `name`, or why there is none."""
    if name not in METHODS and name in BROKEN_PLUGINS:
        raise ConfigError(f"the plugin {name!r} cannot be loaded: {BROKEN_PLUGINS[name]}")
    return METHODS.get(name)
