"""Statements about the interface, their numbers within an area, and the expectations they are made of.

    area = Area("chat-request")

    @area.says("temperature is at least 0")
    def _(world):
        world.refuses("/v1/chat/completions", ask(temperature=-1))

A statement gets its number by its place in the file, whether it passes or not.
"""

import json

from jsonschema import Draft202012Validator, FormatChecker

SHOWN_MAX = 400


class Unmet(Exception):
    """An expectation that was not met: what was expected, and what was seen."""

    def __init__(self, expected, seen):
        super().__init__(f"expected {expected}, saw {shown(seen)}")


class Area:
    """The statements of one part of the interface, in their order."""

    def __init__(self, name):
        self.name = name
        self.statements = []
        self.unseen = []

    def says(self, text):
        """Registers a function of the world as the check of a statement."""

        def register(check):
            self.statements.append((text, check))
            return check

        return register

    def cannot_see(self, text, reason):
        """Lists a statement that no client can check, and why."""
        self.unseen.append((text, reason))


def shown(value):
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def equal(seen, expected):
    # True == 1 in Python and not in JSON.
    if seen != expected or isinstance(seen, bool) != isinstance(expected, bool):
        raise Unmet(repr(expected), seen)


def one_of(seen, expected):
    if seen not in expected:
        raise Unmet(f"one of {expected}", seen)


def holds(condition, expected, seen):
    if not condition:
        raise Unmet(expected, seen)


FORMATS = FormatChecker()


@FORMATS.checks("uri")
def is_uri(value):
    scheme, colon, rest = str(value).partition(":")
    return bool(colon and rest and scheme.isalpha() and not any(letter.isspace() for letter in value))


@FORMATS.checks("uri-reference")
def is_uri_reference(value):
    return not any(letter.isspace() for letter in str(value))


def valid(value, schema):
    """Whether a value is as a schema of `schemas.py` describes it."""
    problems = list(Draft202012Validator(schema, format_checker=FORMATS).iter_errors(value))
    if problems:
        problem = problems[0]
        raise Unmet(f"{problem.json_path}: {problem.message[:200]}", value)
    return value


def each(seen, expectation):
    """Applies an expectation to every element, of which there is at least one."""
    holds(seen, "at least one element", seen)
    for one in seen:
        expectation(one)
