"""A typed bytecode machine, its tasks and its oracle, as pure functions over arrays."""

from vm.assembler import assemble as assemble
from vm.assembler import disassemble as disassemble
from vm.edits import apply_action as apply_action
from vm.edits import valid_actions as valid_actions
from vm.isa import OPCODES as OPCODES
from vm.machine import run as run
from vm.machine import trace as trace
from vm.types import DEFAULT_SETTINGS as DEFAULT_SETTINGS
from vm.types import Examples as Examples
from vm.types import Program as Program
from vm.types import Result as Result
from vm.types import Settings as Settings
from vm.types import Status as Status
from vm.types import Trace as Trace
from vm.types import Type as Type
from vm.types import Value as Value
from vm.types import blank_program as blank_program
from vm.types import from_python as from_python
from vm.types import to_python as to_python
from vm.types import values_equal as values_equal
from vm.prompts import PromptPlan as PromptPlan
from vm.prompts import TokenTable as TokenTable
from vm.prompts import render_text as render_text
from vm.prompts import render_tokens as render_tokens
from vm.prompts import token_table as token_table
