"""The controller: state tokens in, a distribution over edits out."""

from fuyu_jax.controller.controller import Controller as Controller
from fuyu_jax.controller.distribution import action_log_probs as action_log_probs
from fuyu_jax.controller.distribution import choose_edit as choose_edit
from fuyu_jax.controller.heads import Echo as Echo
from fuyu_jax.controller.heads import Readout as Readout
from fuyu_jax.controller.rules import DEFAULT_RULES as DEFAULT_RULES
from fuyu_jax.controller.rules import Rules as Rules
