from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser, expect

from dashboard.hub import Hub
from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.browser.conftest import Visit
from tests.dashboard.factories import World, make_request, make_unfinished
from tests.dashboard.serve import serving
from tests.dashboard.test_hostile import HOSTILE, add_hostile

pytestmark = pytest.mark.browser
PAGES = ("/", "/?window=5m", "/requests", "/requests/req-slow01", "/requests/req-run001", "/replicas", "/help")


def test_pages_load_without_trouble(visit: Visit) -> None:
    for path in PAGES:
        visit.open(path)
        assert visit.page.title().endswith("Vitrine")
    assert visit.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_telephone(browser: Browser, url: str, scheme: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    for path in PAGES:
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.close()


def test_charts_are_drawn_and_grow(visit: Visit) -> None:
    visit.open("/")
    expect(visit.page.locator(".plot canvas")).to_have_count(6)


def test_hostile_text_is_not_executed(visit: Visit, world: World) -> None:
    for i, text in enumerate(HOSTILE):
        add_hostile(world, text, f"req-hostile{i}")
    for path in ("/", "/requests", "/replicas", *(f"/requests/req-hostile{i}" for i in range(len(HOSTILE)))):
        visit.open(path)
        assert visit.page.evaluate("window.__x") is None
    visit.open("/requests/req-hostile0")
    expect(visit.page.locator("p.error")).to_contain_text(HOSTILE[0])
    assert visit.troubles == []


def test_values_change_in_place(visit: Visit, world: World) -> None:
    visit.open("/replicas")
    running = visit.page.locator("#replica-r0 .stats dd").first
    expect(running).to_have_text("9")
    handle = running.element_handle()
    world.pages["r0", Stage.SCHEDULER].set(Gauge.RUNNING, 13)
    expect(running).to_have_text("13")
    assert visit.page.evaluate("node => node.isConnected", handle)


def test_new_requests_appear_but_not_under_the_pointer(visit: Visit, world: World) -> None:
    page = visit.page
    visit.open("/requests")
    world.add("requests", make_unfinished("req-new1", time.time(), "running", output_tokens=1))
    expect(page.locator("#row-req-new1")).to_be_visible()

    page.hover("#row-req-new1")
    world.add("requests", make_unfinished("req-new2", time.time(), "running"))
    world.add("requests", make_unfinished("req-new1", time.time() - 1, "running", output_tokens=77))
    expect(page.locator("#held")).to_contain_text("1 new")
    expect(page.locator("#row-req-new1")).to_contain_text("77")
    expect(page.locator("#row-req-new2")).to_have_count(0)

    page.mouse.move(5, 5)
    expect(page.locator("#row-req-new2")).to_be_visible()
    expect(page.locator("#held")).to_be_hidden()


def test_load_more_keeps_what_is_there(visit: Visit) -> None:
    visit.open("/requests")
    visit.page.get_by_text("Load more").click()
    expect(visit.page.locator("tbody.older tr")).not_to_have_count(0)
    expect(visit.page.locator("#rows tr")).to_have_count(50)
    assert visit.troubles == []


def test_pause_holds_everything(visit: Visit, world: World) -> None:
    visit.open("/requests")
    visit.page.keyboard.press("p")
    expect(visit.page.locator("#paused")).to_be_visible()
    world.add("requests", make_unfinished("req-new1", time.time(), "running"))
    visit.page.wait_for_timeout(400)
    expect(visit.page.locator("#row-req-new1")).to_have_count(0)
    visit.page.keyboard.press("p")
    expect(visit.page.locator("#row-req-new1")).to_be_visible()


def test_a_request_that_ends_shows_its_whole_story(visit: Visit, world: World) -> None:
    visit.open("/requests/req-run001")
    world.add_finished(make_request("req-run001", time.time()))
    expect(visit.page.get_by_role("heading", name="Answer")).to_be_visible()


def test_keys(visit: Visit) -> None:
    page = visit.page
    visit.open("/?window=1h")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/requests?window=1h")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("#rows tr.at")).to_have_attribute("id", "row-req-wait01")
    page.keyboard.press("Enter")
    page.wait_for_url("**/requests/req-wait01?window=1h")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("req-slow01")
    page.keyboard.press("Enter")
    page.wait_for_url("**/requests?id=req-slow01")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_url("**/replicas")


def test_a_lost_connection_says_so_and_comes_back(browser: Browser, world: World) -> None:
    page = browser.new_page()
    with serving(world, Hub(tick_s=0.1)) as url:
        page.goto(url + "/replicas")
        expect(page.locator("html")).to_have_attribute("data-live", "")
        expect(page.locator("#lost")).to_be_hidden()
    expect(page.locator("#lost")).to_be_visible(timeout=15_000)
    with serving(world, Hub(tick_s=0.1), port=int(url.rsplit(":", 1)[1])):
        expect(page.locator("#lost")).to_be_hidden(timeout=30_000)
    page.close()


def test_definitions_show_on_hover(visit: Visit) -> None:
    visit.open("/")
    visit.page.locator(".legend .def").first.hover()
    expect(visit.page.locator(".tip")).to_have_text("Half of the observations were at most this.")


def test_pages_read_without_script(browser: Browser, url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url)
    expect(page.get_by_text("is the bottleneck")).to_be_visible()
    expect(page.locator("#pause")).to_be_hidden()
    page.goto(url + "/requests")
    page.get_by_text("Load more").click()
    expect(page.get_by_text("back to the newest")).to_be_visible()
    context.close()
