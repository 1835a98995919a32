"""NW001 to NW008: what the YAML reader and the schema find."""

from narwhal.fleet.rules.rule import describe

describe(
    "NW001",
    "not YAML",
    means="The file cannot be read as one YAML document: a syntax error, or aliases without end.",
    fix="Check indentation, colons and quotes on the line that is named and the one before.",
)
describe(
    "NW002",
    "key twice",
    means="A mapping has the same key two times; only one of the values could count.",
    fix="Delete one of the two, or rename it.",
)
describe(
    "NW003",
    "wrong apiVersion or kind",
    means="The document does not say that it is a fleet file, or a benchmark, of a version that is known.",
    fix="Write `apiVersion: narwhal/v1` and `kind: Fleet` (or `Benchmark`); `narwhal migrate` rewrites older versions.",
)
describe(
    "NW004",
    "unknown key",
    means="A key that the schema does not have: mistyped, in the wrong place, or of another version.",
    fix="Take the spelling that is suggested, move it, or delete it.",
)
describe("NW005", "missing key", means="A key that has no default is not there.", fix="Add it.")
describe(
    "NW006",
    "wrong type",
    means="A value is of another type than the key takes, such as text for a number.",
    fix="Write a value of the type that is named; numbers stand without quotes and units.",
)
describe(
    "NW007",
    "value not allowed",
    means="A value is outside its range, not one of the words a key takes, or text of another form than a key takes.",
    fix="Write a value of the kind that is named, as in the example.",
)
