"""``--name-pattern``: the parts of a tensor's name: ``step{step}/{name}.{role}[.{path}]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accucompare.bundle.format import Role, display_name
from accucompare.errors import UsageError

#: The words for a role in a name.
ROLES = {
    **{
        role.value: role
        for role in (
            Role.INPUT,
            Role.OUTPUT,
            Role.GRAD_INPUT,
            Role.GRAD_OUTPUT,
            Role.PARAM_GRAD,
            Role.PARAM,
        )
    },
    "inputs": Role.INPUT,
    "in": Role.INPUT,
    "outputs": Role.OUTPUT,
    "out": Role.OUTPUT,
}
#: Each field's regular expression. The name takes as little as the rest allows, so that a call
#: after it is found.
_FIELDS = {
    "name": "(?P<name>.+?)",
    "call": r"(?P<call>\d{1,18})",
    "role": f"(?P<role>{'|'.join(sorted(ROLES, key=len, reverse=True))})",
    "path": "(?P<path>.+)",
    "step": r"(?P<step>\d{1,18})",
    "rank": r"(?P<rank>\d{1,5})",
    "_": ".+?",
}
_TOKEN = re.compile(r"\{(\w+)\}|([\[\]])|([^\[\]{}]+)")
#: A bare number belongs to the name: nearly every model has modules called ``layers.0``, and few
#: are called twice.
DEFAULT_PATTERN = "[step{step}/][rank{rank}/]{name}[.call{call}].{role}[.{path}]"


@dataclass(frozen=True)
class PlaceInName:
    """What a name says; ``(root)`` is the whole model."""

    name: str
    role: Role
    path: str = ""
    call: int = 0
    step: int = 0
    rank: int = 0


@dataclass(frozen=True)
class NamePattern:
    text: str
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> NamePattern:
        """Read a pattern: ``{field}`` is one of name, call, role, path, step, rank, or ``{_}``;
        what is in ``[…]`` may be missing. Raises UsageError if it makes no sense."""
        parts, place, used = [], 0, set()
        for token in _TOKEN.finditer(text):
            field, bracket, literal = token.groups()
            if token.start() != place or (
                field is not None and (field not in _FIELDS or field in used)
            ):
                break
            place = token.end()
            used |= {field} - {"_", None}
            parts.append(
                _FIELDS[field]
                if field
                else {"[": "(?:", "]": ")?"}[bracket]
                if bracket
                else re.escape(literal)
            )
        if place != len(text) or "name" not in used:
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise UsageError(
                f"--name-pattern {text!r}: needs {{name}} and may have each of {known} once, such"
                f" as {DEFAULT_PATTERN!r}"
            )
        try:
            return cls(text, re.compile("".join(parts), re.DOTALL))
        except re.error:
            raise UsageError(f"--name-pattern {text!r}: each [ needs its ]") from None

    def place(self, text: str) -> PlaceInName | None:
        """What a name says; ``None`` if it does not match."""
        match = self.regex.fullmatch(text)
        if match is None:
            return None
        found = {field: value for field, value in match.groupdict().items() if value is not None}
        numbers = {field: int(found.get(field, 0)) for field in ("call", "step", "rank")}
        role = ROLES[found.get("role", Role.OUTPUT.value)]
        name = found["name"]
        path = found.get("path", "")
        if role in (Role.PARAM, Role.PARAM_GRAD) and not path:
            name, _, path = name.rpartition(".")
        return PlaceInName("" if name == display_name("") else name, role, path, **numbers)
