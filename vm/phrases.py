"""The words of the prompts: sentence frames, and the phrasings of every instruction.

A phrase is literal about the machine. "top" is the cell on top of the stack, "below" the one under it, "third" the one
under that; "it", "the list" and "the value" are the top as well. x is on the stack at the start.

Opcodes that are each other's natural confusion (FGT and FLT, TAKE and DROP, ADDI and SUBI) use one sentence at the same
phrasing index, so that swapping them changes one word: `fresh_paired` lives on that. Held-out phrasings put words
together that train uses elsewhere, so that they measure language and not unknown words.
"""

from __future__ import annotations

from typing import NamedTuple

TRAIN_PHRASINGS = 4  # indices 0..3; train's prompts draw from these
PHRASINGS = 6  # indices 4 and 5 are held out for `fresh_paraphrase`
TRAIN_FRAMES = 6  # frames 0..5; the rest are held out for `fresh_paraphrase`

INPUT_NAMES = ("x", "y")  # what INPUT's argument is called


class Frame(NamedTuple):
    """A sentence around the phrases: `start` (with {kind}, the type of x), `connector` between phrases, and `end`."""

    start: str
    connector: str
    end: str


FRAMES = (
    Frame("Start from the {kind} x:", ", then", "."),
    Frame("Given the {kind} x,", ", then", "."),
    Frame("Take the {kind} x and", ", then", ", then stop."),
    Frame("For the {kind} x:", ";", "."),
    Frame("With x a {kind}:", ", next", "."),
    Frame("Please do this to the {kind} x:", ", then", "."),
    Frame("Please take the {kind} x and", ", then", "."),
    Frame("Given x, a {kind}:", ", next", ", then stop."),
)

# Four phrasings for train, then two that are held out. "{k}" is the argument: digits, or x and y for INPUT.
PHRASES: dict[str, tuple[str, str, str, str, str, str]] = {
    "INPUT": ("push {k}", "put {k} on top", "bring {k} to the top", "place input {k} on top",
              "push input {k}", "bring input {k} to the top"),
    "CONST": ("push the number {k}", "put the number {k} on top", "place a {k} on top", "push a constant {k}",
              "place the number {k} on top", "put a constant {k} on top"),
    "DUP": ("copy the top", "duplicate the top value", "push the top again", "make a copy of the top",
            "push a copy of the top", "duplicate the top"),
    "SWAP": ("swap the top two", "exchange the top two values", "swap top and below", "exchange top with below",
             "swap the top two values", "exchange top and below"),
    "POP": ("discard the top", "drop the top value", "remove the top", "throw away the top",
            "discard the top value", "remove the top value"),
    "ADD": ("compute below plus top", "add top to below", "replace both with below plus top",
            "take the value below plus top", "take below plus top", "compute the value below plus top"),
    "SUB": ("compute below minus top", "subtract top from below", "replace both with below minus top",
            "take the value below minus top", "take below minus top", "compute the value below minus top"),
    "MUL": ("compute below times top", "multiply below by top", "replace both with below times top",
            "take the value below times top", "take below times top", "compute the value below times top"),
    "DIV": ("compute the quotient below by top", "divide below by top rounding down",
            "take below over top rounded down", "replace both with quotient by top",
            "take the quotient below by top", "compute below over top rounded down"),
    "MOD": ("compute the remainder below by top", "reduce below modulo top", "take below modulo top",
            "replace both with remainder by top", "take the remainder below by top", "compute below modulo top"),
    "MIN": ("keep the smaller of both", "take the smaller value", "replace both with the smaller",
            "keep the minimum of both", "take the smaller of both", "replace both with the minimum"),
    "MAX": ("keep the larger of both", "take the larger value", "replace both with the larger",
            "keep the maximum of both", "take the larger of both", "replace both with the maximum"),
    "ADDI": ("add {k}", "increase it by {k}", "raise by {k}", "make it {k} larger",
             "raise it by {k}", "increase by {k}"),
    "SUBI": ("subtract {k}", "decrease it by {k}", "lower by {k}", "make it {k} smaller",
             "lower it by {k}", "decrease by {k}"),
    "MULI": ("multiply by {k}", "take it {k} times", "scale by {k}", "compute {k} times the value",
             "multiply it by {k}", "scale it by {k}"),
    "DIVI": ("divide by {k} rounding down", "take the quotient by {k}", "compute its quotient by {k}",
             "divide it by {k} rounded down", "divide by {k} rounded down", "compute the quotient by {k}"),
    "MODI": ("reduce modulo {k}", "take the remainder by {k}", "compute its remainder by {k}", "take it modulo {k}",
             "reduce it modulo {k}", "compute the remainder by {k}"),
    "NEG": ("negate it", "flip the sign", "change its sign", "take the opposite value",
            "change the sign", "flip its sign"),
    "ABS": ("make it absolute", "drop the sign", "remove its sign", "take the absolute value",
            "remove the sign", "drop its sign"),
    "EQ": ("test below equal to top", "test whether below = top", "ask if below is exactly top", "check if below = top",
           "test whether below is exactly top", "ask if below = top"),
    "LT": ("test below less than top", "test whether below < top", "ask if below is under top",
           "check if below < top", "test whether below is under top", "ask if below < top"),
    "GT": ("test below greater than top", "test whether below > top", "ask if below is over top",
           "check if below > top", "test whether below is over top", "ask if below > top"),
    "EQI": ("test if equal to {k}", "test whether top = {k}", "ask if it is exactly {k}", "check if it = {k}",
            "check if it is exactly {k}", "ask if top = {k}"),
    "LTI": ("test if less than {k}", "test whether top < {k}", "ask if it is under {k}", "check if it < {k}",
            "check if it is under {k}", "ask if top < {k}"),
    "GTI": ("test if greater than {k}", "test whether top > {k}", "ask if it is over {k}", "check if it > {k}",
            "check if it is over {k}", "ask if top > {k}"),
    "EVEN": ("test if even", "test whether top is even", "ask if it is even", "check for an even number",
             "check if it is even", "ask whether top is even"),
    "NOT": ("negate the truth value", "flip the truth", "invert the truth value", "switch true and false",
            "flip the truth value", "invert the truth"),
    "AND": ("test if both are true", "combine below and top", "ask whether both hold", "combine the truths with and",
            "ask if both are true", "combine both with and"),
    "OR": ("test if either is true", "combine below or top", "ask whether either hold", "combine the truths with or",
           "ask if either is true", "combine both with or"),
    "LEN": ("take the length", "count the elements", "compute the list length", "replace the list with its length",
            "count the list elements", "take the list length"),
    "SUM": ("take the sum", "add up the elements", "compute the list sum", "replace the list with its sum",
            "add up the list elements", "take the list sum"),
    "MAXL": ("take the largest element", "find the list maximum", "keep only the largest",
             "replace the list with its largest", "find the largest element", "take the list maximum"),
    "MINL": ("take the smallest element", "find the list minimum", "keep only the smallest",
             "replace the list with its smallest", "find the smallest element", "take the list minimum"),
    "HEAD": ("take the first element", "find the list head", "keep only the first",
             "replace the list with its first", "find the first element", "take the list head"),
    "LAST": ("take the last element", "find the list end", "keep only the last",
             "replace the list with its last", "find the last element", "take the list end"),
    "SORT": ("sort the list", "put it in ascending order", "order the elements ascending", "sort it ascending",
             "sort the elements ascending", "put the list in ascending order"),
    "REV": ("reverse the list", "put it in reverse order", "order the elements backwards", "turn it backwards",
            "reverse the elements", "put the list in reverse order"),
    "TAKE": ("keep the first {k}", "take the first {k} elements", "keep {k} from the start", "cut to the first {k}",
             "keep the first {k} elements", "take {k} from the start"),
    "DROP": ("drop the first {k}", "skip the first {k} elements", "remove {k} from the start", "cut off the first {k}",
             "drop the first {k} elements", "skip {k} from the start"),
    "FGT": ("keep elements above {k}", "filter for values > {k}", "keep only values over {k}",
            "keep those greater than {k}", "filter for elements over {k}", "keep only those > {k}"),
    "FLT": ("keep elements below {k}", "filter for values < {k}", "keep only values under {k}",
            "keep those less than {k}", "filter for elements under {k}", "keep only those < {k}"),
    "FEVEN": ("keep even elements", "filter for even values", "keep only even values", "keep those that are even",
              "filter for even elements", "keep only the even elements"),
    "SELECT": ("if third then below else top", "choose below if third else top", "take below when third else top",
               "if true keep below else top", "choose below when third else top", "if third take below else top"),
}  # fmt: skip
