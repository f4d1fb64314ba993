"""The report in headless Chromium, from a file, with the network off: `make browser` runs these."""

import shutil

import pytest
from episode_samples import NASTY, sample_episode
from run_samples import write_run

from fuyu_jax.runs.report import write_report

pytestmark = pytest.mark.browser
PROMPTS = (NASTY, "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    episodes = [
        sample_episode("val_mixed", 0, edits=2, prompt=PROMPTS[0]),
        sample_episode("fresh_standard", 7, edits=3, stopped=False, solved=False, prompt=PROMPTS[1]),
    ]
    folder = write_run(tmp_path_factory.mktemp("run") / "run", episodes=episodes)
    write_report(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def driver():
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    assert all(programs), "install Chromium and its driver: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--force-prefers-reduced-motion"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, report):
    """The page as it opens; afterwards its console must be empty."""
    driver.set_window_size(1200, 900)
    driver.get(report.as_uri())
    yield driver
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.stolen") is None


def find(driver, css):
    return driver.find_element("css selector", css)


def texts(driver, css):
    return [found.text for found in driver.find_elements("css selector", css)]


def press(driver, *keys):
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def where(driver):
    return find(driver, "#player-where").text.split(":")[0]


def test_the_arrow_keys_step_forward_and_back(opened):
    from selenium.webdriver import Keys

    assert where(opened) == "Step 0 of 2"
    press(opened, Keys.ARROW_RIGHT)
    assert where(opened) == "Step 1 of 2"
    (changed,) = texts(opened, ".listing .changed")
    assert changed.split() == ["2", "ADDI", "1", "changed,", "was", "NOP", "edited", "next"]
    press(opened, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert where(opened) == "Step 2 of 2", "the last step is the end"
    assert "STOP" in texts(opened, ".facts dd") and "90.0 %" in texts(opened, ".facts dd")
    press(opened, Keys.ARROW_LEFT)
    assert where(opened) == "Step 1 of 2"
    press(opened, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert where(opened) == "Step 0 of 2"


def test_the_buttons_work_by_keyboard_and_show_where_the_focus_is(opened):
    from selenium.webdriver import Keys

    forward = find(opened, "#player-forward")
    opened.execute_script("arguments[0].focus({focusVisible: true})", forward)
    outline = opened.execute_script("return getComputedStyle(arguments[0]).outlineWidth", forward)
    assert outline == "3px"
    press(opened, Keys.ENTER)
    press(opened, Keys.SPACE)
    assert where(opened) == "Step 2 of 2"
    assert opened.switch_to.active_element == forward, "a button at the end keeps the focus"
    find(opened, "#player-first").click()
    assert where(opened) == "Step 0 of 2"
    find(opened, "#player-last").click()
    find(opened, "#player-back").click()
    assert where(opened) == "Step 1 of 2"


def test_a_step_shows_all_that_was_thought(opened):
    find(opened, "#player-forward").click()
    outputs = [row.split("\n")[0] for row in texts(opened, ".outputs tbody tr")]
    assert outputs[0] == "[1, 5, 4] 2 [1, 5, 4] [1, 5, 4] ✓ right [1, 5, 4] ✓ right"
    assert outputs[1] == "[1, 5, 4] 2 7 7 ✓ right 8 ✗ wrong"
    assert outputs[2] == "[1, 5, 4] 2 true true ✓ right true ✓ right"
    assert outputs[3] == "[1, 5, 4] 2 3 fault: TYPE_ERROR ✗ wrong nothing ✗ wrong"
    edits = texts(opened, ".edits tbody tr")
    assert len(edits) == 5 and edits[1].split("\n") == ["slot 2: opcode = <b>1</b> (taken)", "25.0 %"]
    assert "< 0.1 %" in texts(opened, ".facts dd")
    assert "Reference: FGT 3; SUM" in find(opened, "#player-stage").text


def test_markup_in_a_prompt_is_text(opened):
    assert opened.execute_script("return document.querySelector('.prompt').textContent") == PROMPTS[0]
    find(opened, "#player-task").send_keys("fresh")
    assert where(opened) == "Step 0 of 3"
    assert opened.execute_script("return document.querySelector('.prompt').textContent") == PROMPTS[1]
    assert not opened.find_elements("css selector", "#player-stage script, #player-stage img, #player-stage b")
    find(opened, "#player-last").click()
    assert "The budget is spent" in find(opened, "#player-stage").text


def test_the_filter_names_the_tasks_that_are_left(opened):
    from selenium.webdriver.support.select import Select

    choice = Select(find(opened, "#player-filter"))
    assert [option.text for option in choice.options][:3] == ["all (2)", "solved by the policy (1)", "not solved (1)"]
    choice.select_by_index(2)
    assert [text.split(":")[0] for text in texts(opened, "#player-task option")] == ["fresh_standard 7 (not solved)"]
    choice.select_by_visible_text("solved at the start (0)")
    assert "No episode is like that" in find(opened, "#player-stage").text


def test_tables_sort_by_number_and_back(opened):
    column = "#section-1 > .scroll tbody tr td:nth-child(5)"
    first = texts(opened, column)
    button = find(opened, "#section-1 > .scroll th:nth-child(5) button")
    numbers = sorted(float(text.split()[0]) for text in first)
    button.click()
    assert [float(text.split()[0]) for text in texts(opened, column)] == numbers
    assert find(opened, "#section-1 > .scroll th:nth-child(5)").get_attribute("aria-sort") == "ascending"
    button.send_keys("\n")
    assert [float(text.split()[0]) for text in texts(opened, column)] == numbers[::-1]
    assert find(opened, "#section-1 > .scroll th:nth-child(5)").get_attribute("aria-sort") == "descending"
    button.click()
    assert texts(opened, column) == first
    # The original's figures are blank in some rows: these stay last either way.
    for _ in range(2):
        find(opened, "#section-1 > .scroll th:nth-child(9) button").click()
        shown = texts(opened, "#section-1 > .scroll tbody tr td:nth-child(9)")
        assert "" in shown and "" not in shown[: shown.index("")] and not any(shown[shown.index("") :])


def test_a_phone_needs_no_sideways_scrolling(opened):
    device = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    try:
        wide, room = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= room == 360
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_light_and_dark(opened):
    papers = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        papers.append(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert papers == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]
