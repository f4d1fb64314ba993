"""Settings every test runs under."""

import os
from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config: pytest.Config) -> None:
    """Lets test files, workers and the commands they start share compiled programs, which cost most of the time."""
    settings = {
        "jax_compilation_cache_dir": str(config.cache.mkdir("compiled")),  # inside .pytest_cache
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file() -> Iterator[None]:
    """Drops what a file compiled when it is done; a worker that kept all of it would grow to many GiB."""
    yield
    jax.clear_caches()
