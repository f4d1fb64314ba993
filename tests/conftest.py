"""Settings every test runs under, and what several files share."""

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


@pytest.fixture
def no_programs_kept() -> Iterator[None]:
    """For tests in which files cannot be written whole: no compiled program is kept meanwhile."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory):
    """The folder of a run whose policy was never trained."""
    from fuyu_jax.runs.folder import RunFolder
    from fuyu_jax.runs.policies import PolicyFolder, about_policy, build_policy
    from fuyu_jax.runs.settings import PilotSettings

    settings = PilotSettings(seed=2)
    built = build_policy(settings)
    folder = RunFolder.create(str(tmp_path_factory.mktemp("runs") / "run"), "run")
    folder.write_json("config.json", settings.to_dict())
    PolicyFolder.of_run(folder.path).save("bc_policy", built.params.trained, about_policy(settings, built.source))
    return folder.path
