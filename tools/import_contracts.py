"""A contract for import-linter: rooms import each other's packages, never the modules inside them.

A room is a package below `pyarctic`. The `__init__` of each of its packages exports what other rooms may use; everything
else can be moved and renamed without asking them.
"""

from __future__ import annotations

from typing import cast

import grimp
from importlinter import Contract, ContractCheck, fields, output


class DoorsContract(Contract):
    """Modules of a room are imported by the same room only.

    rooms: the packages that are rooms. public_modules: modules that everybody may import."""

    type_name = "doors"

    rooms = fields.ListField(subfield=fields.StringField())
    public_modules = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002  # import-linter's signature
        rooms, public = cast("list[str]", self.rooms), set(cast("list[str] | None", self.public_modules) or ())
        broken = [
            (importer, module, detail["line_number"])
            for room in rooms
            for module in sorted(graph.find_descendants(room) - public)
            if not graph.find_children(module)
            for importer in sorted(graph.find_modules_that_directly_import(module))
            if not f"{importer}.".startswith(f"{room}.")
            for detail in graph.get_import_details(importer=importer, imported=module)
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, module, line in check.metadata["broken"]:
            package = module.rpartition(".")[0]
            output.print_error(f"{importer} (line {line}) imports {module}: import from {package}, which exports it.")
