"""Output files that behave like the ones they wrap, apart from what a test spoils."""

from __future__ import annotations

from pyiceberg.io import InputFile, OutputFile


class WrappedOutput(OutputFile):
    def __init__(self, location: str, inner: OutputFile) -> None:
        super().__init__(location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return self._inner.to_input_file()
