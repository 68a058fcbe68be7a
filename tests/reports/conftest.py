"""The fixture `browser` for all tests of pages."""

from tests.reports.browser import browser, driver  # noqa: F401
