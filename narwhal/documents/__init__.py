"""Documents: a schema, a model and a version for whatever crosses a process or a week.

`data_path` finds the files that travel with the package (schemas, templates, playbooks, example inventories)
from a checkout and from an installed wheel alike; `write_atomically` and `validate` are how every room writes
and checks a document.
"""

from narwhal.documents.files import write_atomically
from narwhal.documents.model import API_VERSION, Document, Model
from narwhal.documents.resources import data_path
from narwhal.documents.schemas import problems, read_schema, schema_names

__all__ = [
    "API_VERSION",
    "Document",
    "Model",
    "data_path",
    "problems",
    "read_schema",
    "schema_names",
    "write_atomically",
]
