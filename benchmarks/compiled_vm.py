"""The interpreter in C, compiled by the system's compiler when it is asked for, and called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vm.types import DEFAULT_SETTINGS, Program, Result, Value

SOURCE = Path(__file__).with_name("interpreter.c")
FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC")


class NoCompilerError(Exception):
    """There is no C compiler here, or it refuses the interpreter. The message says which."""


def find_compiler() -> str:
    """The C compiler: `$CC`, else cc, gcc or clang.

    Raises:
      NoCompilerError: where there is none.
    """
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name):
            return found
    raise NoCompilerError("no C compiler (cc, gcc, clang or $CC) was found")


class CompiledVM:
    """The interpreter for the default sizes; it runs on numpy arrays and releases Python's lock."""

    def __init__(self) -> None:
        """Compile and load the interpreter.

        Raises:
          NoCompilerError: where it can't be compiled.
        """
        self.compiler = find_compiler()
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "interpreter.so")
            command = [self.compiler, *FLAGS, str(SOURCE), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise NoCompilerError(f"{self.compiler} refused the interpreter: {done.stderr.strip()}")
            # Once it is loaded the library needs no file.
            self._run = ctypes.CDLL(str(library)).run_programs
        self._run.restype = None
        self._run.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 10
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def version(self) -> str:
        """The first line of what the compiler says about itself."""
        done = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0]

    def run(self, program: Program, inputs: Value, threads: int = 1) -> Result:
        """Run programs `[N, L]` on inputs `Value[N, E, 2]`, numpy int32 arrays, the programs split among threads.

        Returns:
          A `Result` with fields `[N, E]`.

        Raises:
          ValueError: for arrays that are not contiguous int32 of these shapes.
        """
        count, examples, _ = inputs.type.shape
        sizes = DEFAULT_SETTINGS
        cells = (count, examples, 2)
        expected = [(count, sizes.slots)] * 2 + [cells, cells, (*cells, sizes.width)]
        given: list[np.ndarray] = [np.asarray(field) for field in (*program, *inputs)]
        for array, shape in zip(given, expected, strict=True):
            if array.shape != shape or array.dtype != np.int32 or not array.flags.c_contiguous:
                raise ValueError(f"an array is {array.dtype} {array.shape}; give contiguous int32 {shape}.")
        out = [np.empty((count, examples, *more), np.int32) for more in ((), (), (sizes.width,), (), ())]

        def part(begin: int, end: int) -> None:
            # A slice's address goes to C; `given` and `out` keep the memory alive.
            pointers = [array[begin:end].ctypes.data for array in (*given, *out)]
            self._run(end - begin, examples, *pointers)

        bounds = [count * index // threads for index in range(threads + 1)]
        if threads == 1:
            part(0, count)
        else:
            pool = self._pools.setdefault(threads, ThreadPoolExecutor(threads))
            list(pool.map(part, bounds[:-1], bounds[1:]))
        kind, length, words, status, pc = out
        return Result(Value(kind, length, words), status, pc)  # type: ignore[arg-type]
