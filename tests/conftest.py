"""Settings every test runs under, and what several files share."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


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
